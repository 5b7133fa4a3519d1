"""What the record of a run says of a job, in the parts that several figures use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite
from statistics import fmean

from runtime.journal.facts import Iteration, PhaseSlice
from runtime.journal.record import RunRecord

PHASES = ("rollout", "training")


def job_ids(record: RunRecord) -> list[str]:
    """Ids of the jobs that were profiled or have failed, in that order."""
    failed = [failure.job_id for failure in record.failed]
    return list(dict.fromkeys([*record.jobs, *failed]))


def warm(iterations: Sequence[Iteration]) -> Sequence[Iteration]:
    """All but the first, if there are more."""
    return iterations[1:] or iterations


def iteration_s(iterations: Sequence[Iteration]) -> float | None:
    """Mean seconds from the end of one warm iteration to the end of the next; None where there are none."""
    return (iterations[-1].end_s - warm(iterations)[0].start_s) / len(warm(iterations)) if iterations else None


def solo_seconds(record: RunRecord, job_id: str) -> list[float]:
    """Seconds of a job's iterations alone, from the end of one to the end of the next: of all but the first."""
    ends_s = [done.end_s for done in record.solo if done.job_id == job_id]
    return [end_s - before_s for before_s, end_s in pairwise(ends_s)]


def phases_of(record: RunRecord, job_id: str, phase: str) -> list[PhaseSlice]:
    """The phases of a job that went to their end, without those of its profile."""
    return [part for part in record.phases if part.job_id == job_id and part.phase == phase and not part.profile and part.ok]


def warm_phases(record: RunRecord, job_id: str, phase: str) -> list[PhaseSlice]:
    """Those that were not cold, if there are any; else all of them."""
    parts = phases_of(record, job_id, phase)
    return [part for part in parts if not part.cold] or parts


def finite(value: float | None) -> float | None:
    """None in place of NaN and infinity, which a job may report and JSON does not have."""
    return value if value is not None and isfinite(value) else None


def mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    items = list(values)
    return fmean(items) if items else None
