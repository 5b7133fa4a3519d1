"""The commands of this package; `bench` is in `commands`. Heavy imports are inside the functions, so that `--help` is fast."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from policies.commands.bench import bench
from policies.commands.options import FailureRates, File, Format, MostPhases, PolicyName, TableOrJson, find_scenario
from rollmux_env.cli import Seed, WorkloadSettings


def trace(
    target: Annotated[
        str, typer.Argument(metavar="FILE|WORKLOAD", help="A scenario file, or the name of a workload.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the pictures to this folder.", show_default=False)],
    policy: PolicyName = "rollmux",
    dispatch: Annotated[
        str,
        typer.Option("--dispatch", metavar="NAME", help="Dispatch policy (docs/reference/dispatch.md)."),
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
    failures: FailureRates = None,
    settings: WorkloadSettings = None,
    seed: Seed = 0,
    most_phases: MostPhases = None,
) -> None:
    """Draw an event replay: a Gantt chart of a group (PNG) and a trace for ui.perfetto.dev.

    Example: `rollmux trace micro-rollout-heavy --policy rollmux --out pictures`
    """
    from policies.dispatch import make_dispatch
    from policies.experiments import make_failures
    from policies.registry import make_runnable
    from policies.rollout import migrating
    from policies.rollout.places import check_sizes, make_at
    from rollmux_env.progress import ProgressLines
    from rollmux_env.replay.event import Watch, replay_events
    from rollmux_env.report.pictures import write_pictures
    from rollmux_env.user_code import keep_stdout, seeded

    keep_stdout()
    placement, inside = make_runnable(policy, seed), make_at(rollout_policy, "replay")
    dispatch = migrating(dispatch, inside)
    order, dying = make_dispatch(dispatch), make_failures(failures)
    scenario = find_scenario(target, seed, settings or [])
    check_sizes(rollout_policy, [scenario])
    with ProgressLines(f"replaying {target}") as progress, seeded(seed):

        def tell(phases: int, departed: int) -> None:
            progress.tell(f"{phases:,} phases, {departed:,} of {len(scenario.jobs):,} jobs done")

        watch = Watch(most_phases=most_phases, tell=tell, keep_phases=True)
        run = replay_events(scenario, placement, order, seed, watch, rollout=inside, failures=dying)
    for line in write_pictures(out, run, f"{target}, {policy}, {dispatch}", group, from_h, hours):
        typer.echo(line)


def allocate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A size such as 7B, or a config.json.", show_default=False)],
    budget: Annotated[
        str, typer.Option("--budget", metavar="GPU=COUNT,...", help="GPUs that the job may have.", show_default=False)
    ],
    staleness: Annotated[int, typer.Option("--staleness", help="Most versions that a sample's weights may be old, 0 to 64.")] = 4,
    allocator: Annotated[str, typer.Option("--allocator", metavar="NAME", help="hex, exhaustive or uniform.")] = "hex",
    machine: Annotated[int, typer.Option("--gpus-per-node", help="GPUs of a node.")] = 8,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Work of an iteration: responses, prompt_tokens, response_tokens, cap, updates; can be repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Scenario file with the job as planned.", show_default=False)
    ] = None,
    shape_budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="GPU=COUNT,...",
            help="Another budget, whose plan is a shape of the job in --out; can be repeated.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[TableOrJson, typer.Option("--format", help="Output format.")] = TableOrJson.table,
) -> None:
    """Divide GPUs of several types between the training and the rollouts of one asynchronous job (docs/reference/allocation.md).

    Examples: `rollmux allocate 7B --budget H800=24,H20=24 --staleness 4`

    `rollmux allocate 7B --set responses=1024 --budget H800=8,H20=16 --shape H800=16,H20=32 --out job.yaml`
    """
    import time

    from policies.allocation import make_allocator
    from rollmux_env.report.allocation import allocation_report, allocation_table
    from rollmux_env.report.results import to_json
    from rollmux_env.timing.allocation import parse_budget
    from rollmux_env.timing.work import make_work

    divide = make_allocator(allocator)
    work = make_work(model, staleness, settings or [])
    gpus = parse_budget(budget, machine)
    begin = time.perf_counter()
    allocation = divide(work, gpus)
    planner_s = time.perf_counter() - begin
    if shape_budgets and out is None:
        raise typer.BadParameter("goes with --out", param_hint="--shape")
    if out is not None:
        from rollmux_env.timing.allocated_job import allocated_scenario
        from rollmux_env.workloads.text import write_scenario

        others = [divide(work, parse_budget(text, machine)) for text in shape_budgets or []]
        write_scenario(out, allocated_scenario(Path(model).stem, [allocation, *others]))
    if format is TableOrJson.json:
        typer.echo(to_json(allocation_report(model, allocator, allocation)), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(allocation_table(model, allocator, allocation, planner_s))


class ShapesFormat(StrEnum):
    """Output formats of `rollmux shapes`."""

    table = "table"
    json = "json"
    yaml = "yaml"


def shapes(
    file: File,
    job: Annotated[
        str | None, typer.Option("--job", "-j", metavar="ID", help="Only this job. (default: all with a model)", show_default=False)
    ] = None,
    most_nodes: Annotated[int, typer.Option("--max-nodes", min=1, max=64, help="Most nodes of a phase.")] = 4,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            "--pool", metavar="NAME", help="Pool that phases may use beside their own; can be repeated.", show_default=False
        ),
    ] = None,
    format: Annotated[
        ShapesFormat, typer.Option("--format", help="Output format; yaml is the list `shapes` of a scenario file.")
    ] = ShapesFormat.table,
) -> None:
    """Print how long the phases of jobs with a model take on other numbers of nodes, and what that costs.

    Example: `rollmux shapes examples/models.yaml --job math-7b`
    """
    from rollmux_env.errors import InputError
    from rollmux_env.report.job_shapes import shapes_report, shapes_tables, shapes_yaml
    from rollmux_env.report.results import to_json
    from rollmux_env.scenario import load_scenario
    from rollmux_env.timing.shapes import shapes_of
    from rollmux_env.validation_errors import not_one_of

    scenario = load_scenario(file)
    chosen = [one for one in scenario.jobs if (one.model is not None if job is None else one.id == job)]
    if not chosen:
        if job is not None:
            raise InputError(f"--job: {not_one_of(job, [one.id for one in scenario.jobs])}")
        raise InputError(f"{file}: no job has a model, from which the seconds of other shapes could be predicted")
    every = [shapes_of(one, scenario.cluster, most_nodes, pool or [], file.parent) for one in chosen]
    if format is ShapesFormat.json:
        typer.echo(to_json([shapes_report(one) for one in every]), nl=False)
    elif format is ShapesFormat.yaml:
        typer.echo(shapes_yaml(every), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(*(shapes_tables(one) for one in every))


def plan(
    file: File,
    policy: PolicyName = "rollmux",
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table,
    seed: Seed = 0,
) -> None:
    """Place the jobs of a scenario in order of arrival, without departures, and say why the others are queued.

    Example: `rollmux plan examples/quickstart.yaml --policy rollmux`
    """
    from policies.registry import make_policy
    from rollmux_env.bench.harness import OwnReplay
    from rollmux_env.errors import InputError
    from rollmux_env.replay.admission import admit_all
    from rollmux_env.report.results import plan_csv, plan_report, to_json
    from rollmux_env.scenario import load_scenario
    from rollmux_env.user_code import guarded, keep_stdout, seeded

    keep_stdout()
    scenario = load_scenario(file)
    with seeded(seed):
        contender = make_policy(policy, seed)
        if hasattr(contender, "admit_all"):
            admission = guarded(contender.admit_all)(scenario)
        elif isinstance(contender, OwnReplay):
            raise InputError(f"--policy {policy}: it makes no groups, so there is nothing to plan; `rollmux bench` runs it")
        else:
            admission = admit_all(scenario, contender)
    if format is Format.json:
        typer.echo(to_json(plan_report(policy, admission)), nl=False)
    elif format is Format.csv:
        typer.echo(plan_csv(admission.decisions), nl=False)
    else:
        from rollmux_env.report.job_shapes import placed_shapes
        from rollmux_env.report.tables import plan_tables, show

        show(plan_tables(policy, admission), *placed_shapes(admission.decisions, scenario.jobs))


def explain(
    file: File,
    job: Annotated[str, typer.Option("--job", "-j", metavar="ID", help="Job whose placement to explain.", show_default=False)],
    policy: PolicyName = "rollmux",
    format: Annotated[TableOrJson, typer.Option("--format", help="Output format.")] = TableOrJson.table,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Maximum rows of the table.")] = 40,
    seed: Seed = 0,
) -> None:
    """Explain a placement: list every alternative of one decision.

    Example: `rollmux explain examples/quickstart.yaml --policy rollmux --job code-7b`
    """
    from policies.registry import make_runnable
    from rollmux_env.replay.explain import explain as explain_decision
    from rollmux_env.report.results import to_json
    from rollmux_env.scenario import load_scenario
    from rollmux_env.user_code import keep_stdout, seeded

    keep_stdout()
    scenario = load_scenario(file)
    with seeded(seed):
        report = {"policy": policy, **explain_decision(scenario, make_runnable(policy, seed), job)}
    if format is TableOrJson.json:
        typer.echo(to_json(report), nl=False)
    else:
        from rollmux_env.report.job_shapes import shapes_of_job
        from rollmux_env.report.tables import alternatives_table, show

        show(alternatives_table(report, rows), *shapes_of_job(next(one for one in scenario.jobs if one.id == job)))


def mount(app: typer.Typer) -> None:
    """Add the commands of this package."""
    for command in (plan, bench, explain, trace, shapes, allocate):
        app.command(rich_help_panel="Schedule")(command)
