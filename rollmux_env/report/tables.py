"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.bench.comparison import Row
from rollmux_env.bench.intervals import Mean, interval_note
from rollmux_env.replay.admission import Admission
from rollmux_env.report.fitting import fitted

WIDTH = 120
"""Columns where standard output is no terminal."""

_WHYS = 3  # SLOs that `explain` tells in full


def show(*parts: RenderableType) -> None:
    """Print to standard output: as wide as the terminal, or `WIDTH` columns where that is a file or a pipe."""
    console = Console(markup=False)  # names come from users, and may hold brackets
    if not console.is_terminal:
        console = Console(width=WIDTH, markup=False)
    console.print(fitted(Group(*parts), console.width))


def heading(title: str) -> Text:
    """A title above a table, as wide as the terminal."""
    return Text(title, style="bold")


def make_table(*columns: str, left: int = 1) -> Table:
    """A table in the house style; all columns but the first `left` are figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        is_name = position < left
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=is_name)
    return table


def comparison_table(title: str, rows: Sequence[Row], baseline: str, seeds: int = 1) -> RenderableType:
    """`bench`: one line per policy over the seeds. `saving` is how many times cheaper it is than the baseline."""
    slo_heading = "SLO kept" if rows[0].slo_attainment_observed is None else "SLO kept (observed)"
    savings = ("cost $", "saving $", "$/work-h", "saving $/work-h")
    lost = ("lost work-h",) if rows[0].lost_work_h is not None else ()
    table = make_table("policy", *savings, slo_heading, "slowdown", *lost, "peak GPUs", "packed", "decision")
    for row in rows:
        style = "dim" if row.policy == baseline else ""
        table.add_row(
            row.policy,
            row.cost_usd.text(0),
            _times(row.saving),
            row.usd_per_work_hour.text(2),
            _times(row.saving_per_work),
            _percent(row.slo_attainment.mean)
            + (f" ({_percent(row.slo_attainment_observed.mean)})" if row.slo_attainment_observed else ""),
            f"{row.slowdown.mean:.2f}x",
            *(() if row.lost_work_h is None else (row.lost_work_h.text(1),)),
            " + ".join(f"{gpus:.0f}" for gpus in row.gpus.values()),
            _percent(row.packed),
            "" if row.decision_ms is None else f"{row.decision_ms:.2f} ms",
            style=style,
        )
    paired = interval_note(seeds)
    if rows[0].slo_attainment_observed is not None:
        paired += "; observed: against solo runs with the same durations"
    else:
        paired += "; SLO kept: of steady periods, --fidelity event observes waits and switches"
    if lost:
        paired += "; lost work: what jobs did again after failures"
    note = (
        f"saving: {baseline}'s dollars over the policy's; slowdown: mean over jobs; peak GPUs: {' + '.join(rows[0].gpus)}; "
        f"packed: share of jobs that joined a group; decision: median{paired}"
    )
    return Group(heading(title), table, Text(note, style="dim"))


def _times(mean: Mean) -> str:
    return mean.text(2).replace(" ±", "x ±", 1) if mean.half_width is not None else f"{mean.mean:.2f}x"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def plan_tables(policy: str, admission: Admission) -> RenderableType:
    """`plan`: the decisions, then the resulting groups."""
    shaped = any(decision.shape is not None for decision in admission.decisions)
    columns = ("group", "shape") if shaped else ("group",)
    table = make_table("job", "strategy", *columns, "+$/h", "rollout nodes", "training nodes", left=2)
    for decision in admission.decisions:
        delta = decision.delta_usd_per_hour
        table.add_row(
            decision.job,
            decision.strategy,
            "" if decision.group is None else str(decision.group),
            *(("" if decision.shape is None else str(decision.shape),) if shaped else ()),
            "" if delta is None else f"{delta:.2f}",
            _numbers(decision.rollout_nodes),
            _numbers(decision.training_nodes),
        )
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
    queued = (reasons,) if reasons.row_count else ()
    waiting = sum(decision.strategy == "queued" for decision in admission.decisions)
    total = f"{admission.usd_per_hour:.2f} $/h in all" + (
        f", {waiting} job{'s wait' if waiting > 1 else ' waits'} for nodes" if waiting else ""
    )
    figures = [Text(f"{name}: {value:.6g}") for name, value in admission.extra.items()]
    return Group(heading(f"Decisions of {policy}"), table, *queued, heading("Co-execution groups"), groups, Text(total), *figures)


def _numbers(nodes: Sequence[int]) -> str:
    return " ".join(map(str, nodes))


def alternatives_table(report: dict[str, Any], most: int) -> RenderableType:
    """`explain`: every alternative of one decision and its outcome."""
    shaped = "shape" in report["alternatives"][0]
    table = make_table(
        "verdict",
        "group",
        *(("shape",) if shaped else ()),
        "nodes",
        "+$/h",
        "period s",
        "slack",
        left=1,
    )
    chosen = [row for row in report["alternatives"] if row["verdict"] == "chosen"]
    others = [row for row in report["alternatives"] if row["verdict"] != "chosen"]
    for row in chosen + others[:most]:
        existing = [str(node) for node in row["rollout_nodes"]]
        new = f"{row['new_rollout_nodes']} new" if row["new_rollout_nodes"] else ""
        table.add_row(
            row["verdict"],
            "new" if row["group"] is None else str(row["group"]),
            *((str(row["shape"]),) if shaped else ()),
            " + ".join(part for part in (" ".join(existing), new) if part),
            _figure(row["delta_usd_per_hour"], 2),
            _figure(row["period_s"], 1),
            "" if row["slack"] is None else f"{100 * row['slack']:+.1f}%",
            style="bold green" if row["verdict"] == "chosen" else "",
        )
    whys = dict.fromkeys(row["why"] for row in sorted(others, key=lambda row: -(row["slack"] or 0.0)) if row["why"])
    hidden = len(others) - most
    note = f"{hidden} more alternatives: --format json lists them all" if hidden > 0 else ""
    title = f"Job {report['job']} at {report['at_s']:,.0f} s, decided by {report['policy']}"
    parts: list[RenderableType] = [heading(title), table]
    if not chosen:
        parts.append(Text(report["outcome"], style="bold"))
    parts += [Text(why) for why in [*whys][:_WHYS]]
    if note:
        parts.append(Text(note, style="dim"))
    return Group(*parts)


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
