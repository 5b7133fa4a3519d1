"""The command `rollmux usage`."""

from __future__ import annotations

import csv
import sys
from typing import Annotated, cast

import typer

from rollmux_env.errors import InputError
from rollmux_env.report.tables import figure, make_table, show
from rollmux_env.validation_errors import not_one_of
from runtime.commands.options import At
from runtime.commands.waiting import ends_quietly
from runtime.journal.check import explained
from runtime.report.usage import FIGURES, KEYS, Key, Row, past_usage
from runtime.service.address import folder_of
from runtime.service.client import NoService, connected

_HEADS = ("jobs", "iterations", "node-hours", "$", "$ alone", "$ saved", "waited h", "parks")
_FORMS = {"jobs": "d", "parks": "d", "iterations": ",.0f"}


def usage(
    by: Annotated[
        str, typer.Option("--by", metavar="KEYS", help="Some of user, month and job, separated by commas.")
    ] = "user,month",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with all digits.")] = False,
    at: At = None,
) -> None:
    """Print what users and jobs of a service have used, from its journal; the service need not run.

    Nodes and dollars of a group are divided evenly among its members. `$ alone` is the price of the same phases and syncs on nodes
    of the job's own. Months are in UTC.

    Examples: `rollmux usage`

    `rollmux usage --by user,month --csv --at rollmux-service`
    """
    keys = by.split(",")
    for key in keys:
        if key not in KEYS:
            raise InputError(f"--by {by}: {not_one_of(key, [*KEYS])}")
        if keys.count(key) > 1:
            raise InputError(f"--by {by}: {key} is given twice")
    try:
        with ends_quietly(), connected(at) as service:
            rows: list[Row] = service.ask("GET", f"/v1/usage?by={by}")["rows"]
    except NoService as nobody:
        if not nobody.has_journal:
            raise
        with explained(folder_of(at)):
            rows = past_usage(folder_of(at), cast("list[Key]", keys))
    if as_csv:
        writer = csv.DictWriter(sys.stdout, [*keys, *FIGURES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    table = make_table(*keys, *_HEADS, left=len(keys))
    for row in rows:
        figures = (figure(row[name], form=_FORMS.get(name, "z,.2f")) for name in FIGURES)
        table.add_row(*(row[key] or "(no name)" for key in keys), *figures)
    show(table)
