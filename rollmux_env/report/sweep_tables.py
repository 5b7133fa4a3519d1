"""Tables of `rollmux bench --sweep` for a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.bench.intervals import interval_note
from rollmux_env.report.bench_results import SweepResult
from rollmux_env.report.bench_tables import BOUND_COLUMNS, BOUND_NOTE, seed_notes, shared_notes
from rollmux_env.report.tables import heading, make_table, percent, ratio_text
from rollmux_env.report.waiting import fleet_columns, fleet_notes, is_owned, jobs_wait
from rollmux_env.report.yardsticks import yardstick_notes


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
        *([BOUND_NOTE] if bounded else []),
        *yardstick_notes([point.bench.summary for point in benched.points]),
    ]
    parts: list[RenderableType] = [heading(title), *_swept_waiting(benched)]
    if len(parts) > 1:
        parts.append(heading("Sharing" if owned else "Dollars"))
    parts += [_swept_sharing(benched, owned, bounded), Text("; ".join(notes), style="dim")]
    benches = [point.bench for point in benched.points]
    parts += [Text(note, style="dim") for note in (*shared_notes(benches), *seed_notes(benches))]
    pairs = _swept_pairs(benched, owned)
    if pairs.row_count:
        parts += [heading("Differences of every two policies, paired by seed"), pairs]
    return parts


def _swept_sharing(benched: SweepResult, owned: bool, bounded: bool) -> Table:
    """Return the table of a sweep with a line per point and policy, with dollars unless the nodes are owned."""
    bounds = BOUND_COLUMNS if bounded else {}
    dollars = () if owned else ("cost $", "saving $", "$/work-h", "saving $/work-h", *bounds)
    table = make_table(*benched.keys, "policy", *dollars, "SLO kept", "slowdown", left=len(benched.keys) + 1)
    for point in benched.points:
        table.add_section()
        values, same = [*point.swept.values()], [""] * len(benched.keys)
        for k, row in enumerate(point.bench.summary):
            share = row.slo_attainment_observed or row.slo_attainment
            slowdown = row.slowdown_observed or row.slowdown
            figures = [percent(share.mean), f"{slowdown.mean:.2f}x"]
            if not owned:
                usd = row.cost_usd.text(0), ratio_text(row.saving), row.usd_per_work_hour.text(2), ratio_text(row.saving_per_work)
                figures = [*usd, *(text(row) for text in bounds.values()), *figures]
            table.add_row(*(same if k else values), row.policy, *figures)
    return table


def _swept_pairs(benched: SweepResult, owned: bool) -> Table:
    """Return the table of the differences of every two policies at each point of a sweep."""
    waits = any(jobs_wait(point.bench.summary) for point in benched.points)
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
