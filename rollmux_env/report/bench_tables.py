"""Tables of `rollmux bench` for a terminal: policies, jobs, differences, and users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.bench.comparison import ComparisonRow, by_policy
from rollmux_env.bench.differences import Difference
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import interval_note
from rollmux_env.replay.dollar_bound import USD
from rollmux_env.replay.job_results import JobResult
from rollmux_env.replay.metrics import Metrics
from rollmux_env.report.bench_results import BenchResult, draws_nothing
from rollmux_env.report.tables import figure, heading, make_table, percent, ratio_text, table_of
from rollmux_env.report.waiting import fleet_columns, fleet_notes, idle_notes, is_owned, jobs_wait, load_notes, quota_notes
from rollmux_env.report.yardsticks import yardstick_notes
from rollmux_env.scheduler.ticks import INSTANT_S

_NOTES, _NAMED = 8, 4  # largest number of notes on broken SLOs below a comparison, and of jobs that a note names
BOUND_COLUMNS: dict[str, Callable[[ComparisonRow], str]] = {
    "$ / bound": lambda row: ratio_text(row.over_bound),
    "$/work-h / bound": lambda row: ratio_text(row.over_bound_per_work),
}
BOUND_NOTE = "bound: no policy that places jobs on arrival and keeps every SLO costs less; - where that is not so"


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
        "packed": lambda row: percent(row.packed),
        "decision": lambda row: figure(row.decision_ms, " ms"),
    }
    if not lost:
        del columns["lost work-h"]
    if bounded := not owned and any(row.bound_usd is not None for row in rows):
        after = [*columns].index("saving $/work-h") + 1
        columns = dict([*columns.items()][:after]) | BOUND_COLUMNS | dict([*columns.items()][after:])
    if owned:
        columns = {heading: text for heading, text in columns.items() if "$" not in heading}
    notes = _comparison_notes(rows, "" if owned else baseline, seeds, bounded)
    table = table_of(rows, columns, style=lambda row: "dim" if row.policy == baseline else "")
    return Group(heading(title), table, Text("; ".join(notes), style="dim"))


def _comparison_notes(rows: Sequence[ComparisonRow], baseline: str, seeds: int, bounded: bool) -> list[str]:
    """Return the notes below `comparison_table`; without a baseline, none on savings."""
    observed, lost = rows[0].slo_attainment_observed is not None, rows[0].lost_work_h is not None
    return [
        *([f"saving: {baseline}'s dollars over the policy's"] if baseline else []),
        f"slowdown: mean over jobs, against the same job alone{' with the same durations' if observed else ''}",
        f"peak GPUs: {' + '.join(rows[0].gpus)}",
        "packed: share of jobs that joined a group",
        f"decision: median{interval_note(seeds)}",
        "SLO kept: against worst cases (against the same job alone with the same draws)"
        if observed
        else "SLO kept: of steady periods, --fidelity event observes waits and switches",
        *(["lost work: what jobs did again after failures"] if lost else []),
        *([BOUND_NOTE] if bounded else []),
        *yardstick_notes([rows]),
    ]


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
    notes = _notes_on(benched)
    most = max(_NOTES, len(benched.left_out))
    parts += [Text(note, style="dim") for note in notes[:most]]
    if len(notes) > most:
        parts.append(Text(f"{len(notes) - most} more such lines: jobs.csv of --out has every job", style="dim"))
    if benched.stream.queue_key is not None or any(run.figures.over_budget is not None for run in benched.runs):
        parts.append(accounts_table(benched.results))
    return parts


def _notes_on(benched: BenchResult) -> list[str]:
    """Return lines on the load, quotas, idle nodes, policies that were left out, waits on some seeds, and broken SLOs."""
    notes = shared_notes([benched])
    for row in benched.summary:
        if row.mean_completion_h is None and row.queueing_s.mean > INSTANT_S:
            waited = f"jobs waited on some seeds, {row.queueing_s.mean / 3600:.3g} h on average over all"
            notes.append(f"{row.policy}: {waited}; runs.csv of --out has more of it")
    notes += seed_notes([benched])
    for run in benched.runs:
        if not all(job.keeps_slo for job in run.jobs):
            over = f", seed {run.seed}" if len(benched.seeds) > 1 else ""
            notes.append(f"{run.policy}{over}: broken SLOs: {broken_words(run.jobs)}")
    return notes


def shared_notes(benches: Sequence[BenchResult]) -> list[str]:
    """Return lines on the load, quotas, idle nodes, policies that were left out, and missing bounds, of one bench or of a sweep."""
    notes = [*load_notes(benches), *quota_notes(benches), *idle_notes(benches), *_left_out_notes(benches[0])]
    return notes + _bound_notes(benches)


def _left_out_notes(benched: BenchResult) -> list[str]:
    """Return a line on each policy that was left out."""
    return [f"{policy} is left out: {why}" for policy, why in benched.left_out.items()]


def _bound_notes(benches: Sequence[BenchResult]) -> list[str]:
    """Return a line if lower bounds were asked for and no policy has one, so that tables have no columns of them, or nothing."""
    asked = any(USD in result.outcome.extra for benched in benches for result in benched.results)
    if not asked or any(row.bound_usd is not None for benched in benches for row in benched.summary):
        return []
    why = "waits, has a budget, breaks its SLO or takes less than the worst case"
    return [f"no bound: it holds for policies under which, on every seed, no job {why} (docs/reference/bound.md)"]


def seed_notes(benches: Sequence[BenchResult]) -> list[str]:
    """Return a line if several seeds give the same results, whose intervals then say nothing, or nothing."""
    if not all(draws_nothing(benched.results) for benched in benches):
        return []
    return ["seeds: all give the same here, since nothing is drawn: --fidelity event draws durations that have `actual`"]


def _waiting_table(title: str, rows: Sequence[ComparisonRow], baseline: str, seeds: int) -> RenderableType:
    """Return the table of completion and waiting, with one line per policy over the seeds."""
    columns: dict[str, Callable[[ComparisonRow], str]] = {"policy": lambda row: row.policy, **fleet_columns(rows)}
    table = table_of(rows, columns, style=lambda row: "dim" if row.policy == baseline else "")
    blank = ["blank: no job waited, and nodes are unlimited"] if any(row.mean_completion_h is None for row in rows) else []
    return Group(heading(title), table, Text("; ".join([*fleet_notes(rows, baseline, seeds), *blank]), style="dim"))


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
    for left_out in ("queueing h",) if waited else ("queue h", "stretch", "rho", "parks"):
        del columns[left_out]
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


def _slos(row: ComparisonRow) -> str:
    observed = row.slo_attainment_observed
    return percent(row.slo_attainment.mean) + (f" ({percent(observed.mean)})" if observed else "")


def accounts_table(results: Sequence[Result]) -> RenderableType:
    """Return the table of users and priorities: their jobs and cost under each policy, as means over the seeds."""
    table = make_table("policy", "jobs of", "jobs", "cost $", "mean wait h", "over budget", left=2)
    for policy, runs in by_policy(results).items():
        every = [(job, run.outcome.metrics) for run in runs for job in run.outcome.jobs]
        for kind in ("user", "priority"):
            for name in sorted({getattr(job, kind) for job, _ in every}):
                own = [(job, figures) for job, figures in every if getattr(job, kind) == name]
                usd = sum(job.usd or 0.0 for job, _ in own) / len(runs)
                wait_h = fsum(_compute_waiting_h(job, figures) for job, figures in own) / len(own)
                spent = sum(job.job in (figures.over_budget or ()) for job, figures in own) / len(runs)
                who = f"{kind} {name}" if name != "" else "no user"
                cost = "" if own[0][0].usd is None else f"{usd:,.0f}"
                table.add_row(policy, who, f"{len(own) / len(runs):.3g}", cost, f"{wait_h:.2f}", f"{spent:.3g}")
    note = "a group's dollars are charged to its members evenly; mean wait: hours without a place, over all jobs of the row"
    return Group(heading("Users and priorities"), table, Text(note, style="dim"))


def _compute_waiting_h(job: JobResult, figures: Metrics) -> float:
    """Return the hours for which a job had no place: before its first one, and while it was parked."""
    return figures.wait_s.get(job.job, 0.0) / 3600 if job.queue_h is None else job.queue_h
