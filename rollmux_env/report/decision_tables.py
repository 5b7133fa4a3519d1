"""Tables of decisions for a terminal, as `rollmux plan` and `rollmux explain` print them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.replay.admission import Admission, Decision
from rollmux_env.report.tables import figure, heading, make_table, table_of

_WHYS = 3  # largest number of reasons that `explain` prints


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
    parts += _list_moves(report, with_dollars=not scored)
    if hidden > 0:
        parts.append(Text(f"{hidden} more alternatives: --format json lists them all", style="dim"))
    return Group(*parts)


def _list_moves(report: dict[str, Any], with_dollars: bool) -> list[RenderableType]:
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
