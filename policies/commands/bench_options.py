"""Options of `rollmux bench`, which streams, suites and the leaderboard share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import FailureRates, Fidelity, Format, MostPhases, Plots, Width
from rollmux_env.commands.options import Seed, WorkloadSettings


@dataclass(frozen=True)
class BenchOptions:
    """Options of `rollmux bench`, for a stream or a suite. Each field is the option of the same name."""

    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...|WORKLOAD",
            help="Scenario files, one replicate each, or the name of a workload, or `module:name` of your own.",
        ),
    ] = None
    suite: Annotated[
        str | None, typer.Option("--suite", metavar="NAME", help="Run an experiment instead of a file (docs/reference/suites.md).")
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="Run the suite with shorter streams and one seed.")] = False
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="NAME",
            help="Policy, as in consolidate or fleet,order=area, or `module:Class`; can be repeated. (default: solo, rollmux)",
        ),
    ] = None
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="NAME", help="Policy that savings are relative to. (default: the first one)")
    ] = None
    fleet: Annotated[
        str | None,
        typer.Option(
            "--fleet",
            metavar="NODES|load=X",
            help="Replay on owned nodes: of each pool, as in 12+10, or load=1.6 for 1/1.6 of what the jobs need alone.",
        ),
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=VALUE,...",
            help="Compare at each value of `fleet`, of a workload's option (slo) or of a key of the cluster; can be repeated.",
        ),
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
    limit_s: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            min=0.1,
            metavar="SECONDS",
            help="End with an error if one replay takes longer, in a separate process. (default: no limit)",
        ),
    ] = None
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write results and plots to this folder.")] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --out: replace results that are there.")] = False
    plots: Annotated[Plots, typer.Option("--plots", help="With --out: the kind of plots.")] = Plots.png
    width_in: Width = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="POLICY=TEXT", help="Label of a policy in plots; can be repeated.")
    ] = None
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            help="Add a lower bound of the dollars of policies that place jobs on arrival and keep SLOs (docs/reference/bound.md).",
        ),
    ] = False
    check: Annotated[bool, typer.Option("--check", help="Check the invariants after every instant.")] = False
    fidelity: Annotated[
        Fidelity | None,
        typer.Option("--fidelity", help="Simulate steady periods, or every phase. (default: fluid; event with --dispatch)"),
    ] = None
    dispatch: Annotated[
        str | None, typer.Option("--dispatch", metavar="NAME", help="Dispatch policy for event replays. (default: round-robin)")
    ] = None
    rollout_policy: Annotated[
        str | None,
        typer.Option(
            "--rollout-policy", metavar="NAME", help="Rollout policy for jobs with a model, in event replays. (default: plain)"
        ),
    ] = None
    failures: FailureRates = None
    settings: WorkloadSettings = None
    most_phases: MostPhases = None
