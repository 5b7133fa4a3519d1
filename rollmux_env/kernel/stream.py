"""Many streams of jobs side by side: their tables, and their clock.

One stream is a scenario's jobs on a cluster of its own. Every table has a leading axis of E streams.

The columns are those of `JobTable` and `GroupTable`, here fields of records: `jobs.done[job]` means the same, and a table is one
array to pass, not twenty, which is what calls of compiled functions cost most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.tables import NOWHERE, GroupTable, Ints, JobTable, group_table, job_table

Records = Any  # a structured array, which stands for a table in compiled code

INSTANT_S = 1e-6  # times this close are one instant
NEW_GROUP = -1

ADMIT, CONSOLIDATE, OVER, LATER = range(4)  # what comes up: a waiting job, a chance to move jobs, nothing any more, nothing yet

NEXT, MOVES, QUEUE, ARRIVALS = range(4)  # where in an instant a stream is

CLOCK = np.dtype(
    [
        ("now_s", "f8"),  # the stream's only clock
        ("usd", "f8"),  # spent so far
        ("work_h", "f8"),  # iterations done times T_solo of the jobs that have left
        ("spent_usd", "f8"),  # since the last decision, as all that follows down to `invalid`; discounted from there on
        ("hours", "f8"),
        ("left_work_h", "f8"),  # work of the jobs that left
        ("left", "i8"),  # jobs that left
        ("left_broken", "i8"),  # those of them with a slowdown above their SLO
        ("invalid", "i8"),  # 1 where the last choice was masked
        ("n_jobs", "i8"),
        ("taken", "i8"),  # jobs that have arrived; rows are in order of arrival
        ("admitted", "i8"),  # jobs that have been placed: the queue is rows admitted to taken
        ("departed", "i8"),
        ("broken", "i8"),  # jobs that left with a slowdown above their SLO
        ("moved", "i8"),  # moves of running jobs
        ("packed", "i8"),  # admissions by strategy
        ("scaled", "i8"),
        ("rollout_nodes", "i8"),  # provisioned now, those held for moves included
        ("training_nodes", "i8"),
        ("n_groups", "i8"),
        ("groups_made", "i8"),
        ("n_held", "i8"),
        ("served", "i8"),  # 1 where the queue is to be served in this instant
        ("stage", "i8"),
        ("after", "i8"),  # the stage that follows when no more jobs are moved
        ("asks", "i8"),  # what is to be decided
        ("choices", "i8"),  # how many there are
        ("overflow", "i8"),  # 1 where choices that could be made were left out
    ]
)


HELD = np.dtype([("until_s", "f8"), ("job", "i8"), ("rollout_nodes", "i8"), ("training_nodes", "i8")])


class Streams(NamedTuple):
    """E streams of at most J jobs.

    Attributes:
        jobs: (E, J) records with the columns of `JobTable`, `arrival_s` and `duration_s` (fixed stay, or infinite), in order of
            arrival. groups: (E, G) records with the columns of `GroupTable`.
        order: (E, G) rows of the present groups in order of creation. spare: (E, G) rows not in use, taken from the end.
        held: (E, J) of `HELD`: nodes that a moved job has left, until its pause ends.
        clock: (E,) of `CLOCK`.
    """

    jobs: Records
    groups: Records
    order: Ints
    spare: Ints
    held: Records
    clock: Records


def stream_table(streams: int, jobs: int, members: int, nodes: int, steps: int) -> Streams:
    """Empty tables.

    Args:
        streams, jobs: E and J. members: most jobs in a group. nodes: most rollout nodes of a job. steps: rescaling steps of a job.
            Each of the last three is taken up to 5, 4 and 2 at least, and above to a power of two: the widths are part of the
            records' type, so most environments share one compiled kernel.
    """
    return Streams(
        jobs=job_records((streams, jobs), nodes, steps),
        groups=group_records((streams, jobs), min(members, jobs), nodes),
        order=np.zeros((streams, jobs), dtype=np.int64),
        spare=np.zeros((streams, jobs), dtype=np.int64),
        held=np.zeros((streams, jobs), dtype=HELD),
        clock=np.zeros(streams, dtype=CLOCK),
    )


def job_records(shape: tuple[int, ...], nodes: int, steps: int) -> Records:
    """Empty records of jobs with at most so many rollout nodes and rescaling steps.

    The widths are part of the records' type: they are taken up to 4 and 2 at least, and above to a power of two, so that most
    environments share one compiled kernel.
    """
    table = job_table(1, _round_up(nodes, 4), _round_up(steps, 2))
    return records_like(table, shape, [("arrival_s", "f8"), ("duration_s", "f8")])


def group_records(shape: tuple[int, ...], members: int, nodes: int) -> Records:
    """Empty records of groups of at most so many jobs with so many rollout nodes each; one more has room halfway through a swap."""
    members = _round_up(members + 1, 6)
    return records_like(group_table(1, members, members * _round_up(nodes, 4)), shape)


def _round_up(n: int, least: int) -> int:
    return least if n <= least else 1 << (n - 1).bit_length()


def records_like(table: JobTable | GroupTable, shape: tuple[int, ...], more: Sequence[tuple[str, str]] = ()) -> Records:
    """Records with the columns of a table of one row, filled with that row."""
    columns = table._asdict()
    fields: list[Any] = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
    records = np.zeros(shape, dtype=np.dtype([*fields, *more]))
    for name, column in columns.items():
        records[name] = column[0]
    return records


@uncounted
def begin(streams: Streams, s: int, n_jobs: int) -> None:
    """Start a stream whose first `n_jobs` job rows have been written: nothing has happened yet."""
    jobs = streams.jobs[s]
    for j in range(n_jobs):
        jobs.group[j] = NOWHERE
        jobs.n_pins[j] = 0
        jobs.done[j] = 0.0
        jobs.rollout_busy_s[j] = 0.0
        jobs.training_busy_s[j] = 0.0
        jobs.admitted_s[j] = 0.0
        jobs.paused_until_s[j] = 0.0
        jobs.leaves_s[j] = np.inf
    size = streams.spare.shape[1]
    for k in range(size):
        streams.spare[s, k] = size - 1 - k
    c = streams.clock[s]
    c.now_s = jobs.arrival_s[0]
    c.usd = c.work_h = 0.0
    begin_interval(streams, s)
    c.n_jobs = n_jobs
    c.taken = c.admitted = c.departed = c.broken = c.moved = c.packed = c.scaled = 0
    c.rollout_nodes = c.training_nodes = c.n_groups = c.groups_made = c.n_held = c.served = c.asks = c.choices = c.overflow = 0
    c.stage = NEXT


@uncounted
def begin_interval(streams: Streams, s: int) -> None:
    """A decision has been made: what is counted since the last one starts anew."""
    c = streams.clock[s]
    c.spent_usd = c.hours = c.left_work_h = 0.0
    c.left = c.left_broken = c.invalid = 0
