"""The tables of `rollmux status`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from rollmux_env.report.tables import heading, make_table, sharing_table
from runtime.service.queue_tables import queue_table


def status_tables(report: dict[str, Any]) -> list[RenderableType]:
    """What `runtime.service.report.Reports.all` found; or `runtime.service.past.past_report`, jobs alone."""
    jobs = make_table("job", "state", "group", "nodes", "iteration", "at risk", "reward", left=2)
    for job in report["jobs"]:
        jobs.add_row(
            job["id"],
            job["state"] + (f" ({job['phase']})" if job["phase"] else ""),
            "" if job["group"] is None else str(job["group"]),
            " ".join(job["nodes"]),
            f"{job['iteration']} of {job['iterations']}",
            "yes" if job["at_risk"] else "",
            _number(job["metrics"].get("reward")),
            style={"failed": "red", "cancelled": "dim", "done": "dim", "over_budget": "dim"}.get(job["state"], ""),
        )
    groups = make_table("group", "period s", "$/h", "alone $/h", "nodes", "jobs", left=0)
    for column in groups.columns[-2:]:
        column.justify = "left"
    for group in report["groups"]:
        groups.add_row(
            str(group["id"]),
            f"{group['period_s']:.2f}",
            f"{group['usd_per_hour']:.2f}",
            f"{group['usd_per_hour_solo']:.2f}",
            " ".join(group["nodes"]),
            ", ".join(group["jobs"]),
        )
    pools = make_table("pool", "nodes", "busy", "idle", "free", "draining", "utilization")
    for name, pool in report["pools"].items():
        counts = (str(pool[key]) for key in ("nodes", "busy", "idle", "free", "draining"))
        pools.add_row(name, *counts, f"{100 * pool['utilization']:.0f}%")
    problems = [Text(f"{job['id']}: {job['problem']}") for job in report["jobs"] if job["problem"]]
    if report["paused"]:
        problems.insert(0, Text(f"paused: {report['paused']}", style="red"))
    title = f"{report['folder']}: {report['policy']}, {report['dispatch']}"
    if ended := report.get("ended"):
        when = f"{'killed, last heard of' if ended == 'killed' else ended} at {report['ended_at']}"
        goes_on = "" if ended == "done" else f"; `{report['continue']}` goes on"
        return [heading(f"{title}, {when}"), jobs, *problems, Text(f"as the journal has it{goes_on}", style="dim")]
    title += f", {report['usd_per_hour']:.2f} $/h, {report['usd_per_hour_solo']:.2f} $/h if every job were alone"
    placed = [job for job in report["jobs"] if job["usd_per_hour"] is not None]
    sharing: list[RenderableType] = [heading("Shared against alone, by profiles"), sharing_table(placed)] if placed else []
    if report["throughput_gain"] is not None:
        sharing.append(Text(f"throughput per node-hour of late: {report['throughput_gain']:.2f}x that of the jobs alone"))
    waiting = [job for job in report["jobs"] if job["position"] is not None]
    queue = [queue_table(waiting, report["now_s"])] if waiting else []
    return [heading(title + (", stopping" if report["stopping"] else "")), jobs, *queue, *sharing, groups, pools, *problems]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
