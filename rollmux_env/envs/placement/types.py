"""Tables of many parallel streams of jobs, and their clocks.

A stream is the jobs of a scenario on a separate cluster. Every table has a leading axis of E streams. The columns are those of
`rollmux_env.kernel.tables`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Clock, Ints, Limits, Records, View, group_table, group_width, job_table

INSTANT_S = 1e-6  # times this close are simultaneous
NEW_GROUP = -1

ADMIT, CONSOLIDATE, OVER, LATER = range(4)  # next decision: a waiting job, possible moves, none any more, none yet

NEXT, MOVES, QUEUE, ARRIVALS = range(4)  # stage of a stream within an instant

CLOCK = np.dtype(
    [
        ("now_s", "f8"),  # current time of the stream
        ("usd", "f8"),  # dollars so far
        ("work_h", "f8"),  # iterations done times T_solo of the jobs that have left
        ("spent_usd", "f8"),  # from here to `invalid`: since the last decision; dollars are discounted from there
        ("hours", "f8"),
        ("left_work_h", "f8"),  # work of the jobs that left
        ("left", "i8"),  # jobs that left
        ("left_broken", "i8"),  # jobs that left with a slowdown above their SLO
        ("invalid", "i8"),  # 1 if the last choice was masked
        ("first", "i8"),  # 1 until the first decision is made, because the first interval starts with the stream
        ("n_jobs", "i8"),
        ("taken", "i8"),  # jobs that have arrived; rows are in order of arrival
        ("admitted", "i8"),  # jobs that have been placed; the queue is rows admitted to taken
        ("departed", "i8"),
        ("broken", "i8"),  # jobs that left with a slowdown above their SLO
        ("moved", "i8"),  # moves of running jobs
        ("packed", "i8"),  # admissions by strategy
        ("scaled", "i8"),
        ("n_groups", "i8"),
        ("groups_made", "i8"),
        ("n_reservations", "i8"),
        ("served", "i8"),  # 1 if the queue has to be served in this instant
        ("stage", "i8"),
        ("after", "i8"),  # stage that follows the moves
        ("asks", "i8"),  # kind of the current decision
        ("choices", "i8"),  # number of its choices
        ("overflow", "i8"),  # 1 if allowed choices were left out
    ]
)


_NODES = ("rollout_pool", "training_pool", "rollout_nodes", "training_nodes")
RESERVATION = np.dtype([("until_s", "f8"), ("job", "i8"), *((name, "i8") for name in _NODES)])


class Rules(NamedTuple):
    """Rules of all streams of an environment.

    Attributes:
        limits: Prices and limits of the cluster.
        moves: Whether jobs may be moved after admissions and departures.
        migration_s: Pause of a moved job, seconds.
        shield: Whether choices that break an SLO are masked.
        known_stays: Whether it is observed when jobs will leave.
        skip_forced: Whether decisions with a single allowed choice are carried out without a step.
        decay: Discount rate of dollars, exp(-decay * hours since the last decision).
        prune: Whether the reference, Algorithm 1, skips saturated groups, as in the paper.
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
    """Tables of E streams with at most J jobs on P pools each, and at most G groups.

    Attributes:
        jobs: Records of the jobs in order of arrival, followed by those of shapes, shape (E, J and shapes).
        groups: Records of the groups, shape (E, G).
        order: Rows of the current groups in order of creation, shape (E, G).
        spare: Unused rows of groups, taken from the end, shape (E, G).
        reservations: Records of `RESERVATION` for nodes that a moved job has left, until its pause ends, shape (E, J).
        nodes: Nodes of each pool provisioned now for rollouts and for trainings, including those held for moves, shape (E, P, 2).
        clock: Records of `CLOCK`, shape (E,).
    """

    jobs: Records
    groups: Records
    order: Ints
    spare: Ints
    reservations: Records
    nodes: Ints
    clock: Records


def stream_table(streams: int, pools: int, jobs: int, members: int, nodes: int, steps: int, shapes: int) -> Streams:
    """Create empty tables.

    Args:
        streams: Number of streams E.
        pools: Number of pools P.
        jobs: Largest number of jobs J.
        members: Largest number of members of a group.
        nodes: Largest number of rollout nodes of a job.
        steps: Largest number of rescaling steps of a job.
        shapes: Number of rows for shapes.
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
    """Return one stream in the form of the kernel. Only for functions compiled with `arrays=False`, because it returns arrays."""
    c = streams.clock[s]
    clock = Clock(c.now_s, streams.nodes[s], c.taken - c.admitted)
    return View(streams.jobs[s], streams.groups[s], streams.order[s, : c.n_groups], limits, clock)


@compiled(arrays=False)
def begin(streams: Streams, s: int, n_jobs: int) -> None:
    """Reset a stream whose first `n_jobs` rows of jobs have been written."""
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
    """Reset the counts since the last decision."""
    c = streams.clock[s]
    c.spent_usd = c.hours = c.left_work_h = 0.0
    c.left = c.left_broken = c.invalid = 0
