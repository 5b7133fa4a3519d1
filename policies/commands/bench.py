"""The command `rollmux bench`, for a stream or a suite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import BenchFormat, FailureRates, Fidelity, MostPhases, Plots
from rollmux_env.command_options import takes
from rollmux_env.commands.options import Seed, WorkloadSettings

_OF_SUITES = (
    "baseline",
    "fleet",
    "failures",
    "fidelity",
    "sweep",
    "most_phases",
    "bound",
)  # each suite has its own


@dataclass(frozen=True)
class BenchOptions:
    """Options of `rollmux bench`, for a stream or a suite. Each field is the option of the same name."""

    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...|WORKLOAD",
            help="Scenario files, one replicate each, or the name of a workload, or `module:name` of your own.",
            show_default=False,
        ),
    ] = None
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite", metavar="NAME", help="Run an experiment instead of a file (docs/reference/suites.md).", show_default=False
        ),
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
            show_default=False,
        ),
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=VALUE,...",
            help="Compare at each value of `fleet`, of a workload's option (slo) or of a key of the cluster; can be repeated.",
            show_default=False,
        ),
    ] = None
    format: Annotated[BenchFormat, typer.Option("--format", help="Output format.")] = BenchFormat.table
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
            show_default=False,
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write results and plots to this folder.", show_default=False)
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --out: replace results that are there.")] = False
    plots: Annotated[Plots, typer.Option("--plots", help="With --out: the kind of plots.")] = Plots.png
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
    failures: FailureRates = None
    settings: WorkloadSettings = None
    most_phases: MostPhases = None


@takes(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Compare policies on a scenario file or a workload: dollars, SLOs, GPUs.

    Examples: `rollmux bench examples/quickstart.yaml -p solo -p rollmux`

    `rollmux bench production --set stays=fixed --seeds 5 -p solo -p rollmux`

    `rollmux bench examples/models.yaml --rollout-policy tail-batching -p solo -p rollmux`

    `rollmux bench production --seeds 3 --sweep slo=1.2,1.5,2 -p solo -p rollmux -p consolidate`

    `rollmux bench mixed --fleet 12+10 -p solo -p rollmux`

    `rollmux bench --suite production --quick`
    """
    if (not options.target) == (options.suite is None):
        raise typer.BadParameter("give a scenario file, the name of a workload, or --suite NAME", param_hint="FILE|WORKLOAD")
    # Each of the three imports much that the others, and `--help`, do without.
    if options.suite is None:
        from policies.commands.comparing import compare_policies as printed
    elif options.suite == "leaderboard":
        from policies.commands.leaderboard import enter_leaderboard as printed
    else:
        from policies.commands.suites import run_suite as printed
    _refuse(options)
    printed(options).show(options.format)


def _refuse(options: BenchOptions) -> None:
    """Refuse options that a suite sets itself. The leaderboard takes policies of all kinds."""
    if options.suite is None:
        if options.quick:
            raise typer.BadParameter("goes with --suite", param_hint="--quick")
        return
    others = ("seeds", "quick", "check") if options.suite == "leaderboard" else ("dispatch", "rollout_policy")
    for option in (*_OF_SUITES, *others):
        if getattr(options, option):
            hint = {"settings": "--set", "most_phases": "--max-phases"}.get(option, f"--{option.replace('_', '-')}")
            raise typer.BadParameter("a suite has its own", param_hint=hint)
