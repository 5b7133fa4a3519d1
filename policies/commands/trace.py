"""The command `rollmux trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import FailureRates, MostPhases, Plots, PolicyName, Width
from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from policies.replaying import make_failures
from policies.rollout import migrating
from policies.rollout.places import check_sizes, make_at
from policies.targets import find_scenario
from rollmux_env.commands.options import Seed, WorkloadSettings
from rollmux_env.progress import ProgressLines
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.report.look import Look, drawn_as
from rollmux_env.report.pictures import write_pictures
from rollmux_env.user_code import keep_stdout, seeded


def trace(
    target: Annotated[str, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the pictures to this folder.")],
    policy: PolicyName = "rollmux",
    dispatch: Annotated[
        str, typer.Option("--dispatch", metavar="NAME", help="Dispatch policy (docs/reference/dispatch.md).")
    ] = "round-robin",
    rollout_policy: Annotated[
        str,
        typer.Option(
            "--rollout-policy", metavar="NAME", help="Rollout policy for jobs with a model (docs/reference/rollout_policies.md)."
        ),
    ] = "plain",
    group: Annotated[
        int | None, typer.Option("--group", metavar="N", help="Group to show. (default: the one with the most members)")
    ] = None,
    from_h: Annotated[
        float | None,
        typer.Option("--from", metavar="HOURS", help="Start of the window. (default: where the group has the most members)"),
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", metavar="HOURS", help="Length of the window. (default: six meta-iterations)")
    ] = None,
    plots: Annotated[Plots, typer.Option("--plots", help="File format of the Gantt chart.")] = Plots.png,
    width_in: Width = None,
    failures: FailureRates = None,
    settings: WorkloadSettings = None,
    seed: Seed = 0,
    most_phases: MostPhases = None,
) -> None:
    """Draw an event replay: a Gantt chart of a group and a trace for ui.perfetto.dev.

    Example: `rollmux trace micro-rollout-heavy --policy rollmux --out pictures`
    """
    keep_stdout()
    look = Look(width_in)
    placement, sampling = make_runnable(policy, seed), make_at(rollout_policy, "replay")
    dispatch = migrating(dispatch, sampling)
    dispatcher, failure_model = make_dispatch(dispatch), make_failures(failures)
    scenario = find_scenario(target, seed, settings or [])
    check_sizes(rollout_policy, [scenario])
    with ProgressLines(f"replaying {target}") as progress, seeded(seed):

        def report(phases: int, departed: int) -> None:
            progress.report(f"{phases:,} phases, {departed:,} of {len(scenario.jobs):,} jobs done")

        watch = Watch(most_phases=most_phases, report=report, keep_phases=True)
        run = replay_events(scenario, placement, dispatcher, seed, watch, rollout=sampling, failures=failure_model)
    with drawn_as(look):
        lines = write_pictures(out, run, f"{target}, {policy}, {dispatch}", group, from_h, hours, plots.value)
    for line in lines:
        typer.echo(line)
