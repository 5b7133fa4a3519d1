"""The table "shared against alone": what sharing nodes costs each job in time, and what it saves in dollars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from rollmux_env.report.tables import make_table


def sharing_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each job, red where its SLO is broken.

    Args:
        jobs: with `id`, seconds of an iteration shared (`iteration_s`) and alone (`alone_s`), `slowdown`, `slo`, and dollars per
            hour that the job is charged, an even part of its group's (`usd_per_hour`), and those of its own nodes
            (`usd_per_hour_solo`). What is None stays empty. `alone_half_width_s`, if there is one, is of a 95% interval.
    """
    table = make_table("job", "iteration", "alone", "slowdown", "SLO", "$/h", "alone $/h")
    for job in jobs:
        broken = job["slowdown"] is not None and job["slo"] is not None and job["slowdown"] > job["slo"] * (1 + 1e-6)
        cells = (
            _figure(job["iteration_s"], " s"),
            _figure(job["alone_s"], f" ± {half_width:.2f} s" if (half_width := job.get("alone_half_width_s")) else " s"),
            _figure(job["slowdown"], "x"),
            _figure(job["slo"], "x"),
            _figure(job["usd_per_hour"]),
            _figure(job["usd_per_hour_solo"]),
        )
        table.add_row(job["id"], *cells, style="red" if broken else "")
    return table


def _figure(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.2f}{unit}"
