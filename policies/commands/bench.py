"""The command `rollmux bench`, for a stream or a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from policies.commands.options import BenchFormat, FailureRates, Fidelity, MostPhases, Plots
from rollmux_env.command_options import takes
from rollmux_env.commands.options import Seed, WorkloadSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rollmux_env.bench.results import BenchResult, SweepResult
    from rollmux_env.bench.suite import Suite, SuiteCase, SuiteRow


@dataclass(frozen=True)
class BenchOptions:
    """Options of `rollmux bench`, for a stream or a suite. Each field is the option of the same name."""

    target: Annotated[
        str | None, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False)
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
    from rollmux_env.user_code import keep_stdout

    keep_stdout()
    if options.target is not None and options.suite is None:
        if options.quick:
            raise typer.BadParameter("goes with --suite", param_hint="--quick")
        _compare_policies(options.target, options)
    elif options.target is None and options.suite == "leaderboard":
        _enter_leaderboard(options)
    elif options.target is None and options.suite is not None:
        _run_suite(options.suite, options)
    else:
        raise typer.BadParameter("give a scenario file, the name of a workload, or --suite NAME", param_hint="FILE|WORKLOAD")


def _compare_policies(target: str, options: BenchOptions) -> None:
    """Replay a stream under every policy, once or at every value of the swept keys."""
    from rich.console import Group

    from policies import experiments
    from rollmux_env.command_options import parse_pairs
    from rollmux_env.report.folder import results_folder, write_bench
    from rollmux_env.report.progress import tracked
    from rollmux_env.report.results import rows_csv
    from rollmux_env.report.tables import bench_tables, sweep_tables

    asked: dict[str, Any] = {
        "policies": options.policy or ("solo", "rollmux"),
        "seeds": range(options.seed, options.seed + (options.seeds or 1)),
        "baseline": options.baseline,
        "settings": dict(parse_pairs("--set", options.settings or [])),
        "fleet": options.fleet,
        "workers": options.workers,
        "limit_s": options.limit_s,
        "run": tracked,
        **{name: getattr(options, name) for name in ("dispatch", "rollout_policy", "failures", "check", "most_phases")},
        "fidelity": options.fidelity and options.fidelity.value,
    }
    benched: BenchResult | SweepResult
    with results_folder(options.out, "results.json", options.overwrite):
        if not options.sweep:
            benched = one = experiments.bench(target, **asked)
            tables = bench_tables(one, _title(one))
        else:
            benched = many = experiments.sweep(target, experiments.swept(options.sweep), **asked)
            tables = sweep_tables(many, f"{_title(many.points[0].bench, many.keys)}, by {' and '.join(many.keys)}")
        if options.out:
            write_bench(options.out, benched, _plots(benched, options.plots), Group(*tables))
    _print(options.format, benched.as_dict(), rows_csv(benched.rows()), *tables)


def _plots(benched: BenchResult | SweepResult, kind: Plots) -> Mapping[str, bytes]:
    from rollmux_env.bench.results import SweepResult
    from rollmux_env.report.plots import bench_plots, key_plots

    return key_plots(benched, kind.value) if isinstance(benched, SweepResult) else bench_plots(benched, kind.value)


def _title(benched: BenchResult, without: Sequence[str] = ()) -> str:
    """Describe what was replayed and how, without the settings that are varied."""
    asked = "".join(f", {key} {value}" for key, value in benched.settings.items() if key not in without)
    over = f"{len(benched.seeds)} seeds" if len(benched.seeds) > 1 else f"seed {benched.seeds[0]}"
    how = f"{over}, fluid replay"
    if benched.fidelity == "event":
        within = f", rollouts {benched.rollout_policy}" if benched.rollout_policy != "plain" else ""
        dies = f", failures {benched.failures}" if benched.failures else ""
        how = f"{over}, {benched.dispatch} event replay{within}{dies}"
    if benched.fleet is not None and "fleet" not in without:
        load = "" if "=" not in benched.fleet else f" ({benched.fleet.replace('=', ' ')})"
        asked += f", {benched.fleet_nodes} nodes{load}"
    return f"{benched.scenario}{asked}: {len(benched.stream.jobs)} jobs, {how}"


def _print(format: BenchFormat, report: Mapping[str, Any], csv: str, *tables: RenderableType) -> None:
    """Print results in the requested format."""
    from rollmux_env.report.latex import to_latex
    from rollmux_env.report.results import to_json
    from rollmux_env.report.tables import show

    if format is BenchFormat.table:
        show(*tables)
    elif format is BenchFormat.latex:
        typer.echo("".join(map(to_latex, tables)), nl=False)
    else:
        typer.echo(to_json(report) if format is BenchFormat.json else csv, nl=False)


def _enter_leaderboard(options: BenchOptions) -> None:
    """Measure an entrant of the leaderboard, and write its entry."""
    import json

    from rich.text import Text

    from policies.commands.leaderboard import enter
    from rollmux_env.bench.leaderboard.entries import entry_json, file_name
    from rollmux_env.bench.leaderboard.tracks import Entrant
    from rollmux_env.files import write_whole
    from rollmux_env.report.folder import results_folder
    from rollmux_env.report.leaderboard import entry_csv, entry_tables

    _refuse_own(options, "seeds", "quick", "check", "settings", but=("dispatch", "rollout_policy"))
    if len(options.policy or ()) > 1:
        raise typer.BadParameter("the leaderboard takes one policy at a time", param_hint="--policy")
    entrant = Entrant(options.policy[0] if options.policy else None, options.dispatch, options.rollout_policy)
    folder = options.out or Path()
    file = folder / file_name(entrant)
    with results_folder(folder, file.name, options.overwrite):
        entry = enter(entrant, options.workers, options.limit_s)
        write_whole(file, entry_json(entry))
    _print(options.format, json.loads(entry_json(entry)), entry_csv(entry), *entry_tables(entry), Text(f"written: {file}"))


def _run_suite(name: str, options: BenchOptions) -> None:
    """Run a suite and print its table."""
    from policies.makers import makers
    from rollmux_env.bench.suites import find_suite
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import results_folder
    from rollmux_env.report.suites import suite_csv, suite_report, suite_table, write_suite

    _refuse_own(options)
    suite, added = find_suite(name, options.settings or ()), options.policy or []
    if suite.measure is not None and added and suite.adds is None:
        raise InputError(f"--policy {added[0]}: the suite {name} compares {suite.compares}")
    if suite.measure is not None and options.limit_s is not None:
        raise InputError(f"--time-limit: the suite {name} runs in this process alone")
    for policy in added:
        getattr(makers(), suite.adds or "placement")(policy)
    quick = options.quick and suite.seeds > 0
    numbers = range(options.seed, options.seed + (options.seeds or (1 if quick else suite.seeds))) if suite.seeds else range(0)
    measure = partial(suite.measure, added=added) if suite.measure and added else suite.measure
    with results_folder(options.out, f"{suite.name}.json", options.overwrite):
        rows = measure(numbers, quick, makers()) if measure else _replay_cases(suite, added, numbers, options)
        report, table = suite_report(suite, rows, numbers, quick), suite_table(suite, rows, numbers, quick)
        if options.out:
            points = suite.sweep(options.seed, makers()) if suite.sweep else ()
            write_suite(options.out, suite, rows, report, table, points, options.plots.value)
    _print(options.format, report, suite_csv(suite, rows), table)


def _refuse_own(options: BenchOptions, *more: str, but: Sequence[str] = ()) -> None:
    """Refuse options that a suite sets itself.

    Args:
        options: Options of the command.
        more: Names of further options to refuse.
        but: Names of options to allow.
    """
    own = ("baseline", "fleet", "dispatch", "failures", "fidelity", "rollout_policy", "sweep", "most_phases", *more)
    for option in own:
        if option not in but and getattr(options, option):
            hint = {"settings": "--set", "most_phases": "--max-phases"}.get(option, f"--{option.replace('_', '-')}")
            raise typer.BadParameter("a suite has its own", param_hint=hint)


def _replay_cases(suite: Suite, added: Sequence[str], numbers: range, options: BenchOptions) -> list[SuiteRow]:
    """Replay every case of a suite under its placement policies and under those that the user added."""
    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.harness import can_replay, run_tasks
    from rollmux_env.bench.suite import suite_rows, suite_tasks
    from rollmux_env.report.progress import tracked

    def replayed(case: SuiteCase) -> tuple[str, ...]:
        """Return the policies of a case that support its kind of replay."""
        names = dict.fromkeys((*case.policies, *added))
        return tuple(name for name in names if can_replay(make_policy(name, 0), case.dispatch is not None))

    cases = tuple(replace(case, policies=replayed(case)) for case in suite.cases)
    suite = replace(suite, cases=cases)
    tasks = suite_tasks(suite, numbers, options.quick, make_dispatch, options.check)
    replays = [task for _, task in tasks]
    names = [f"{case.label}: {task.spec}, seed {task.seed}" for case, task in tasks]
    results = tracked(lambda report: run_tasks(make_policy, replays, options.workers, report, options.limit_s), names)
    return suite_rows(suite, [(case, result) for (case, _), result in zip(tasks, results, strict=True)])
