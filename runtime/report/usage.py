"""Accounts of users and jobs by calendar month: node-hours, dollars, what was saved against running alone, waits and parks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from rollmux_env.cluster.events import Admitted, Arrived, Event, MonthBegun, Parked, Withdrawn
from rollmux_env.cluster.months import NO_TOTALS
from rollmux_env.cluster.state import State
from rollmux_env.cluster.totals import charged_jobs, totals_with_lent
from runtime.journal.record import RunRecord
from runtime.journal.write import read_earlier, read_run, state_of

Key = Literal["user", "month", "job"]
KEYS: tuple[Key, ...] = ("user", "month", "job")
FIGURES = ("jobs", "iterations", "node_hours", "usd", "alone_usd", "saved_usd", "wait_h", "parks")
_SUMS = ("iterations", "node_hours", "usd", "alone_usd", "wait_h", "parks")

Row = dict[str, Any]


class Waits:
    """Waits and parks of jobs by calendar month, from the events of a run.

    Args:
        first_month: Month in which the run began.
        events: Events so far.

    Attributes:
        month: Present month.
    """

    def __init__(self, first_month: str, events: Iterable[Event] = ()) -> None:
        self.month = first_month
        self._since_s: dict[str, float] = {}  # waiting jobs, and since when in this month
        self._wait_s: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._parks: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for event in events:
            self.follow(event)

    def follow(self, event: object) -> None:
        """Take an event; other facts change nothing."""
        match event:
            case Arrived(at_s=at_s, job=job):
                self._since_s[job.id] = at_s
            case Admitted(at_s=at_s, job_id=job_id) | Withdrawn(at_s=at_s, job_id=job_id):
                self._wait_s[self.month][job_id] += at_s - self._since_s.pop(job_id, at_s)
            case Parked(at_s=at_s, job_id=job_id):
                self._parks[self.month][job_id] += 1
                self._since_s[job_id] = at_s
            case MonthBegun(at_s=at_s, month=month):
                for job_id, since_s in self._since_s.items():
                    self._wait_s[self.month][job_id] += at_s - since_s
                    self._since_s[job_id] = at_s
                self.month = month

    def wait_h(self, job_id: str, month: str, now_s: float) -> float:
        """Return the hours for which a job has waited for a place in a month."""
        waits_s = now_s - self._since_s[job_id] if month == self.month and job_id in self._since_s else 0.0
        return (self._wait_s[month][job_id] + waits_s) / 3600

    def parks(self, job_id: str, month: str) -> int:
        """Return the number of times that a job was parked in a month."""
        return self._parks[month][job_id]


def usage_rows(state: State, waits: Waits, first_month: str) -> Iterator[Row]:
    """Yield a row for each job and month in which it waited or ran: `user`, `month`, `job` and the figures that are summed.

    The state may change between two jobs: each has its figures of the time at which its rows are yielded.

    Args:
        state: State of the run at its last event.
        waits: Waits and parks of the run.
        first_month: Month in which the run began.
    """
    for job_id in charged_jobs(state):
        yield from _rows_of_job(state, waits, first_month, job_id)


def _rows_of_job(state: State, waits: Waits, first_month: str, job_id: str) -> list[Row]:
    lent = state.charges.lent_charges(job_id, state.now_s)
    user = state.job(job_id).user if lent is None or state.knows(job_id) else lent.user
    before = (NO_TOTALS, *(month.before.get(job_id, NO_TOTALS) for month in state.months))
    after = (*before[1:], totals_with_lent(state, job_id))
    rows = []
    for month, first, last in zip((first_month, *(month.name for month in state.months)), before, after, strict=True):
        spent, wait_h, parks = last.since(first), waits.wait_h(job_id, month, state.now_s), waits.parks(job_id, month)
        if any(spent) or wait_h or parks:
            rows.append({"user": user, "month": month, "job": job_id, **spent._asdict(), "wait_h": wait_h, "parks": parks})
    return rows


def grouped(rows: Iterable[Row], by: Sequence[Key]) -> list[Row]:
    """Return the sums of rows that agree in some keys, in the order of these keys.

    Args:
        rows: Rows of `usage_rows`.
        by: Keys by which rows are grouped.
    """
    sums: dict[tuple[str, ...], Row] = {}
    jobs: defaultdict[tuple[str, ...], set[tuple[str, int]]] = defaultdict(set)
    for row in rows:
        key = tuple(row[name] for name in by)
        total = sums.setdefault(key, dict(zip(by, key, strict=True)) | dict.fromkeys(FIGURES, 0))
        jobs[key].add((row["job"], row.get("part", 0)))  # a name may be used again after a roll-over
        for name in _SUMS:
            total[name] += row[name]
    for key, total in sums.items():
        total |= {"jobs": len(jobs[key]), "saved_usd": total["alone_usd"] - total["usd"]}
    return sorted(sums.values(), key=itemgetter(*by))


def past_usage(folder: Path, by: Sequence[Key]) -> list[Row]:
    """Return the usage of a service or run that does not run, from its journal.

    Args:
        folder: Folder of the service or run.
        by: Keys by which rows are grouped.

    Raises:
        InputError: If there is no journal, or it cannot be read; one line.
    """
    return grouped((*earlier_rows(folder), *_rows_of(read_run(folder))), by)


def earlier_rows(folder: Path) -> list[Row]:
    """Return the rows of the jobs before the last roll-over of a journal; see `usage_rows`.

    Raises:
        InputError: If a part of the journal cannot be read; one line.
    """
    parts = enumerate(read_earlier(folder), 1)
    return [row | {"part": number} for number, record in parts for row in _rows_of(record)]


def _rows_of(record: RunRecord) -> Iterator[Row]:
    month = record.first_month
    return usage_rows(state_of(record), Waits(month, record.log), month)
