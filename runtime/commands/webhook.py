"""The command `rollmux webhook`, which says where a service sends its notices."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import typer

from runtime.commands.options import At
from runtime.commands.token import service_folder
from runtime.service.mail import MAIL, set_address
from runtime.service.operations_log import OperationsLog
from runtime.service.webhook import WEBHOOK, set_target

app = typer.Typer(no_args_is_help=True)


@app.callback()
def webhook() -> None:
    """Let a service send a notice when a job failed, is over budget, lost, overdue or on a drained node, or a quota is used up."""


@app.command("set")
def set_webhook(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="URL that takes a POST of JSON, http:// or https://, or mailto:ADDRESS.")
    ],
    at: At = None,
) -> None:
    """Set the URL and print the secret of its signatures, once, or set the address of mails. A running service follows at once.

    Examples: `rollmux webhook set https://hooks.example.org/rollmux`

    `rollmux webhook set mailto:ops@example.org`
    """
    folder = service_folder(at)
    if url.startswith("mailto:"):
        set_address(folder, url.removeprefix("mailto:"))
    else:
        typer.echo(set_target(folder, url))
    shown = url if url.startswith("mailto:") else str(urlsplit(url).hostname)  # the path of a hook is often its secret
    OperationsLog(folder).write("", "set webhook", shown, "done")


@app.command()
def unset(at: At = None) -> None:
    """Send no more notices, neither to a URL nor as mail.

    Example: `rollmux webhook unset`
    """
    folder = service_folder(at)
    for file in (WEBHOOK, MAIL):
        (folder / file).unlink(missing_ok=True)
    OperationsLog(folder).write("", "unset webhook", "", "done")
