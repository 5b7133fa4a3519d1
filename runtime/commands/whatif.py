"""The command `rollmux whatif`."""

from __future__ import annotations

from typing import Annotated

import typer

from policies.commands.options import TableOrJson
from policies.targets import find_scenario
from policies.whatif import Change, read_arriving, what_if
from rollmux_env.command_options import parse_pairs
from rollmux_env.report.whatif import whatif_tables
from rollmux_env.user_code import keep_stdout
from runtime.commands.options import Format
from runtime.commands.printing import print_as


def whatif(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False),
    ],
    nodes: Annotated[
        list[str] | None,
        typer.Option("--nodes", metavar="POOL=N", help="Nodes of a pool, as in 12, or a difference, as in +2; can be repeated."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", metavar="NAME", help="Placement policy after the change.", show_default=False)
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", metavar="ORDER", help="Order of the waiting jobs after the change.", show_default=False),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="JOB", help="Leave a job out; can be repeated.", show_default=False)
    ] = None,
    arrives: Annotated[
        str | None,
        typer.Option("--arrives", metavar="FILE", help="A scenario file whose jobs arrive, too.", show_default=False),
    ] = None,
    present: Annotated[
        str, typer.Option("--present", metavar="NAME", help="Placement policy before the change, which a scenario does not name.")
    ] = "rollmux",
    format: Format = TableOrJson.table,
) -> None:
    """Say what a change would do to completion, waits, dollars and SLOs, job by job.

    Examples: `rollmux whatif examples/quickstart.yaml --policy consolidate`

    `rollmux whatif stream.yaml --nodes training=+2 --present fleet,order=area`
    """
    keep_stdout()
    scenario = find_scenario(target, 0, ())
    change = Change(
        dict(parse_pairs("--nodes", nodes or (), "POOL=N")),
        policy,
        order,
        tuple(without or ()),
        () if arrives is None else read_arriving(arrives, scenario.cluster),
    )
    report = what_if(target, scenario, present, change).as_dict()
    print_as(format, report, *whatif_tables(report))
