"""The command `rollmux whatif`."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from policies.commands.options import TableOrJson
from policies.commands.printed import Printed
from policies.targets import find_scenario
from policies.whatif import Change, read_arriving, what_if
from rollmux_env.command_options import parse_pairs, takes
from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Cluster
from rollmux_env.reading import merge_defaults, read_mapping
from rollmux_env.report.whatif import whatif_tables
from rollmux_env.user_code import keep_stdout
from runtime.commands.options import Format

_PRESENT = "rollmux"
_SECONDS = {"m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class WhatIfOptions:
    """Options of `rollmux whatif`. Each field is the option of the same name."""

    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|DIR",
            help="A scenario file, the folder of a service or a run, or a file of `rollmux bundle`. "
            "(default: the service of $ROLLMUX_URL and $ROLLMUX_TOKEN; $ROLLMUX_SERVICE; rollmux-service)",
        ),
    ] = None
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--nodes",
            metavar="POOL=N",
            help="Number of nodes of a pool, as in training=12, or the difference, as in training=+2; can be repeated.",
        ),
    ] = None
    policy: Annotated[str | None, typer.Option("--policy", "-p", metavar="NAME", help="Placement policy after the change.")] = None
    order: Annotated[str | None, typer.Option("--order", metavar="ORDER", help="Order of the waiting jobs after the change.")] = (
        None
    )
    without: Annotated[list[str] | None, typer.Option("--without", metavar="JOB", help="Leave a job out; can be repeated.")] = None
    arrives: Annotated[str | None, typer.Option("--arrives", metavar="FILE", help="A scenario file whose jobs arrive, too.")] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Let the jobs that arrived in this time, as in 7d, 36h or 90m, arrive again; else no other job arrives. "
            "For services and runs.",
        ),
    ] = None
    present: Annotated[
        str | None,
        typer.Option(
            "--present", metavar="NAME", help="Placement policy before the change, for scenario files. (default: rollmux)"
        ),
    ] = None
    format: Format = TableOrJson.table

    @property
    def said_nodes(self) -> dict[str, str]:
        """Nodes after the change, or the differences, by pool."""
        return dict(parse_pairs("--nodes", self.nodes or (), "POOL=N"))

    @property
    def since_s(self) -> float | None:
        """Length of the past whose arrivals repeat, in seconds, or None."""
        return None if self.since is None else _seconds(self.since)

    def change(self, cluster: Cluster) -> Change:
        """Return the change of a cluster's jobs and nodes."""
        arriving = () if self.arrives is None else read_arriving(self.arrives, cluster)
        return Change(self.said_nodes, self.policy, self.order, tuple(self.without or ()), arriving)

    def request(self) -> dict[str, Any]:
        """Return the body of a request to a service."""
        said = {
            "nodes": self.said_nodes,
            "policy": self.policy,
            "order": self.order,
            "without": self.without,
            "since_s": self.since_s,
        }
        if self.arrives is not None:
            said["arrives"] = merge_defaults(read_mapping(find_file(self.arrives))).get("jobs", [])
        return {key: value for key, value in said.items() if value}


@takes(WhatIfOptions)
def whatif(options: WhatIfOptions) -> None:
    """Say what a change would do to completion, waits, dollars and SLOs, job by job.

    On a scenario file both sides are replays of `rollmux bench`. On a service, or the journal of one, they begin with the present
    state.

    Examples: `rollmux whatif examples/queue.yaml --nodes training=+2 --present fleet`

    `rollmux whatif --nodes training=+2 --order area`

    `rollmux whatif rollmux-service --since 7d --policy consolidate`
    """
    keep_stdout()
    is_of_service = options.target is None or Path(options.target).is_dir()
    report = _of_service(options) if is_of_service else _of_file(str(options.target), options)
    Printed(report, whatif_tables(report)).show(options.format)


def _of_file(target: str, options: WhatIfOptions) -> dict[str, Any]:
    """Answer a question about a scenario, or about the journal in a bundle."""
    if zipfile.is_zipfile(target):
        return _of_journal(Path(target), options)
    if options.since_s is not None:
        raise InputError(f"--since: is for services and runs; {target} is neither a folder nor a file of `rollmux bundle`")
    scenario = find_scenario(target, 0, ())
    return what_if(target, scenario, options.present or _PRESENT, options.change(scenario.cluster)).as_dict()


def _of_service(options: WhatIfOptions) -> dict[str, Any]:
    """Answer a question about a service that runs, or about the journal in a folder."""
    from runtime.service.address import folder_of
    from runtime.service.client import NoService, connected

    _refuse_present(options)
    folder = None if options.target is None else Path(options.target)
    try:
        with connected(folder) as service:
            return service.what_if(options.request())
    except NoService as nobody:
        if not nobody.has_journal:
            raise
        return _of_journal(folder_of(folder), options)


def _of_journal(target: Path, options: WhatIfOptions) -> dict[str, Any]:
    """Answer a question about the journal in a folder or a bundle."""
    from runtime.journal.check import explained
    from runtime.report.bundle import folder_of_bundle
    from runtime.service.whatif import answer, of_journal

    _refuse_present(options)
    with folder_of_bundle(target) as folder, explained(folder):
        now = of_journal(folder, str(target))
        return answer(now, options.change(now.state.cluster), options.since_s).as_dict()


def _refuse_present(options: WhatIfOptions) -> None:
    if options.present is not None:
        raise InputError("--present: is for scenario files; a service and a run have their policy")


def _seconds(text: str) -> float:
    """Return a time such as `7d` in seconds.

    Raises:
        InputError: If the text has another form; one line.
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([mhd])", text)
    if match is None or not float(match[1]):
        raise InputError(f"--since {text}: must be a time above 0 in minutes, hours or days, as in 90m, 36h or 7d")
    return float(match[1]) * _SECONDS[match[2]]
