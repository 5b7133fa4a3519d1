"""The options of `rollmux bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import Fidelity, Format, MostPhases
from rollmux_env.cli import Seed, WorkloadSettings


@dataclass(frozen=True)
class BenchOptions:
    """What `rollmux bench` is asked for, on a stream or on a suite. Each field is an option, by its own name."""

    target: Annotated[
        str | None, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False)
    ] = None
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="Run a part of the paper's evaluation instead of a file.", show_default=False),
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="Run the suite with shorter streams and one seed.")] = False
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", metavar="NAME", help="Policy name or `module:Class`; can be repeated. (default: solo, rollmux)"
        ),
    ] = None
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="NAME", help="Policy that savings are relative to. (default: the first one)")
    ] = None
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table
    seed: Seed = 0
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="Number of seeds, starting at --seed: mean and 95% interval. (default: 1, or the suite's)"
        ),
    ] = None
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of processes.")] = 1
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write results and plots to this folder.", show_default=False)
    ] = None
    check: Annotated[bool, typer.Option("--check", help="Check the invariants after every instant.")] = False
    fidelity: Annotated[
        Fidelity | None,
        typer.Option(
            "--fidelity",
            help="Simulate steady periods, or every phase. (default: fluid; event with --dispatch)",
            show_default=False,
        ),
    ] = None
    dispatch: Annotated[
        str | None,
        typer.Option(
            "--dispatch", metavar="NAME", help="Dispatch policy for event replays. (default: round-robin)", show_default=False
        ),
    ] = None
    rollout_policy: Annotated[
        str | None,
        typer.Option(
            "--rollout-policy",
            metavar="NAME",
            help="Rollout policy for jobs with a model, in event replays. (default: plain)",
            show_default=False,
        ),
    ] = None
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures",
            metavar="KEY=VALUE,...",
            help="What dies in event replays, as in job_h=24,node_h=3700,every=10 (docs/reference/failures.md).",
            show_default=False,
        ),
    ] = None
    settings: WorkloadSettings = None
    most_phases: MostPhases = None
