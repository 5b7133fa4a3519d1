"""The command `rollmux bench`, for a stream or a suite."""

from __future__ import annotations

import typer

from policies.commands.bench_options import BenchOptions
from rollmux_env.command_options import takes

_OF_SUITES = (
    "baseline",
    "fleet",
    "failures",
    "fidelity",
    "sweep",
    "most_phases",
    "bound",
)  # each suite has its own


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
    others = ("seed", "seeds", "quick", "check") if options.suite == "leaderboard" else ("dispatch", "rollout_policy")
    for option in (*_OF_SUITES, *others):
        if getattr(options, option):
            hint = {"settings": "--set", "most_phases": "--max-phases"}.get(option, f"--{option.replace('_', '-')}")
            raise typer.BadParameter("a suite has its own", param_hint=hint)
