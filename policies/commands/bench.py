"""`rollmux bench`, on a stream or on a suite."""

from __future__ import annotations

import typer

from policies.commands.bench_options import BenchOptions
from policies.commands.options import Fidelity, Format, find_scenario
from policies.commands.suite import SuiteOptions, run_suite
from rollmux_env.command_options import takes


@takes(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Compare policies on a scenario file or a workload: dollars, SLOs, GPUs.

    Examples: `rollmux bench examples/quickstart.yaml -p solo -p rollmux`

    `rollmux bench production --set stays=fixed --seeds 5 -p solo -p rollmux`

    `rollmux bench examples/models.yaml --rollout-policy tail-batching -p solo -p rollmux`

    `rollmux bench --suite production --quick`
    """
    if options.target is not None and options.suite is None:
        if options.quick:
            raise typer.BadParameter("goes with --suite", param_hint="--quick")
        _compare(options.target, options)
    elif options.target is None and options.suite is not None:
        _bench_suite(options.suite, options)
    else:
        raise typer.BadParameter("give a scenario file, the name of a workload, or --suite NAME", param_hint="FILE|WORKLOAD")


def _bench_suite(name: str, options: BenchOptions) -> None:
    fixed = {
        "--baseline": options.baseline,
        "--dispatch": options.dispatch,
        "--failures": options.failures,
        "--fidelity": options.fidelity,
        "--rollout-policy": options.rollout_policy,
        "--set": options.settings,
        "--max-phases": options.most_phases,
    }
    for option, value in fixed.items():
        if value:
            raise typer.BadParameter("a suite has its own", param_hint=option)
    quick, seed, seeds, workers = options.quick, options.seed, options.seeds, options.workers
    run_suite(name, SuiteOptions(quick, options.policy or [], seed, seeds, workers, options.out, options.format, options.check))


def _compare(target: str, options: BenchOptions) -> None:
    """Replay a stream under every policy, and show and write what came of it."""
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

    seed, seeds, out = options.seed, options.seeds or 1, options.out
    names = list(dict.fromkeys(options.policy or ["solo", "rollmux"]))
    base = options.baseline or names[0]
    if base not in names:
        raise typer.BadParameter(f"{base} is not among the policies {', '.join(names)}", param_hint="--baseline")
    of_events = {"--dispatch": options.dispatch, "--rollout-policy": options.rollout_policy, "--failures": options.failures}
    fidelity = options.fidelity or (Fidelity.fluid if not any(of_events.values()) else Fidelity.event)
    for option, value in {**of_events, "--max-phases": options.most_phases}.items():
        if value is not None and fidelity is Fidelity.fluid:
            raise typer.BadParameter("a fluid replay runs no single phases", param_hint=option)
    inside = make_at(options.rollout_policy or "plain", "replay")
    order = migrating(options.dispatch or "round-robin", inside)
    rule = make_dispatch(order) if fidelity is Fidelity.event else None
    dying = make_with("--failures", "it", Failures, options.failures.split(",")) if options.failures is not None else None
    for name in names:
        make_policy(name)
    if out:
        make_folder(out)
    scenarios = {number: find_scenario(target, number, options.settings or []) for number in range(seed, seed + seeds)}
    check_sizes(options.rollout_policy or "plain", scenarios.values())
    tasks = [
        Task(name, number, scenarios[number], rule, options.check, inside, options.most_phases, dying)
        for number in scenarios
        for name in names
    ]
    results = tracked(
        lambda tell: run_tasks(make_policy, tasks, options.workers, tell), [f"{task.spec}, seed {task.seed}" for task in tasks]
    )
    rows = compare(results, base)
    report = bench_report(target, fidelity.value, results, base)
    title = f"{target}{_asked(options)}: {len(scenarios[seed].jobs)} jobs, {_replayed(options, order if rule else None)}"
    tables: list[RenderableType] = [comparison_table(title, rows, base, seeds)]
    if scenarios[seed].queue_key is not None:
        tables.append(accounts_table(results, scenarios[seed]))
    if out:
        from rollmux_env.report.plots import bench_plots

        write_bench(out, report, scenarios, results, bench_plots(scenarios[seed], results, rows, base), Group(*tables))
    if options.format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif options.format is Format.csv:
        typer.echo(bench_csv(results), nl=False)
    else:
        show(*tables)


def _asked(options: BenchOptions) -> str:
    """The workload's options, for a title."""
    return "".join(f", {pair.replace('=', ' ', 1)}" for pair in options.settings or [])


def _replayed(options: BenchOptions, order: str | None) -> str:
    """Seeds and replay, for a title.

    Args:
        order: the dispatch policy of an event replay; None of a fluid one.
    """
    over = f"{options.seeds} seeds" if options.seeds and options.seeds > 1 else f"seed {options.seed}"
    if order is None:
        return f"{over}, fluid replay"
    within = f", rollouts {options.rollout_policy}" if options.rollout_policy else ""
    dies = f", failures {options.failures}" if options.failures else ""
    return f"{over}, {order} event replay{within}{dies}"
