"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.bench.comparison import ComparisonRow, by_policy
from rollmux_env.bench.differences import Difference
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean, interval_note
from rollmux_env.bench.results import BenchResult, SweepResult, draws_nothing
from rollmux_env.replay.admission import Admission, Decision
from rollmux_env.replay.metrics import JobResult, Metrics
from rollmux_env.report.fitting import fitted
from rollmux_env.report.waiting import fleet_columns, fleet_notes, idle_notes, is_owned, jobs_wait, load_notes
from rollmux_env.report.yardsticks import yardstick_notes

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
"""Function of a row that returns the text of its cell, by heading."""

WIDTH = 120
"""Number of columns if standard output is no terminal."""

_WIDE = 1e9  # larger numbers would widen their column beyond the terminal
_WHYS = 3  # largest number of reasons that `explain` prints
_NOTES, _NAMED = 8, 4  # largest number of notes on broken SLOs below a comparison, and of jobs that a note names


def show(*parts: RenderableType) -> None:
    """Print to standard output, as wide as the terminal, or `WIDTH` columns wide for a file or a pipe."""
    console = Console(markup=False)  # users' names may contain brackets
    if not console.is_terminal:
        console = Console(width=WIDTH, markup=False)
    console.print(fitted(Group(*parts), console.width))


def heading(title: str) -> Text:
    """Return a title above a table, as wide as the terminal."""
    return Text(title, style="bold")


def make_table(*columns: str, left: int = 1) -> Table:
    """Return an empty table in the project's style; all columns but the first `left` hold figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        is_name = position < left
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=is_name)
    return table


def table_of(rows: Iterable[T], columns: Columns[T], left: int = 1, style: Callable[[T], str] = lambda row: "") -> Table:
    """Return a table with one line per row.

    Args:
        rows: Rows.
        columns: Function of a row that returns the text of its cell, by heading.
        left: Number of leading columns that hold names; the others hold figures.
        style: Function of a row that returns the style of its line.
    """
    table = make_table(*columns, left=left)
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()), style=style(row))
    return table


def figure(value: float | None, unit: str = "", form: str = ".2f") -> str:
    """Format a number with its unit, in scientific notation from `_WIDE`, or an empty text for None."""
    if value is None:
        return ""
    return f"{value:{form if abs(value) < _WIDE else '.4g'}}{unit}"


def ratio_text(mean: Mean | None, digits: int = 2) -> str:
    """Format a ratio, or a dash if it divides by 0."""
    return "-" if mean is None else mean.text(digits, "x")


_BOUND_COLUMNS: dict[str, Callable[[ComparisonRow], str]] = {
    "$ / bound": lambda row: ratio_text(row.over_bound),
    "$/work-h / bound": lambda row: ratio_text(row.over_bound_per_work),
}
_BOUND_NOTE = "bound: no policy that places jobs on arrival and keeps every SLO costs less; - where that is not so"


def comparison_table(
    title: str, rows: Sequence[ComparisonRow], baseline: str, seeds: int = 1, owned: bool = False
) -> RenderableType:
    """Return the table of `bench`, with one line per policy over the seeds.

    Args:
        title: Title of the table.
        rows: Figures of each policy.
        baseline: Policy with which the others are compared; `saving` is its cost over theirs.
        seeds: Number of seeds.
        owned: Whether nodes are owned, so that their dollars say little and are left out.
    """
    observed, lost = rows[0].slo_attainment_observed is not None, rows[0].lost_work_h is not None
    columns: dict[str, Callable[[ComparisonRow], str]] = {
        "policy": lambda row: row.policy,
        "cost $": lambda row: row.cost_usd.text(0),
        "saving $": lambda row: ratio_text(row.saving),
        "$/work-h": lambda row: row.usd_per_work_hour.text(2),
        "saving $/work-h": lambda row: ratio_text(row.saving_per_work),
        "SLO kept (same draws)" if observed else "SLO kept": _slos,
        "slowdown": lambda row: f"{(row.slowdown_observed or row.slowdown).mean:.2f}x",
        "lost work-h": lambda row: "" if row.lost_work_h is None else row.lost_work_h.text(1),
        "peak GPUs": lambda row: " + ".join(f"{gpus:.0f}" for gpus in row.gpus.values()),
        "packed": lambda row: _percent(row.packed),
        "decision": lambda row: figure(row.decision_ms, " ms"),
    }
    if not lost:
        del columns["lost work-h"]
    if bounded := any(row.bound_usd is not None for row in rows):
        after = [*columns].index("saving $/work-h") + 1
        columns = dict([*columns.items()][:after]) | _BOUND_COLUMNS | dict([*columns.items()][after:])
    if owned:
        columns = {heading: text for heading, text in columns.items() if "$" not in heading}
    notes = [
        *([] if owned else [f"saving: {baseline}'s dollars over the policy's"]),
        f"slowdown: mean over jobs, against the same job alone{' with the same durations' if observed else ''}",
        f"peak GPUs: {' + '.join(rows[0].gpus)}",
        "packed: share of jobs that joined a group",
        f"decision: median{interval_note(seeds)}",
        "SLO kept: against worst cases (against the same job alone with the same draws)"
        if observed
        else "SLO kept: of steady periods, --fidelity event observes waits and switches",
        *(["lost work: what jobs did again after failures"] if lost else []),
        *([_BOUND_NOTE] if bounded else []),
        *yardstick_notes([rows]),
    ]
    table = table_of(rows, columns, style=lambda row: "dim" if row.policy == baseline else "")
    return Group(heading(title), table, Text("; ".join(notes), style="dim"))


def bench_tables(benched: BenchResult, title: str) -> list[RenderableType]:
    """Return the comparison of `bench`, with notes on broken SLOs and on policies that were left out.

    Where jobs wait, completion and waiting come first.

    A scenario with users or priorities also has a table of them.
    """
    rows, seeds, parts = benched.summary, len(benched.seeds), list[RenderableType]()
    if jobs_wait(rows):
        parts.append(_waiting_table(title, rows, benched.baseline, seeds))
        title = "Dollars"
    owned = is_owned(benched)
    parts.append(comparison_table("Sharing" if owned else title, rows, benched.baseline, seeds, owned))
    notes = [*load_notes(benched), *idle_notes(benched)]
    notes += [f"{policy} is left out: {why}" for policy, why in benched.left_out.items()]
    if draws_nothing(benched.results):
        notes.append("seeds: all give the same here, since nothing is drawn: --fidelity event draws durations that have `actual`")
    for run in benched.runs:
        if not all(job.keeps_slo for job in run.jobs):
            over = f", seed {run.seed}" if len(benched.seeds) > 1 else ""
            notes.append(f"{run.policy}{over}: broken SLOs: {broken_words(run.jobs)}")
    most = max(_NOTES, len(benched.left_out))
    parts += [Text(note, style="dim") for note in notes[:most]]
    if len(notes) > most:
        parts.append(Text(f"{len(notes) - most} more such lines: jobs.csv of --out has every job", style="dim"))
    if benched.stream.queue_key is not None:
        parts.append(accounts_table(benched.results))
    return parts


def _waiting_table(title: str, rows: Sequence[ComparisonRow], baseline: str, seeds: int) -> RenderableType:
    """Return the table of completion and waiting, with one line per policy over the seeds."""
    columns: dict[str, Callable[[ComparisonRow], str]] = {"policy": lambda row: row.policy, **fleet_columns(rows)}
    table = table_of(rows, columns, style=lambda row: "dim" if row.policy == baseline else "")
    return Group(heading(title), table, Text("; ".join(fleet_notes(rows, baseline, seeds)), style="dim"))


def broken_words(jobs: Sequence[JobResult]) -> str:
    """Return the jobs whose SLO is broken, the worst first, with slowdown and SLO, such as `a 1.31x of 1.20x`."""
    broken = sorted((job for job in jobs if not job.keeps_slo), key=lambda job: -job.shown_slowdown / job.slo)
    words = [f"{job.job} {_above(job.shown_slowdown, job.slo)}x of {job.slo:.9g}x" for job in broken[:_NAMED]]
    return ", ".join(words) + (f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else "")


def _above(value: float, limit: float) -> str:
    """Format a value that is above a limit with at least three digits, and as many as show that it is."""
    texts = (f"{value:.{digits}f}" for digits in range(3, 10))
    return next((text for text in texts if float(text) > limit), f"{value:.9f}")


def jobs_table(jobs: Sequence[JobResult]) -> Table:
    """Return the outcome of each job, one line per job, red if its SLO is broken, as observed if it was observed."""
    columns: dict[str, Callable[[JobResult], str]] = {
        "job": lambda job: job.job,
        "iterations": lambda job: f"{job.iterations:,.1f}",
        "queueing h": lambda job: f"{job.queueing_s / 3600:.2f}",
        "completion h": lambda job: f"{job.completion_s / 3600:.2f}",
        "queue h": lambda job: figure(job.queue_h),
        "stretch": lambda job: figure(job.stretch),
        "rho": lambda job: figure(job.rho),
        "parks": lambda job: figure(job.parks, form="d"),
        "slowdown": lambda job: f"{job.slowdown:.3f}x" if job.slo_kept else f"{_above(job.slowdown, job.slo)}x",
        "observed": lambda job: figure(job.slowdown_observed, "x", ".3f"),
        "SLO": lambda job: f"{job.slo:.9g}x",
        "kept": lambda job: "kept" if job.keeps_slo else "broken",
        "$": lambda job: figure(job.usd, form=",.2f"),
        "alone $": lambda job: f"{job.usd_alone:,.2f}",
        "saving": lambda job: figure(job.saving, "x"),
    }
    if all(job.slowdown_observed is None for job in jobs):
        del columns["observed"]
    waited = any(job.completion_h is not None for job in jobs)
    for heading in ("queueing h",) if waited else ("queue h", "stretch", "rho", "parks"):
        del columns[heading]
    return table_of(jobs, columns, style=lambda job: "" if job.keeps_slo else "red")


def differences_table(differences: Sequence[Difference]) -> RenderableType:
    """Return the differences of every two policies, paired by seed."""
    columns: dict[str, Callable[[Difference], str]] = {
        "policy": lambda one: one.policy,
        "less the other": lambda one: one.other,
        "cost $": lambda one: one.cost_usd.text(0),
        "$/work-h": lambda one: one.usd_per_work_hour.text(2),
        "slowdown": lambda one: one.slowdown.text(3),
        "other's cost over its own": lambda one: ratio_text(one.cost_ratio, 3),
        "p of $": lambda one: p_text(one.p_holm.get("cost_usd")),
        "p of $/work-h": lambda one: p_text(one.p_holm.get("usd_per_work_hour")),
    }
    if all(one.mean_completion_h is not None for one in differences):
        columns["completion h"] = lambda one: "" if one.mean_completion_h is None else one.mean_completion_h.text(2)
        columns["p of completion"] = lambda one: p_text(one.p_holm.get("mean_completion_h"))
    note = "p: paired t-test over the seeds, after Holm's correction for all pairs"
    return Group(heading("Differences, paired by seed"), table_of(differences, columns, left=2), Text(note, style="dim"))


def p_text(value: float | None) -> str:
    """Format a p-value; a dash if there is none."""
    if value is None:
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def sweep_tables(benched: SweepResult, title: str) -> list[RenderableType]:
    """Return the tables of `bench --sweep`.

    The first has one line per point of the grid and policy, the second the differences of every two policies at each point. Where
    jobs wait, a table of completion and waiting comes before both.
    """
    first = benched.points[0].bench
    owned = all(is_owned(point.bench) for point in benched.points)
    bounded = not owned and any(row.bound_usd is not None for point in benched.points for row in point.bench.summary)
    how = "SLOs and slowdowns are " + ("as observed" if first.fidelity == "event" else "of steady periods")
    notes = [
        *([] if owned else [f"saving: {first.baseline}'s dollars over the policy's"]),
        f"{how}{interval_note(len(first.seeds))}",
        *([_BOUND_NOTE] if bounded else []),
        *yardstick_notes([point.bench.summary for point in benched.points]),
    ]
    parts: list[RenderableType] = [heading(title), *_swept_waiting(benched)]
    if len(parts) > 1:
        parts.append(heading("Sharing" if owned else "Dollars"))
    parts += [_swept_sharing(benched, owned, bounded), Text("; ".join(notes), style="dim")]
    pairs = _swept_pairs(benched, owned)
    if pairs.row_count:
        parts += [heading("Differences of every two policies, paired by seed"), pairs]
    return parts


def _swept_sharing(benched: SweepResult, owned: bool, bounded: bool) -> Table:
    """Return the table of a sweep with a line per point and policy, with dollars unless the nodes are owned."""
    bounds = _BOUND_COLUMNS if bounded else {}
    dollars = () if owned else ("cost $", "saving $", "$/work-h", "saving $/work-h", *bounds)
    table = make_table(*benched.keys, "policy", *dollars, "SLO kept", "slowdown", left=len(benched.keys) + 1)
    for point in benched.points:
        table.add_section()
        values, same = [*point.swept.values()], [""] * len(benched.keys)
        for k, row in enumerate(point.bench.summary):
            share = row.slo_attainment_observed or row.slo_attainment
            slowdown = row.slowdown_observed or row.slowdown
            figures = [_percent(share.mean), f"{slowdown.mean:.2f}x"]
            if not owned:
                usd = row.cost_usd.text(0), ratio_text(row.saving), row.usd_per_work_hour.text(2), ratio_text(row.saving_per_work)
                figures = [*usd, *(text(row) for text in bounds.values()), *figures]
            table.add_row(*(same if k else values), row.policy, *figures)
    return table


def _swept_pairs(benched: SweepResult, owned: bool) -> Table:
    """Return the table of the differences of every two policies at each point of a sweep."""
    waits = jobs_wait(benched.points[0].bench.summary)
    columns = ["completion h", "other's completion / own"] if waits else []
    columns += ["slowdown"] if owned else ["cost $", "$/work-h", "slowdown", "other's cost / own"]
    table = make_table(*benched.keys, "policy", "less the other", *columns, left=len(benched.keys) + 2)
    for point in benched.points:
        table.add_section()
        values, same = [*point.swept.values()], [""] * len(benched.keys)
        for k, one in enumerate(point.bench.differences):
            figures = [one.cost_usd.text(0), one.usd_per_work_hour.text(2), one.slowdown.text(3), ratio_text(one.cost_ratio, 3)]
            if owned:
                figures = [one.slowdown.text(3)]
            if waits:
                hours = one.mean_completion_h
                figures = [*(("", "") if hours is None else (hours.text(2), ratio_text(one.completion_ratio))), *figures]
            table.add_row(*(same if k else values), one.policy, one.other, *figures)
    return table


def _swept_waiting(benched: SweepResult) -> list[RenderableType]:
    """Return the table of completion and waiting of a sweep and its notes, or nothing where no job waits."""
    every = [row for point in benched.points for row in point.bench.summary]
    if not jobs_wait(every):
        return []
    columns = {heading: text for heading, text in fleet_columns(every).items() if heading != "parks"}  # for want of room
    table = make_table(*benched.keys, "policy", *columns, left=len(benched.keys) + 1)
    for point in benched.points:
        table.add_section()
        values, same = [*point.swept.values()], [""] * len(benched.keys)
        for k, row in enumerate(point.bench.summary):
            table.add_row(*(same if k else values), row.policy, *(text(row) for text in columns.values()))
    first = benched.points[0].bench
    return [table, Text("; ".join(fleet_notes(every, first.baseline, len(first.seeds))), style="dim")]


def _slos(row: ComparisonRow) -> str:
    observed = row.slo_attainment_observed
    return _percent(row.slo_attainment.mean) + (f" ({_percent(observed.mean)})" if observed else "")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def accounts_table(results: Sequence[Result]) -> RenderableType:
    """Return the table of users and priorities: their jobs and cost under each policy, as means over the seeds."""
    table = make_table("policy", "jobs of", "jobs", "cost $", "mean wait h", "over budget", left=2)
    for policy, runs in by_policy(results).items():
        every = [(job, run.outcome.metrics) for run in runs for job in run.outcome.jobs]
        for kind in ("user", "priority"):
            for name in sorted({getattr(job, kind) for job, _ in every}):
                own = [(job, figures) for job, figures in every if getattr(job, kind) == name]
                usd = sum(job.usd or 0.0 for job, _ in own) / len(runs)
                wait_h = fsum(_waited_h(job, figures) for job, figures in own) / len(own)
                spent = sum(job.job in (figures.over_budget or ()) for job, figures in own) / len(runs)
                who = f"{kind} {name}" if name != "" else "no user"
                cost = "" if own[0][0].usd is None else f"{usd:,.0f}"
                table.add_row(policy, who, f"{len(own) / len(runs):.3g}", cost, f"{wait_h:.2f}", f"{spent:.3g}")
    note = "a group's dollars are charged to its members evenly; mean wait: hours without a place, of jobs that did not wait too"
    return Group(heading("Users and priorities"), table, Text(note, style="dim"))


def _waited_h(job: JobResult, figures: Metrics) -> float:
    """Return the hours for which a job had no place: before its first one, and while it was parked."""
    return figures.wait_s.get(job.job, 0.0) / 3600 if job.queue_h is None else job.queue_h


def sharing_table(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """Return the cost of sharing nodes in time and its saving in dollars, one line per job, red if its SLO is broken.

    Args:
        jobs: Mappings with `id`; seconds of an iteration shared (`iteration_s`) and alone (`alone_s`); `slowdown`; `slo`; the job's
            charge in $/h, an even part of its group's price (`usd_per_hour`); and the price of its nodes alone in $/h
            (`usd_per_hour_solo`). None becomes an empty cell. `alone_half_width_s`, if present, is the half-width of a 95%
            interval.
    """

    def alone(job: Mapping[str, Any]) -> str:
        half_width = job.get("alone_half_width_s")
        return figure(job["alone_s"], f" ± {half_width:.2f} s" if half_width else " s")

    def broken(job: Mapping[str, Any]) -> bool:
        return job["slowdown"] is not None and job["slo"] is not None and job["slowdown"] > job["slo"] * (1 + 1e-6)

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "job": lambda job: str(job["id"]),
        "iteration": lambda job: figure(job["iteration_s"], " s"),
        "alone": alone,
        "slowdown": lambda job: figure(job["slowdown"], "x"),
        "SLO": lambda job: figure(job["slo"], "x"),
        "$/h": lambda job: figure(job["usd_per_hour"]),
        "alone $/h": lambda job: figure(job["usd_per_hour_solo"]),
    }
    return table_of(jobs, columns, style=lambda job: "red" if broken(job) else "")


def plan_tables(policy: str, admission: Admission) -> RenderableType:
    """Return the tables of `plan`: the decisions, then the resulting groups."""
    columns: dict[str, Callable[[Decision], str]] = {
        "job": lambda decision: decision.job,
        "strategy": lambda decision: decision.strategy,
        "group": lambda decision: _number(decision.group),
        "shape": lambda decision: _number(decision.shape),
        "+$/h": lambda decision: figure(decision.delta_usd_per_hour),
        "rollout nodes": lambda decision: _numbers(decision.rollout_nodes),
        "training nodes": lambda decision: _numbers(decision.training_nodes),
    }
    if all(decision.shape is None for decision in admission.decisions):
        del columns["shape"]
    table = table_of(admission.decisions, columns, left=2)
    reasons = make_table("queued or alone", "why", left=2)
    reasons.columns[-1].no_wrap = False
    for decision in admission.decisions:
        if decision.reason:
            reasons.add_row(decision.job, decision.reason)
    groups = make_table("group", "period s", "$/h", "jobs (slowdown)", left=0)
    groups.columns[-1].justify = "left"
    for group in admission.groups:
        jobs = ", ".join(f"{job_id} ({slowdown:.2f}x)" for job_id, slowdown in group.slowdown.items())
        groups.add_row(str(group.id), f"{group.period_s:.1f}", f"{group.usd_per_hour:.2f}", jobs)
    waiting = sum(decision.strategy == "queued" for decision in admission.decisions)
    wait = f", {waiting} job{'s wait' if waiting > 1 else ' waits'} for nodes" if waiting else ""
    total = [Text(f"{admission.usd_per_hour:.2f} $/h in all{wait}")]
    total += [Text(f"{name}: {value:.6g}") for name, value in admission.extra.items()]
    parts = [table, reasons] if reasons.row_count else [table]
    return Group(heading(f"Decisions of {policy}"), *parts, heading("Co-execution groups"), groups, *total)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _numbers(nodes: Sequence[int]) -> str:
    return " ".join(map(str, nodes))


def alternatives_table(report: dict[str, Any], most: int) -> RenderableType:
    """Return the table of `explain`: the alternatives of one decision and their outcomes.

    Args:
        report: Report of the decision.
        most: Largest number of alternatives to show beside the chosen one.
    """
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "verdict": lambda row: str(row["verdict"]),
        "group": lambda row: "new" if row["group"] is None else str(row["group"]),
        "shape": lambda row: str(row["shape"]),
        "nodes": _nodes,
        "+$/h": lambda row: figure(row["delta_usd_per_hour"], form=",.2f"),
        "period s": lambda row: figure(row["period_s"], form=",.1f"),
        "slack": lambda row: "" if row["slack"] is None else f"{100 * row['slack']:+.1f}%",
        "score": lambda row: figure(row["score"], form="+.3f"),
    }
    scored = "score" in report["alternatives"][0]
    del columns["+$/h" if scored else "score"]
    if "shape" not in report["alternatives"][0]:
        del columns["shape"]
    chosen = [row for row in report["alternatives"] if row["verdict"] == "chosen"]
    others = [row for row in report["alternatives"] if row["verdict"] != "chosen"]
    table = table_of(chosen + others[:most], columns, style=lambda row: "bold green" if row["verdict"] == "chosen" else "")
    whys = dict.fromkeys(row["why"] for row in sorted(others, key=lambda row: -(row["slack"] or 0.0)) if row["why"])
    hidden = len(others) - most
    title = f"Job {report['job']} at {report['at_s']:,.0f} s, decided by {report['policy']}"
    parts: list[RenderableType] = [heading(title), table]
    if not chosen:
        parts.append(Text(report["outcome"], style="bold"))
    parts += [Text(why) for why in [*whys][:_WHYS]]
    parts += _moved(report, with_dollars=not scored)
    if hidden > 0:
        parts.append(Text(f"{hidden} more alternatives: --format json lists them all", style="dim"))
    return Group(*parts)


def _moved(report: dict[str, Any], with_dollars: bool) -> list[RenderableType]:
    """Return the moves of running jobs by the same decision, and its effect on the price of all groups if that decides."""
    before, after = report["usd_per_hour"]["before"], report["usd_per_hour"]["after"]
    total = [Text(f"all groups: {before:,.2f} $/h before, {after:,.2f} $/h after")] if with_dollars else []
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "moved": lambda move: str(move["job"]),
        "from group": lambda move: str(move["from_group"]),
        "to": lambda move: "new" if move["group"] is None else str(move["group"]),
        "nodes": _nodes,
    }
    return [table_of(report["moves"], columns), *total] if report["moves"] else [*total]


def _nodes(row: dict[str, Any]) -> str:
    """Return the text of existing nodes and the number of new ones."""
    new = f"{row['new_rollout_nodes']} new" if row["new_rollout_nodes"] else ""
    return " + ".join(part for part in (_numbers(row["rollout_nodes"]), new) if part)
