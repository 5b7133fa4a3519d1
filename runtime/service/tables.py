"""The tables of `rollmux status`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from rollmux_env.report.tables import heading, make_table


def status_tables(report: dict[str, Any]) -> list[RenderableType]:
    """What `runtime.service.report.make_report` found; or `runtime.service.past.past_report`, jobs alone."""
    jobs = make_table("job", "state", "group", "nodes", "iteration", "slowdown", "SLO", "at risk", "reward", left=2)
    for job in report["jobs"]:
        jobs.add_row(
            job["id"],
            job["state"] + (f" ({job['phase']})" if job["phase"] else ""),
            "" if job["group"] is None else str(job["group"]),
            " ".join(job["nodes"]),
            f"{job['iteration']} of {job['of']}",
            "" if job["slowdown"] is None else f"{job['slowdown']:.2f}x",
            f"{job['slo']:g}x",
            "yes" if job["at_risk"] else "",
            "" if job["reward"] is None else f"{job['reward']:.3f}",
            style={"failed": "red", "cancelled": "dim", "done": "dim", "over_budget": "dim"}.get(job["state"], ""),
        )
    groups = make_table("group", "period s", "$/h", "nodes", "jobs", left=0)
    for column in groups.columns[-2:]:
        column.justify = "left"
    for group in report["groups"]:
        groups.add_row(
            str(group["group"]),
            f"{group['period_s']:.2f}",
            f"{group['usd_per_hour']:.2f}",
            " ".join(group["nodes"]),
            ", ".join(group["jobs"]),
        )
    pools = make_table("pool", "nodes", "busy", "idle", "free", "utilization")
    for name, pool in report["pools"].items():
        counts = (str(pool[key]) for key in ("nodes", "busy", "idle", "free"))
        pools.add_row(name, *counts, f"{100 * pool['utilization']:.0f}%")
    problems = [Text(f"{job['id']}: {job['problem']}") for job in report["jobs"] if job["problem"]]
    if report["paused"]:
        problems.insert(0, Text(f"paused: {report['paused']}", style="red"))
    title = f"{report['folder']}: {report['policy']}, {report['dispatch']}"
    if ended := report.get("ended"):
        when = f"{'killed, last heard of' if ended == 'killed' else ended} at {report['ended_at']}"
        goes_on = "" if ended == "done" else f"; `rollmux serve {report['folder']}` goes on"
        return [heading(f"{title}, {when}"), jobs, *problems, Text(f"as the journal has it{goes_on}", style="dim")]
    title += f", {report['usd_per_hour']:.2f} $/h"
    return [heading(title + (", stopping" if report["stopping"] else "")), jobs, groups, pools, *problems]
