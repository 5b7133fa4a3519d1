"""Many streams of jobs side by side: their tables, and their clock.

One stream is a scenario's jobs on a cluster of its own. Every table has a leading axis of E streams.

The columns are those of `rollmux_env.kernel.tables`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Clock, Ints, Limits, Records, View, group_table, group_width, job_table

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
        ("first", "i8"),  # 1 until the first decision is made: the first interval counts from the beginning of the stream
        ("n_jobs", "i8"),
        ("taken", "i8"),  # jobs that have arrived; rows are in order of arrival
        ("admitted", "i8"),  # jobs that have been placed: the queue is rows admitted to taken
        ("departed", "i8"),
        ("broken", "i8"),  # jobs that left with a slowdown above their SLO
        ("moved", "i8"),  # moves of running jobs
        ("packed", "i8"),  # admissions by strategy
        ("scaled", "i8"),
        ("n_groups", "i8"),
        ("groups_made", "i8"),
        ("n_reservations", "i8"),
        ("served", "i8"),  # 1 where the queue is to be served in this instant
        ("stage", "i8"),
        ("after", "i8"),  # the stage that follows when no more jobs are moved
        ("asks", "i8"),  # what is to be decided
        ("choices", "i8"),  # how many there are
        ("overflow", "i8"),  # 1 where choices that could be made were left out
    ]
)


_NODES = ("rollout_pool", "training_pool", "rollout_nodes", "training_nodes")
RESERVATION = np.dtype([("until_s", "f8"), ("job", "i8"), *((name, "i8") for name in _NODES)])


class Rules(NamedTuple):
    """What holds in all streams of an environment.

    Attributes:
        limits: of the cluster.
        moves: jobs may be moved after admissions and departures. migration_s: their pause, seconds.
        shield: choices that break an SLO are masked.
        known_stays: it is observed when jobs leave.
        skip_forced: decisions with one choice that may be made are carried out and not asked.
        decay: dollars count exp(-decay * hours since the last decision) times.
        prune: the reference, Algorithm 1, leaves saturated groups out, as printed in the paper.
    """

    limits: Limits
    moves: bool
    migration_s: float
    shield: bool
    known_stays: bool
    skip_forced: bool
    decay: float
    prune: bool


class Streams(NamedTuple):
    """E streams of at most J jobs, on P pools each.

    Attributes:
        jobs: (E, J) records, in order of arrival, and behind them those of shapes. groups: (E, G) records.
        order: (E, G) rows of the present groups in order of creation. spare: (E, G) rows not in use, taken from the end.
        reservations: (E, J) of `RESERVATION`: nodes that a moved job has left, until its pause ends.
        nodes: (E, P, 2) provisioned now of each pool, for rollouts and for trainings, those held for moves included.
        clock: (E,) of `CLOCK`.
    """

    jobs: Records
    groups: Records
    order: Ints
    spare: Ints
    reservations: Records
    nodes: Ints
    clock: Records


def stream_table(streams: int, pools: int, jobs: int, members: int, nodes: int, steps: int, shapes: int) -> Streams:
    """Empty tables.

    Args:
        streams, pools, jobs: E, P and J. members: most jobs in a group. nodes: most rollout nodes of a job. steps: rescaling steps
            of a job. shapes: rows of shapes.
    """
    shape = (streams, jobs)
    return Streams(
        jobs=job_table((streams, jobs + shapes), nodes, steps),
        groups=group_table(shape, *group_width(min(members, jobs), nodes)),
        order=np.zeros(shape, dtype=np.int64),
        spare=np.zeros(shape, dtype=np.int64),
        reservations=np.zeros(shape, dtype=RESERVATION),
        nodes=np.zeros((streams, pools, 2), dtype=np.int64),
        clock=np.zeros(streams, dtype=CLOCK),
    )


@compiled(arrays=False)
def view_of(streams: Streams, s: int, limits: Limits) -> View:
    """One stream as the kernel sees it; for functions that count no references, since this one gives arrays back."""
    c = streams.clock[s]
    clock = Clock(c.now_s, streams.nodes[s], c.taken - c.admitted)
    return View(streams.jobs[s], streams.groups[s], streams.order[s, : c.n_groups], limits, clock)


@compiled(arrays=False)
def begin(streams: Streams, s: int, n_jobs: int) -> None:
    """Start a stream whose first `n_jobs` job rows have been written: nothing has happened yet."""
    size = streams.spare.shape[1]
    for k in range(size):
        streams.spare[s, k] = size - 1 - k
    c = streams.clock[s]
    c.now_s = streams.jobs[s, 0].arrival_s
    c.usd = c.work_h = 0.0
    begin_interval(streams, s)
    c.n_jobs = n_jobs
    c.taken = c.admitted = c.departed = c.broken = c.moved = c.packed = c.scaled = 0
    streams.nodes[s] = 0
    c.n_groups = c.groups_made = c.n_reservations = 0
    c.served = c.asks = c.choices = c.overflow = 0
    c.stage = NEXT
    c.asks = LATER
    c.first = 1


@compiled(arrays=False)
def begin_interval(streams: Streams, s: int) -> None:
    """A decision has been made: what is counted since the last one starts anew."""
    c = streams.clock[s]
    c.spent_usd = c.hours = c.left_work_h = 0.0
    c.left = c.left_broken = c.invalid = 0
