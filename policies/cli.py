"""`rollmux plan`, `bench` and `explain`. Heavy imports are inside the commands, so that `rollmux --help` is fast."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollmux_env.cli import Seed, make_scenario, with_workload_options

if TYPE_CHECKING:
    from rollmux_env.scenario import Scenario

File = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file.", show_default=False)]
PolicyName = Annotated[str, typer.Option("--policy", "-p", metavar="NAME", help="A policy by name, or `module:Class` of your own.")]


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"
    csv = "csv"


class Fidelity(StrEnum):
    """How much of a run is simulated."""

    fluid = "fluid"
    event = "event"


class TableOrJson(StrEnum):
    """How an explanation is printed."""

    table = "table"
    json = "json"


def mount(app: typer.Typer) -> None:
    """Add the commands of this floor."""
    app.command(rich_help_panel="Schedule")(plan)
    app.command(rich_help_panel="Schedule")(with_workload_options(bench))
    app.command(rich_help_panel="Schedule")(explain)
    app.command(rich_help_panel="Schedule")(with_workload_options(trace))


def plan(
    file: File,
    policy: PolicyName = "rollmux",
    format: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
    seed: Seed = 0,
) -> None:
    """Admit the jobs in order of arrival; nobody leaves.

    Example: `rollmux plan examples/quickstart.yaml --policy rollmux`
    """
    from policies.registry import make_policy
    from rollmux_env.bench.harness import OwnReplay
    from rollmux_env.errors import InputError
    from rollmux_env.replay.admission import admit_all
    from rollmux_env.report.results import plan_csv, plan_report, to_json
    from rollmux_env.scenario import load_scenario

    scenario = load_scenario(file)
    contender = make_policy(policy, seed)
    if hasattr(contender, "admit_all"):
        admission = contender.admit_all(scenario)
    elif isinstance(contender, OwnReplay):
        raise InputError(f"--policy {policy}: it makes no groups, so there is nothing to plan; `rollmux bench` runs it")
    else:
        admission = admit_all(scenario, contender)
    if format is Format.json:
        typer.echo(to_json(plan_report(policy, admission)), nl=False)
    elif format is Format.csv:
        typer.echo(plan_csv(admission.decisions), nl=False)
    else:
        from rollmux_env.report.tables import plan_tables, show

        show(plan_tables(policy, admission))


def explain(
    file: File,
    job: Annotated[str, typer.Option("--job", "-j", metavar="ID", help="The job whose placement to explain.", show_default=False)],
    policy: PolicyName = "rollmux",
    format: Annotated[TableOrJson, typer.Option("--format", help="How to print it.")] = TableOrJson.table,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Most alternatives in the table.")] = 40,
    seed: Seed = 0,
) -> None:
    """Why this placement and not that one: every alternative of one decision.

    Example: `rollmux explain examples/quickstart.yaml --policy rollmux --job code-7b`
    """
    from policies.registry import make_runnable
    from rollmux_env.replay.explain import explain as explain_decision
    from rollmux_env.report.results import to_json
    from rollmux_env.scenario import load_scenario

    report = {"policy": policy, **explain_decision(load_scenario(file), make_runnable(policy, seed), job)}
    if format is TableOrJson.json:
        typer.echo(to_json(report), nl=False)
    else:
        from rollmux_env.report.tables import alternatives_table, show

        show(alternatives_table(report, rows))


def bench(
    workload: dict[str, Any],
    target: Annotated[
        str | None, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False)
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="In place of a file: a part of the paper's evaluation.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A suite's shorter streams, one seed.")] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", metavar="NAME", help="A policy by name, or `module:Class`; repeat it. [default: solo, rollmux]"
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="NAME", help="What savings are relative to. [default: the first policy]")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
    seed: Seed = 0,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="How many seeds, from --seed on: mean and 95% interval. [default: 1, or the suite's]"),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write results and plots there.", show_default=False)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Assert the invariants after every instant.")] = False,
    fidelity: Annotated[Fidelity, typer.Option("--fidelity", help="Steady periods, or every phase with a sampled duration.")] = (
        Fidelity.fluid
    ),
    dispatch: Annotated[
        str | None,
        typer.Option(
            "--dispatch", metavar="NAME", help="Which phase runs next, in event replays. [default: round-robin]", show_default=False
        ),
    ] = None,
) -> None:
    """Compare policies on a scenario file or a workload: dollars, SLOs, GPUs.

    Examples: `rollmux bench examples/quickstart.yaml -p solo -p rollmux`

    `rollmux bench production --stays fixed --seeds 5 -p solo -p rollmux`

    `rollmux bench --suite production --quick`
    """
    if (target is None) == (suite is None):
        raise typer.BadParameter("give a scenario file, the name of a workload, or --suite NAME", param_hint="FILE|WORKLOAD")
    if suite is not None:
        fixed = {"--baseline": baseline, "--dispatch": dispatch, "--fidelity event": fidelity is Fidelity.event, **workload}
        for option, value in fixed.items():
            if value:
                raise typer.BadParameter("a suite has its own", param_hint=option)
        _run_suite(suite, quick, policy or [], seed, seeds, workers, out, format, check)
        return
    assert target is not None
    if quick:
        raise typer.BadParameter("goes with --suite", param_hint="--quick")
    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.comparison import compare
    from rollmux_env.bench.harness import Task, run_tasks
    from rollmux_env.report.folder import make_folder, write_bench
    from rollmux_env.report.progress import tracked
    from rollmux_env.report.results import bench_csv, bench_report, to_json

    names = list(dict.fromkeys(policy or ["solo", "rollmux"]))
    base = baseline or names[0]
    if base not in names:
        raise typer.BadParameter(f"{base} is not among the policies {', '.join(names)}", param_hint="--baseline")
    if dispatch is not None and fidelity is Fidelity.fluid:
        raise typer.BadParameter("a fluid replay runs no single phases; add --fidelity event", param_hint="--dispatch")
    rule = make_dispatch(dispatch or "round-robin") if fidelity is Fidelity.event else None
    for name in names:
        make_policy(name)
    if out:
        make_folder(out)
    scenarios = {number: _scenario(target, number, workload) for number in range(seed, seed + (seeds or 1))}
    tasks = [Task(name, number, scenarios[number], rule, check) for number in scenarios for name in names]
    results = tracked(run_tasks(make_policy, tasks, workers), [f"{task.spec}, seed {task.seed}" for task in tasks])
    rows = compare(results, base)
    report = bench_report(target, fidelity.value, results, base)
    if out:
        write_bench(out, report, scenarios, results, rows, base)
    if format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif format is Format.csv:
        typer.echo(bench_csv(results), nl=False)
    else:
        from rollmux_env.report.tables import comparison_table, show

        over = f"{seeds} seeds" if seeds and seeds > 1 else f"seed {seed}"
        options = "".join(f", {key} {value}" for key, value in workload.items())
        replay = f"{dispatch or 'round-robin'} event replay" if rule else "fluid replay"
        show(comparison_table(f"{target}{options}: {len(scenarios[seed].jobs)} jobs, {over}, {replay}", rows, base))


def _run_suite(
    name: str,
    quick: bool,
    added: list[str],
    seed: int,
    seeds: int | None,
    workers: int,
    out: Path | None,
    format: Format,
    check: bool,
) -> None:
    """Run a suite, with policies of the user's added to every case."""
    from dataclasses import replace

    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.harness import run_tasks
    from rollmux_env.bench.suite import suite_rows, suite_tasks
    from rollmux_env.bench.suites import find_suite
    from rollmux_env.files import write_whole
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.progress import tracked
    from rollmux_env.report.results import to_json
    from rollmux_env.report.suites import suite_csv, suite_plots, suite_report, suite_table

    chosen = find_suite(name)
    for policy in added:
        make_policy(policy)
    cases = tuple(replace(case, policies=tuple(dict.fromkeys((*case.policies, *added)))) for case in chosen.cases)
    chosen = replace(chosen, cases=cases)
    numbers = range(seed, seed + (seeds or (1 if quick else chosen.seeds)))
    if out:
        make_folder(out)
    tasks = suite_tasks(chosen, numbers, quick, make_dispatch, check)
    names = [f"{case.label}: {task.spec}, seed {task.seed}" for case, task in tasks]
    results = tracked(run_tasks(make_policy, [task for _, task in tasks], workers), names)
    rows = suite_rows(chosen, [(case, result) for (case, _), result in zip(tasks, results, strict=True)])
    report = suite_report(chosen, rows, numbers, quick)
    if out:
        write_whole(out / f"{name}.json", to_json(report))
        write_whole(out / f"{name}.csv", suite_csv(chosen, rows))
        for file, data in suite_plots(chosen, rows).items():
            write_whole(out / file, data)
    if format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif format is Format.csv:
        typer.echo(suite_csv(chosen, rows), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(suite_table(chosen, rows, numbers, quick))


def trace(
    target: Annotated[
        str, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False)
    ],
    workload: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the pictures there.", show_default=False)],
    policy: PolicyName = "rollmux",
    dispatch: Annotated[str, typer.Option("--dispatch", metavar="NAME", help="Which waiting phase runs next.")] = "round-robin",
    group: Annotated[
        int | None, typer.Option("--group", metavar="N", help="Show this group. [default: the one with the most members]")
    ] = None,
    from_h: Annotated[
        float | None, typer.Option("--from", metavar="HOURS", help="Show from then on. [default: where it has the most members]")
    ] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", metavar="HOURS", help="Show so much. [default: six meta-iterations]")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Draw an event replay: a Gantt of a group (PNG) and a trace for ui.perfetto.dev.

    Example: `rollmux trace micro-rollout-heavy --policy rollmux --out pictures`
    """
    from policies.dispatch import make_dispatch
    from policies.registry import make_runnable
    from rollmux_env.replay.event import replay_events
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.pictures import write_pictures

    placement, order = make_runnable(policy, seed), make_dispatch(dispatch)
    scenario = _scenario(target, seed, workload)
    make_folder(out)
    run = replay_events(scenario, placement, order, seed, keep_phases=True)
    for line in write_pictures(out, run, f"{target}, {policy}, {dispatch}", group, from_h, hours):
        typer.echo(line)


def _scenario(target: str, seed: int, workload: dict[str, Any]) -> Scenario:
    """The scenario of a file, the same for every seed, or of a workload."""
    from rollmux_env.errors import InputError
    from rollmux_env.scenario import load_scenario
    from rollmux_env.workloads import WORKLOADS

    if target in WORKLOADS:
        return make_scenario(target, seed, workload)
    if not Path(target).suffix and not Path(target).exists():
        raise InputError(f"{target}: is neither a file nor a workload; workloads are {', '.join(WORKLOADS)}")
    if workload:
        raise InputError(f"{target}: a scenario file takes no options of a workload ({', '.join(workload)})")
    return load_scenario(target)
