"""The command `rollmux token`, which manages the users who may use a service over HTTP."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.errors import InputError
from rollmux_env.report.tables import make_table, show
from rollmux_env.validation_errors import one_line
from runtime.commands.options import At
from runtime.service.address import folder_of, in_shell
from runtime.service.operations_log import OperationsLog
from runtime.service.tokens import Right, Tokens

app = typer.Typer(no_args_is_help=True)


@app.callback()
def token() -> None:
    """Make, list and revoke the tokens of a service's users."""


class RightName(StrEnum):
    """Names of `runtime.service.tokens.Right`."""

    look = "look"
    attach = "attach"
    operate = "operate"


@app.command()
def make(
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")],
    right: Annotated[
        RightName,
        typer.Option("--right", help="look; attach and submit own jobs; or run code and operate (docs/guides/security.md)."),
    ],
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", help="Highest priority of the user's jobs; --right operate has no limit.")
    ] = 0,
    at: At = None,
) -> None:
    """Print a new token for a user, once: the service stores only its hash. A running service accepts it at once.

    Example: `rollmux token make ann --right attach`
    """
    if not user:
        raise InputError("a user's name is empty; the token without a name is the service's own, in service.json")
    folder = service_folder(at)
    bearer = Tokens(folder).make(user, Right[right.name.upper()], priority)
    OperationsLog(folder).write("", "make token", user, right.value)
    typer.echo(bearer)


@app.command("list")
def list_tokens(at: At = None) -> None:
    """List the valid tokens: id, user, right, highest priority of jobs, and the time at which they were made.

    Example: `rollmux token list`
    """
    table = make_table("id", "user", "right", "priority", "made", left=5)
    for made in Tokens(service_folder(at)).list():
        most = "any" if made.right >= Right.OPERATE else str(made.priority)
        table.add_row(made.id, made.user or "(the service's own)", made.right.name.lower(), most, made.made)
    show(table)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as in `rollmux token list`.")], at: At = None
) -> None:
    """Revoke a token. A running service refuses it at once.

    Example: `rollmux token revoke 3f6c0a1b9d2e`
    """
    folder = service_folder(at)
    revoked = Tokens(folder).revoke(token_id)
    OperationsLog(folder).write("", "revoke token", revoked.user, revoked.id)
    typer.echo(f"revoked: {revoked.id}, {revoked.right.name.lower()} of {revoked.user or 'the service itself'}")


def service_folder(at: Path | None) -> Path:
    """Return the folder of a service that has run at least once.

    Raises:
        InputError: If there is no such folder; one line.
    """
    folder = folder_of(at)
    if not folder.is_dir():
        name = one_line(str(folder), 4096)
        raise InputError(f"--at {name}: there is no such folder; `rollmux serve {in_shell(folder)}` makes it")
    return folder
