"""Calendar months, and the totals of jobs at their beginnings, from which the accounts of each month follow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple


def month_of(wall_s: float) -> str:
    """Return the calendar month (UTC) of a time in seconds since 1970, such as `2026-12`."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m")


class JobTotals(NamedTuple):
    """Totals of a job since it arrived.

    Attributes:
        node_hours: Nodes that it has been charged for, over time, in node-hours.
        usd: Dollars that it has been charged.
        alone_usd: Dollars that the same phases and syncs would have cost on separate nodes.
        iterations: Iterations that it has done, with fractions in replays.
    """

    node_hours: float
    usd: float
    alone_usd: float
    iterations: float

    def plus(self, other: JobTotals) -> JobTotals:
        """Return the sum with other totals."""
        return JobTotals(*(one + more for one, more in zip(self, other, strict=True)))

    def since(self, before: JobTotals) -> JobTotals:
        """Return the difference from earlier totals."""
        return JobTotals(*(now - then for now, then in zip(self, before, strict=True)))


NO_TOTALS = JobTotals(0.0, 0.0, 0.0, 0.0)


class Month(NamedTuple):
    """A calendar month that has begun.

    Attributes:
        name: Year and month, such as `2026-12`.
        before: Totals of each job at its beginning, by id.
    """

    name: str
    before: Mapping[str, JobTotals]
