"""The command `rollmux webhook`, which says where a service posts its notices."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.commands.options import At
from runtime.commands.token import service_folder
from runtime.service.operations_log import OperationsLog
from runtime.service.webhook import WEBHOOK, set_target

app = typer.Typer(no_args_is_help=True)


@app.callback()
def webhook() -> None:
    """Let a service post a notice when a job failed, is over budget, lost or overdue, or a quota is used up."""


@app.command("set")
def set_webhook(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL that takes a POST of JSON, http:// or https://.")], at: At = None
) -> None:
    """Set the URL and print the secret of the signatures, once. A running service follows at once.

    Example: `rollmux webhook set https://hooks.example.org/rollmux`
    """
    folder = service_folder(at)
    secret = set_target(folder, url)
    OperationsLog(folder).write("", "set webhook", url, "done")
    typer.echo(secret)


@app.command()
def unset(at: At = None) -> None:
    """Post no more notices.

    Example: `rollmux webhook unset`
    """
    folder = service_folder(at)
    (folder / WEBHOOK).unlink(missing_ok=True)
    OperationsLog(folder).write("", "unset webhook", "", "done")
