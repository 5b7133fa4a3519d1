"""Commands whose modules are imported when they are called, so that `rollmux --help` is fast.

A command `name` is the function of that name in its module, or `name_` where Python has a function of that name. A module with
several commands under one name has them in `app`, and the function `name` is what runs before each of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

Modules = Mapping[str, str]
"""Names of modules, by command."""


def lazy_app(headings: Mapping[str, Modules], **settings: Any) -> typer.Typer:
    """Return an application of commands that are imported when they are called.

    Args:
        headings: Modules of the commands, by heading of the help.
        **settings: Settings of the application.
    """
    app = typer.Typer(cls=_group_of({name: home for modules in headings.values() for name, home in modules.items()}), **settings)
    for heading, modules in headings.items():
        for name in modules:
            app.command(name, rich_help_panel=heading)(_nothing)
    return app


def _group_of(modules: Modules) -> type[TyperGroup]:
    class LazyGroup(TyperGroup):
        """A group whose commands are imported when they are looked up."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._listed = self.commands
            self.commands: Any = _Imported(modules, self._listed)

        def format_help(self, *arguments: Any) -> None:
            """Write the help, with lines from the files of the commands."""
            imported, self.commands = self.commands, self._listed
            for name, command in self._listed.items():
                command.help = _first_line(modules[name], name)
            super().format_help(*arguments)
            self.commands = imported

    return LazyGroup


class _Imported(Mapping[str, Any]):
    """Commands by name, imported when they are looked up."""

    def __init__(self, modules: Modules, listed: Mapping[str, Any]) -> None:
        self._modules, self._listed = modules, listed

    def __getitem__(self, name: str) -> Any:
        module, around = import_module(self._modules[name]), typer.Typer(rich_markup_mode="rich", callback=_nothing)
        if hasattr(module, "app"):
            around.add_typer(module.app, name=name)
        else:
            around.command(name)(getattr(module, name, None) or getattr(module, f"{name}_"))
        command: Any = get_group(around).commands[name]
        command.rich_help_panel = self._listed[name].rich_help_panel
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _first_line(module: str, name: str) -> str:
    """Return the first sentence of a command's docstring without importing its module."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = {node.name.rstrip("_"): node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(functions[name]) or "").partition("\n\n")[0]


def _nothing() -> None: ...
