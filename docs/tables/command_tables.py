"""Tables of commands: arguments, the first sentences of the help, and options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import rollmux


def command_table(panel: str) -> str:
    """Return the table of the commands under one heading of `rollmux --help`.

    Args:
        panel: The heading.
    """
    rows = ["| command | what it does | options |", "|---|---|---|"]
    return "\n".join([*rows, *(_row(name, command) for name, command in _commands(panel))])


@cache
def _group() -> Any:
    import typer

    return typer.main.get_command(rollmux.command())


def _commands(panel: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a panel with their names; behind a group come its own."""
    for name, command in _group().commands.items():
        if command.rich_help_panel == panel:
            if not hasattr(command, "commands") or command.invoke_without_command:
                yield name, command
            yield from ((f"{name} {own}", below) for own, below in getattr(command, "commands", {}).items())


def _row(name: str, command: Any) -> str:
    arguments, options = [], []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = (parameter.metavar or parameter.name.upper()).replace("|", " or ")
            arguments.append(word if parameter.required else f"[{word}]")
        elif not parameter.hidden:
            options.append(f"`{max(parameter.opts, key=len)}`")
    summary = " ".join(command.help.partition("\n\n")[0].split())
    return f"| `{' '.join(('rollmux', name, *arguments))}` | {summary} | {', '.join(options)} |"
