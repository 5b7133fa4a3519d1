"""The command `rollmux quota`, which sets the quotas of a service's users while it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rollmux_env.errors import InputError
from rollmux_env.keys.queue import Quota
from rollmux_env.report.tables import show
from rollmux_env.validation_errors import not_one_of, one_line
from runtime.commands.options import At
from runtime.service.client import connected
from runtime.service.tables import users_table

app = typer.Typer(no_args_is_help=True)
UserOrAll = Annotated[str, typer.Argument(metavar="USER", help="Name of a user, or '*' for every user without a quota of its own.")]


@app.callback()
def quota() -> None:
    """Set and list the quotas of a service's users. A running service takes them at once, and keeps them over restarts."""


@app.command("set")
def set_quota(
    user: UserOrAll,
    limits: Annotated[list[str], typer.Argument(metavar="KEY=N...", help=f"{', '.join(Quota.model_fields)}; none: no limit.")],
    at: At = None,
) -> None:
    """Set limits of a user and keep the others.

    Examples: `rollmux quota set ann nodes=4 node_hours=500`

    `rollmux quota set '*' jobs=20 run_hours=48`
    """
    wanted = dict(map(_limit, limits))
    with connected(at) as service:
        known = service.status()["quotas"].get(user, {})
        quota = {key: value for key, value in (known | wanted).items() if value is not None}
        _show(service.ask("POST", "/v1/quotas", {"user": user, "quota": quota}), user)


@app.command()
def unset(user: UserOrAll, at: At = None) -> None:
    """Remove a user's own quota: that of every user, if there is one, holds from now on.

    Example: `rollmux quota unset ann`
    """
    with connected(at) as service:
        _show(service.ask("POST", "/v1/quotas", {"user": user, "quota": None}), user)


@app.command("list")
def list_quotas(at: At = None) -> None:
    """List what each user holds, has used in this month, and may hold.

    Example: `rollmux quota list`
    """
    with connected(at) as service:
        report = service.status()
    show(users_table(report["users"]))
    for user in sorted(report["quotas"]):
        _show(report, user)


def _limit(text: str) -> tuple[str, float | None]:
    """Return key and value of a limit, or None as the value of one to be removed.

    Raises:
        InputError: If there is no such limit, or the value is no number; one line.
    """
    key, _, value = text.partition("=")
    if key not in Quota.model_fields:
        raise InputError(f"{one_line(text, 80)}: {not_one_of(key, [*Quota.model_fields])}")
    if value == "none":
        return key, None
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"{one_line(text, 80)}: needs a number after {key}=, or none") from None
    return key, int(number) if number.is_integer() else number


def _show(answer: dict[str, Any], user: str) -> None:
    limits = answer["quotas"].get(user)
    words = "none of its own" if limits is None else " ".join(f"{key}={value:g}" for key, value in limits.items()) or "no limit"
    typer.echo(f"{user}: {words}")
