"""Tables of jobs that wait, or would: in `rollmux status` and `rollmux submit --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from rollmux_env.report.tables import make_table


def queue_table(jobs: Sequence[Mapping[str, Any]], now_s: float) -> RenderableType:
    """The queue: jobs of a report that have a position, with the reason why they wait.

    Args:
        now_s: of the report; seconds of the run's clock.
    """
    table = make_table("", "waits", "user", "priority", "expected", "why", left=2)
    table.columns[2].justify = table.columns[-1].justify = "left"
    for job in sorted(jobs, key=lambda job: int(job["position"])):
        place = (str(job["position"]), job["id"], job["user"], str(job["priority"]))
        table.add_row(*place, _expected(job["eta_s"], now_s), job["reason"] or "")
    return table


def preview_table(previews: Mapping[str, Mapping[str, Any]], now_s: float) -> RenderableType:
    """What would become of jobs, by id; `rollmux_env.scheduler.preview.Preview` explains the keys."""
    table = make_table("job", "would get", "+$/h", "period s", "slowdown", "expected", "why it would wait", left=2)
    table.columns[-1].justify = "left"
    for job_id, preview in previews.items():
        if preview["fits"]:
            strategy = preview["strategy"].replace("_", " ")
            place = f"group {preview['group']}, {strategy}"
            slowdown = f"{preview['slowdown'][job_id]:.2f}x"
            table.add_row(job_id, place, f"{preview['delta_usd_per_hour']:.2f}", f"{preview['period_s']:.1f}", slowdown, "now", "")
        else:
            expected = _expected(preview["eta_s"], now_s)
            table.add_row(job_id, f"place {preview['position']} of the queue", "", "", "", expected, preview["reason"])
    return table


def _expected(eta_s: float | None, now_s: float) -> str:
    """In how long, in words."""
    if eta_s is None:
        return "unknown"
    seconds = max(0.0, eta_s - now_s)
    return (
        f"in {seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"in {seconds / 60:.0f} min"
        if seconds >= 60
        else f"in {seconds:.0f} s"
    )
