"""Columns and notes of the tables of completion and waiting, for fleets that are owned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isclose

from rollmux_env.bench.comparison import ComparisonRow
from rollmux_env.bench.intervals import Mean, interval_note
from rollmux_env.fields import EVERY_USER
from rollmux_env.report.bench_results import BenchResult
from rollmux_env.workloads.fleets import SHORT, is_short

_COLUMNS: Mapping[str, Callable[[ComparisonRow], str]] = {
    "completion h": lambda row: "" if row.mean_completion_h is None else row.mean_completion_h.text(1),
    "sooner": lambda row: "" if row.sooner is None else row.sooner.text(2, "x"),
    "p95 h": lambda row: _mean(row.completion_p95_h, 1),
    "queue h": lambda row: _mean(row.mean_queue_h, 1),
    "longest h": lambda row: _mean(row.max_queue_h, 1),
    "stretch": lambda row: _mean(row.mean_stretch, 2),
    "worst rho": lambda row: _mean(row.worst_rho, 2),
    "Jain": lambda row: _mean(row.jain, 2),
    "busy": lambda row: " + ".join("-" if share is None else f"{100 * share:.0f}%" for share in (row.fleet_busy or {}).values()),
    "parks": lambda row: _mean(row.parks, 0),
}


def fleet_columns(rows: Sequence[ComparisonRow]) -> Mapping[str, Callable[[ComparisonRow], str]]:
    """Return the function of a policy's row that returns the text of its cell, by heading.

    Args:
        rows: Rows of the table. It has a column of Jain's index if users differ, and one of parks if a job was parked.
    """
    same = {"Jain": 1.0, "parks": 0.0}
    plain = [name for name, value in same.items() if all(_is(getattr(row, name.lower()), value) for row in rows)]
    return {heading: text for heading, text in _COLUMNS.items() if heading not in plain}


def _is(mean: Mean | None, value: float) -> bool:
    return mean is None or isclose(mean.mean, value, rel_tol=1e-9)


def jobs_wait(rows: Sequence[ComparisonRow]) -> bool:
    """Return whether there is something to say about waiting: nodes are limited, or a job has waited."""
    return any(row.mean_completion_h is not None for row in rows)


def is_owned(benched: BenchResult) -> bool:
    """Return whether all pools have `max_nodes`: their nodes are paid for in any case, and dollars tell policies little apart."""
    return all(None not in (run.figures.fleet_busy or {"": None}).values() for run in benched.runs)  # files may differ


def fleet_notes(rows: Sequence[ComparisonRow], baseline: str, seeds: int) -> list[str]:
    """Return the notes below a table of completion and waiting.

    Args:
        rows: Rows of the table, or of all tables of a sweep.
        baseline: Policy with which the others are compared.
        seeds: Number of seeds.
    """
    rows = [row for row in rows if row.mean_completion_h is not None]  # nodes may be limited at some points of a sweep alone
    bounds = [row.bound_completion_h.mean for row in rows if row.bound_completion_h is not None]
    busy = " + ".join(rows[0].fleet_busy or {})
    return [
        "completion: hours from arrival to departure, mean and 95th percentile over jobs",
        f"sooner: {baseline}'s mean completion over the policy's",
        "queue: hours without a place, mean and longest",
        "stretch: completion over the hours of the same work alone",
        "rho: stretch over that of an even share of the fleet, the worst job's",
        *(["Jain: of the users' stretches, 1 is even"] if "Jain" in fleet_columns(rows) else []),
        f"busy: nodes held by groups, {busy}{interval_note(seeds)}",
        *([f"no policy has a mean completion below {_least(bounds)} on separate pools"] if len(bounds) == len(rows) else []),
    ]


def _least(bounds: Sequence[float]) -> str:
    low, high = min(bounds), max(bounds)
    return f"{low:.1f} h" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} h"


def load_notes(benches: Sequence[BenchResult]) -> list[str]:
    """Return a line on loads that were asked for and say little, because jobs take as long as their arrivals, or nothing."""
    loads = dict.fromkeys(one.fleet for one in benches if one.fleet is not None and "=" in one.fleet and is_short(one.stream))
    if not loads:
        return []
    return [
        f"{', '.join(loads)} say{'s' if len(loads) == 1 else ''} little here: jobs arrive over less than {SHORT} times the hours "
        "that one takes alone, so most of them run after the last arrival; --fleet with numbers of nodes is plainer"
    ]


def quota_notes(benches: Sequence[BenchResult]) -> list[str]:
    """Return a line on the quotas of users who have no job, as of a name that is mistyped, or nothing."""
    unused = dict[str, None]()
    for streams in ([*one.streams.values()] for one in benches):
        users = {job.user for stream in streams for job in stream.jobs}
        unused |= dict.fromkeys(name for stream in streams for name in stream.cluster.quotas if name not in {EVERY_USER, *users})
    return [f"quotas that limit no job, since none is of the user: {', '.join(map(repr, unused))}"] if unused else []


def idle_notes(benches: Sequence[BenchResult]) -> list[str]:
    """Return a line on the policies that packed jobs, and slowed them, while their nodes would have been idle, or nothing."""
    packed, jobs = Counter[str](), Counter[str]()
    for result in (result for benched in benches for result in benched.results):
        packed[result.spec] += result.outcome.packed_beside_idle
        jobs[result.spec] += len(result.outcome.jobs)
    of_all = max(jobs.values(), default=0)
    counts = [f"{policy} {count:,}" for policy, count in packed.items() if count]
    if not counts:
        return []
    return [
        f"packed although idle nodes would have been faster, of {of_all:,} jobs: {', '.join(counts)}; on a fleet that is owned "
        "this saves nothing: the policy fleet and the option time_usd= place by time"
    ]


def _mean(mean: Mean | None, digits: int) -> str:
    """Return the mean alone; JSON and CSV have the half-widths."""
    return "" if mean is None else f"{mean.mean:,.{digits}f}"
