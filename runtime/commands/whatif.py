"""The command `rollmux whatif`."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from policies.commands.options import TableOrJson
from policies.targets import find_scenario
from policies.whatif import Change, read_arriving, what_if
from rollmux_env.command_options import parse_pairs
from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Cluster
from rollmux_env.reading import merge_defaults, read_mapping
from rollmux_env.report.whatif import whatif_tables
from rollmux_env.user_code import keep_stdout
from runtime.commands.options import Format
from runtime.commands.printing import print_as

_PRESENT = "rollmux"
_SECONDS = {"m": 60, "h": 3600, "d": 86400}


class Question(NamedTuple):
    """A question as options ask it.

    Attributes:
        nodes: Nodes after the change, or the differences, by pool.
        policy: Placement policy after the change, or None.
        order: Order of the waiting jobs after the change, or None.
        without: Jobs that are left out.
        arrives: File whose jobs arrive too, or None.
        since_s: Length of the past whose arrivals repeat, in seconds, or None.
        present: Policy before the change, or None.
    """

    nodes: dict[str, str]
    policy: str | None
    order: str | None
    without: tuple[str, ...]
    arrives: str | None
    since_s: float | None
    present: str | None

    def change(self, cluster: Cluster) -> Change:
        """Return the change of a cluster's jobs and nodes."""
        arriving = () if self.arrives is None else read_arriving(self.arrives, cluster)
        return Change(self.nodes, self.policy, self.order, self.without, arriving)

    def request(self) -> dict[str, Any]:
        """Return the body of a request to a service."""
        said = {
            "nodes": self.nodes,
            "policy": self.policy,
            "order": self.order,
            "without": [*self.without],
            "since_s": self.since_s,
        }
        if self.arrives is not None:
            said["arrives"] = merge_defaults(read_mapping(find_file(self.arrives))).get("jobs", [])
        return {key: value for key, value in said.items() if value}


def whatif(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|DIR",
            help="A scenario file, the folder of a service or a run, or a file of `rollmux bundle`. "
            "(default: the service of $ROLLMUX_URL and $ROLLMUX_TOKEN; $ROLLMUX_SERVICE; rollmux-service)",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--nodes",
            metavar="POOL=N",
            help="Number of nodes of a pool, as in training=12, or the difference, as in training=+2; can be repeated.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", metavar="NAME", help="Placement policy after the change.", show_default=False),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", metavar="ORDER", help="Order of the waiting jobs after the change.", show_default=False),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="JOB", help="Leave a job out; can be repeated.", show_default=False),
    ] = None,
    arrives: Annotated[
        str | None,
        typer.Option("--arrives", metavar="FILE", help="A scenario file whose jobs arrive, too.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Let the jobs that arrived in this time, as in 7d, 36h or 90m, arrive again; else no other job arrives. "
            "For services and runs.",
            show_default=False,
        ),
    ] = None,
    present: Annotated[
        str | None,
        typer.Option(
            "--present",
            metavar="NAME",
            help="Placement policy before the change, for scenario files. (default: rollmux)",
            show_default=False,
        ),
    ] = None,
    format: Format = TableOrJson.table,
) -> None:
    """Say what a change would do to completion, waits, dollars and SLOs, job by job.

    On a scenario file both sides are replays of `rollmux bench`. On a service, or the journal of one, they begin with the present
    state.

    Examples: `rollmux whatif examples/queue.yaml --nodes training=+2 --present fleet`

    `rollmux whatif --nodes training=+2 --order area`

    `rollmux whatif rollmux-service --since 7d --policy consolidate`
    """
    keep_stdout()
    said = dict(parse_pairs("--nodes", nodes or (), "POOL=N"))
    question = Question(said, policy, order, tuple(without or ()), arrives, _seconds(since), present)
    report = _of_service(target, question) if target is None or Path(target).is_dir() else _of_file(target, question)
    print_as(format, report, *whatif_tables(report))


def _of_file(target: str, question: Question) -> dict[str, Any]:
    """Answer a question about a scenario, or about the journal in a bundle."""
    if zipfile.is_zipfile(target):
        return _of_journal(Path(target), question)
    if question.since_s is not None:
        raise InputError("--since: is for services and runs; a scenario says which jobs arrive")
    scenario = find_scenario(target, 0, ())
    return what_if(target, scenario, question.present or _PRESENT, question.change(scenario.cluster)).as_dict()


def _of_service(target: str | None, question: Question) -> dict[str, Any]:
    """Answer a question about a service that runs, or about the journal in a folder."""
    from runtime.service.address import folder_of
    from runtime.service.client import NoService, connected

    if question.present is not None:
        raise InputError("--present: is for scenario files; a service and a run have their policy")
    folder = None if target is None else Path(target)
    try:
        with connected(folder) as service:
            return service.what_if(question.request())
    except NoService as nobody:
        if not nobody.has_journal:
            raise
        return _of_journal(folder_of(folder), question)


def _of_journal(target: Path, question: Question) -> dict[str, Any]:
    """Answer a question about the journal in a folder or a bundle."""
    from runtime.journal.check import explained
    from runtime.report.bundle import folder_of_bundle
    from runtime.service.whatif import answer, of_journal

    if question.present is not None:
        raise InputError("--present: is for scenario files; a service and a run have their policy")
    with folder_of_bundle(target) as folder, explained(folder):
        now = of_journal(folder, str(target))
        return answer(now, question.change(now.state.cluster), question.since_s).as_dict()


def _seconds(text: str | None) -> float | None:
    """Return a time such as `7d` in seconds.

    Raises:
        InputError: If the text has another form; one line.
    """
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([mhd])", text)
    if match is None or not float(match[1]):
        raise InputError(f"--since {text}: must be a time above 0 in minutes, hours or days, as in 90m, 36h or 7d")
    return float(match[1]) * _SECONDS[match[2]]
