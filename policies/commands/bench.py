"""`rollmux bench`, on a stream or on a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policies.commands.options import Fidelity, Format, MostPhases, find_scenario
from policies.commands.suite import run_suite
from rollmux_env.cli import Seed, WorkloadSettings


def bench(
    target: Annotated[
        str | None, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False)
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="Run a part of the paper's evaluation instead of a file.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run the suite with shorter streams and one seed.")] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", metavar="NAME", help="Policy name or `module:Class`; can be repeated. (default: solo, rollmux)"
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="NAME", help="Policy that savings are relative to. (default: the first one)")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table,
    seed: Seed = 0,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="Number of seeds, starting at --seed: mean and 95% interval. (default: 1, or the suite's)"
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of processes.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write results and plots to this folder.", show_default=False)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the invariants after every instant.")] = False,
    fidelity: Annotated[
        Fidelity | None,
        typer.Option(
            "--fidelity",
            help="Simulate steady periods, or every phase. (default: fluid; event with --dispatch)",
            show_default=False,
        ),
    ] = None,
    dispatch: Annotated[
        str | None,
        typer.Option(
            "--dispatch", metavar="NAME", help="Dispatch policy for event replays. (default: round-robin)", show_default=False
        ),
    ] = None,
    rollout_policy: Annotated[
        str | None,
        typer.Option(
            "--rollout-policy",
            metavar="NAME",
            help="Rollout policy for jobs with a model, in event replays. (default: plain)",
            show_default=False,
        ),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures",
            metavar="KEY=VALUE,...",
            help="What dies in event replays, as in job_h=24,node_h=3700,every=10 (docs/reference/failures.md).",
            show_default=False,
        ),
    ] = None,
    settings: WorkloadSettings = None,
    most_phases: MostPhases = None,
) -> None:
    """Compare policies on a scenario file or a workload: dollars, SLOs, GPUs.

    Examples: `rollmux bench examples/quickstart.yaml -p solo -p rollmux`

    `rollmux bench production --set stays=fixed --seeds 5 -p solo -p rollmux`

    `rollmux bench examples/models.yaml --rollout-policy tail-batching -p solo -p rollmux`

    `rollmux bench --suite production --quick`
    """
    if (target is None) == (suite is None):
        raise typer.BadParameter("give a scenario file, the name of a workload, or --suite NAME", param_hint="FILE|WORKLOAD")
    if suite is not None:
        fixed = {
            "--baseline": baseline,
            "--dispatch": dispatch,
            "--failures": failures,
            "--fidelity": fidelity,
            "--rollout-policy": rollout_policy,
            "--set": settings,
            "--max-phases": most_phases,
        }
        for option, value in fixed.items():
            if value:
                raise typer.BadParameter("a suite has its own", param_hint=option)
        run_suite(suite, quick, policy or [], seed, seeds, workers, out, format, check)
        return
    assert target is not None
    if quick:
        raise typer.BadParameter("goes with --suite", param_hint="--quick")
    from rich.console import Group, RenderableType

    from policies.dispatch import make_dispatch
    from policies.named import make_with
    from policies.registry import make_policy
    from policies.rollout import migrating
    from policies.rollout.places import check_sizes, make_at
    from rollmux_env.bench.comparison import compare
    from rollmux_env.bench.harness import Task, run_tasks
    from rollmux_env.replay.failures import Failures
    from rollmux_env.report.accounts import accounts_table
    from rollmux_env.report.folder import make_folder, write_bench
    from rollmux_env.report.progress import tracked
    from rollmux_env.report.results import bench_csv, bench_report, to_json
    from rollmux_env.report.tables import comparison_table, show

    names = list(dict.fromkeys(policy or ["solo", "rollmux"]))
    base = baseline or names[0]
    if base not in names:
        raise typer.BadParameter(f"{base} is not among the policies {', '.join(names)}", param_hint="--baseline")
    of_events = {"--dispatch": dispatch, "--rollout-policy": rollout_policy, "--failures": failures}
    fidelity = fidelity or (Fidelity.fluid if not any(of_events.values()) else Fidelity.event)
    for option, value in {**of_events, "--max-phases": most_phases}.items():
        if value is not None and fidelity is Fidelity.fluid:
            raise typer.BadParameter("a fluid replay runs no single phases", param_hint=option)
    inside = make_at(rollout_policy or "plain", "replay")
    order = migrating(dispatch or "round-robin", inside)
    rule = make_dispatch(order) if fidelity is Fidelity.event else None
    dying = make_with("--failures", "it", Failures, failures.split(",")) if failures is not None else None
    for name in names:
        make_policy(name)
    if out:
        make_folder(out)
    scenarios = {number: find_scenario(target, number, settings or []) for number in range(seed, seed + (seeds or 1))}
    check_sizes(rollout_policy or "plain", scenarios.values())
    tasks = [
        Task(name, number, scenarios[number], rule, check, inside, most_phases, dying) for number in scenarios for name in names
    ]
    results = tracked(
        lambda tell: run_tasks(make_policy, tasks, workers, tell), [f"{task.spec}, seed {task.seed}" for task in tasks]
    )
    rows = compare(results, base)
    report = bench_report(target, fidelity.value, results, base)
    over = f"{seeds} seeds" if seeds and seeds > 1 else f"seed {seed}"
    options = "".join(f", {pair.replace('=', ' ', 1)}" for pair in settings or [])
    within = f", rollouts {rollout_policy}" if rollout_policy else ""
    dies = f", failures {failures}" if failures else ""
    replay = f"{order} event replay{within}{dies}" if rule else "fluid replay"
    title = f"{target}{options}: {len(scenarios[seed].jobs)} jobs, {over}, {replay}"
    tables: list[RenderableType] = [comparison_table(title, rows, base, seeds or 1)]
    if scenarios[seed].queue_key is not None:
        tables.append(accounts_table(results, scenarios[seed]))
    if out:
        from rollmux_env.report.plots import bench_plots

        write_bench(out, report, scenarios, results, bench_plots(scenarios[seed], results, rows, base), Group(*tables))
    if format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif format is Format.csv:
        typer.echo(bench_csv(results), nl=False)
    else:
        show(*tables)
