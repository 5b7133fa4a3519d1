"""`rollmux bench`, on a stream or on a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policies.commands.options import Fidelity, Format, MostPhases, find_scenario
from rollmux_env.cli import Seed, WorkloadSettings
from rollmux_env.command_options import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rollmux_env.bench.harness import Result
    from rollmux_env.bench.suite import Makers, Suite, SuiteRow
    from rollmux_env.scenario import Scenario


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
        _run_suite(options.suite, options)
    else:
        raise typer.BadParameter("give a scenario file, the name of a workload, or --suite NAME", param_hint="FILE|WORKLOAD")


def _compare(target: str, options: BenchOptions) -> None:
    """Replay a stream under every policy."""
    from policies.dispatch import make_dispatch
    from policies.named import make_with
    from policies.registry import make_policy
    from policies.rollout import migrating
    from policies.rollout.places import check_sizes, make_at
    from rollmux_env.bench.harness import Task, run_tasks
    from rollmux_env.replay.failures import Failures
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.progress import tracked

    names, base = _policies(options)
    fidelity, rollout_policy = _fidelity(options), options.rollout_policy or "plain"
    inside = make_at(rollout_policy, "replay")
    order = migrating(options.dispatch or "round-robin", inside)
    rule = make_dispatch(order) if fidelity is Fidelity.event else None
    dying = make_with("--failures", "it", Failures, options.failures.split(",")) if options.failures is not None else None
    for name in names:
        make_policy(name)
    if options.out:
        make_folder(options.out)
    numbers = range(options.seed, options.seed + (options.seeds or 1))
    scenarios = {number: find_scenario(target, number, options.settings or []) for number in numbers}
    check_sizes(rollout_policy, scenarios.values())
    tasks = [
        Task(name, number, scenario, rule, options.check, inside, options.most_phases, dying)
        for number, scenario in scenarios.items()
        for name in names
    ]
    results = tracked(
        lambda tell: run_tasks(make_policy, tasks, options.workers, tell), [f"{task.spec}, seed {task.seed}" for task in tasks]
    )
    _show_comparison(_title(target, options, scenarios, order if rule else None), options, fidelity, results, scenarios, base)


def _policies(options: BenchOptions) -> tuple[list[str], str]:
    """The policies to compare, each once, and the one that savings are relative to."""
    names = list(dict.fromkeys(options.policy or ["solo", "rollmux"]))
    base = options.baseline or names[0]
    if base not in names:
        raise typer.BadParameter(f"{base} is not among the policies {', '.join(names)}", param_hint="--baseline")
    return names, base


def _fidelity(options: BenchOptions) -> Fidelity:
    """The replay that is asked for: by events where an option is about these."""
    of_events = {"--dispatch": options.dispatch, "--rollout-policy": options.rollout_policy, "--failures": options.failures}
    fidelity = options.fidelity or (Fidelity.event if any(of_events.values()) else Fidelity.fluid)
    for option, value in {**of_events, "--max-phases": options.most_phases}.items():
        if value is not None and fidelity is Fidelity.fluid:
            raise typer.BadParameter("a fluid replay runs no single phases", param_hint=option)
    return fidelity


def _title(target: str, options: BenchOptions, scenarios: Mapping[int, Scenario], order: str | None) -> str:
    """What was replayed, and how.

    Args:
        order: the dispatch policy of an event replay; None of a fluid one.
    """
    asked = "".join(f", {pair.replace('=', ' ', 1)}" for pair in options.settings or [])
    over = f"{len(scenarios)} seeds" if len(scenarios) > 1 else f"seed {options.seed}"
    how = f"{over}, fluid replay"
    if order is not None:
        within = f", rollouts {options.rollout_policy}" if options.rollout_policy else ""
        dies = f", failures {options.failures}" if options.failures else ""
        how = f"{over}, {order} event replay{within}{dies}"
    return f"{target}{asked}: {len(scenarios[options.seed].jobs)} jobs, {how}"


def _show_comparison(
    title: str,
    options: BenchOptions,
    fidelity: Fidelity,
    results: Sequence[Result],
    scenarios: Mapping[int, Scenario],
    base: str,
) -> None:
    """Print what came of a comparison, and write it."""
    from rich.console import Group

    from rollmux_env.bench.comparison import compare
    from rollmux_env.report.folder import write_bench
    from rollmux_env.report.results import bench_csv, bench_report
    from rollmux_env.report.tables import accounts_table, comparison_table

    rows, first = compare(results, base), scenarios[options.seed]
    report = bench_report(options.target or "", fidelity.value, results, base)
    tables: list[RenderableType] = [comparison_table(title, rows, base, len(scenarios))]
    if first.queue_key is not None:
        tables.append(accounts_table(results, first))
    if options.out:
        from rollmux_env.report.plots import bench_plots

        write_bench(options.out, report, scenarios, results, bench_plots(first, results, rows, base), Group(*tables))
    _print(options.format, report, bench_csv(results), *tables)


def _print(format: Format, report: Mapping[str, Any], csv: str, *tables: RenderableType) -> None:
    """Print results in the format that is asked for."""
    from rollmux_env.report.results import to_json
    from rollmux_env.report.tables import show

    if format is Format.table:
        show(*tables)
    else:
        typer.echo(to_json(report) if format is Format.json else csv, nl=False)


def makers() -> Makers:
    """All factories of policies by name, for suites."""
    from policies.allocation import make_allocator
    from policies.dispatch import make_dispatch
    from policies.network import make_network
    from policies.registry import make_policy
    from policies.rollout import make_rollout, migrating
    from rollmux_env.bench.suite import Makers

    return Makers(make_policy, make_dispatch, make_rollout, migrating, make_network, make_allocator)


def _run_suite(name: str, options: BenchOptions) -> None:
    """Run a suite: of placement policies, to which the user may add, or of something else."""
    from rollmux_env.bench.suites import find_suite
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.suites import suite_csv, suite_report, suite_table, write_suite

    _refuse_own(options)
    suite, added = find_suite(name), options.policy or []
    if suite.measure is not None and added and suite.adds is None:
        raise InputError(f"--policy {added[0]}: the suite {name} compares {suite.compares}")
    for policy in added:
        getattr(makers(), suite.adds or "placement")(policy)
    if options.out:
        make_folder(options.out)
    quick = options.quick and suite.seeds > 0
    numbers = range(options.seed, options.seed + (options.seeds or (1 if quick else suite.seeds))) if suite.seeds else range(0)
    measure = partial(suite.measure, added=added) if suite.measure and added else suite.measure
    rows = measure(numbers, quick, makers()) if measure else _placed(suite, added, numbers, options)
    report, table = suite_report(suite, rows, numbers, quick), suite_table(suite, rows, numbers, quick)
    if options.out:
        points = suite.sweep(options.seed, makers()) if suite.sweep else ()
        write_suite(options.out, suite, rows, report, table, points)
    _print(options.format, report, suite_csv(suite, rows), table)


def _refuse_own(options: BenchOptions) -> None:
    """Refuse what a suite has of its own."""
    for option in ("baseline", "dispatch", "failures", "fidelity", "rollout_policy", "settings", "most_phases"):
        if getattr(options, option):
            hint = {"settings": "--set", "most_phases": "--max-phases"}.get(option, f"--{option.replace('_', '-')}")
            raise typer.BadParameter("a suite has its own", param_hint=hint)


def _placed(suite: Suite, added: Sequence[str], numbers: range, options: BenchOptions) -> list[SuiteRow]:
    """Compare placement policies, the user's among them in every case."""
    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.harness import run_tasks
    from rollmux_env.bench.suite import suite_rows, suite_tasks
    from rollmux_env.report.progress import tracked

    cases = tuple(replace(case, policies=tuple(dict.fromkeys((*case.policies, *added)))) for case in suite.cases)
    suite = replace(suite, cases=cases)
    tasks = suite_tasks(suite, numbers, options.quick, make_dispatch, options.check)
    names = [f"{case.label}: {task.spec}, seed {task.seed}" for case, task in tasks]
    results = tracked(lambda tell: run_tasks(make_policy, [task for _, task in tasks], options.workers, tell), names)
    return suite_rows(suite, [(case, result) for (case, _), result in zip(tasks, results, strict=True)])
