"""The command `rollmux workload`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmux_env.commands.options import Seed, WorkloadSettings
from rollmux_env.errors import InputError
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions, parse_options
from rollmux_env.workloads.own import draw, is_own, own_source
from rollmux_env.workloads.text import write_scenario

if TYPE_CHECKING:
    from rollmux_env.scenario import Scenario


def workload(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="production, mixed, ... (docs/reference/workloads.md), or `module:name`.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file, .json or .yaml.")],
    settings: WorkloadSettings = None,
    seed: Seed = 0,
) -> None:
    """Write a workload as a scenario file.

    Keys of --set (docs/reference/workloads.md has the defaults):

    jobs: number of jobs
    interarrival_s: mean seconds between two arrivals
    stays: `iterations`, fixed work, or `fixed`, fixed stays (the paper's accounting)
    slo: [LOW,HIGH], the range of SLOs
    max_group_size: maximum jobs in a group
    switches: true for warm and cold start times
    shapes: whether jobs may also run on half or twice their nodes (production)
    asynchronous: share of the jobs that are asynchronous, 0 to 1
    classes, turns: number of classes of jobs, and how often they change
    users: number of users
    explained, explained_by: what classes, users, phases or hours explain of the lengths of jobs
    third_pool: whether jobs may also run on nodes of a third kind, A100 (production)
    assumptions: scaling, prices and rates that are not published: `ours`, `model`, or a file
    semantics: `paper` for the SLOs and training nodes that the paper's figures need
    csv, profile: trace of philly, and the profile of its jobs' phase times
    columns: names of the trace's columns, as in {arrival: submit_time, user: user, gpus: gpu_num}
    trace, phase_times, drift: files of the paper's authors (authors)
    virtual_cluster: use only this cluster's rows of the trace
    window_start_h, window_h: use only this window of the trace
    min_stay_h, max_stay_h: use only stays in this range

    A workload of your own, as `module:name`, has the keys that its function or class takes (docs/guides/workloads.md).

    Examples: `rollmux workload production --set stays=fixed --out stream.yaml`

    `rollmux workload philly --set csv=trace.csv --set virtual_cluster=6c71a0 --out philly.json`
    """
    scenario = make_scenario(name, seed, settings or [])
    write_scenario(out, scenario)
    typer.echo(f"{out}: {len(scenario.jobs)} jobs, sha256 {scenario.sha256}")


def make_scenario(name: str, seed: int, settings: Iterable[str]) -> Scenario:
    """Generate a workload from values of `--set`.

    Args:
        name: Name of the workload, or `module:name` of a user's own.
        seed: Seed of its draws.
        settings: Texts `key=value`.

    Raises:
        InputError: If the workload is unknown, or does not support an option.
    """
    if is_own(name):
        return draw(own_source(name, settings), seed, name)
    try:
        return make_workload(name, parse_options(settings, seed))
    except InputError as error:
        named = re.match(r"(\w+)(?!\.\w)", str(error))  # a file `trace.csv` is no option `trace`
        of_option = named is not None and named[1] in WorkloadOptions.__dataclass_fields__
        raise InputError(f"--set {error}" if of_option else str(error)) from None
