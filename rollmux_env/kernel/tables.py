"""Tables that Python and compiled code share: the view of a cluster, with a record for each job, group and pool.

A `rollmux_env.cluster.state.State` owns one view, an environment one a stream. Tables are structured arrays: compiled code reads
`jobs[row].rollout_s`, Python `jobs["rollout_s"][row]`, or `jobs.rollout_s[row]` if it is given a record array. Shapes: P pools, J
job rows, G group rows, M members of a group, N rollout nodes (of a job in `pins`, else of a group), K rescaling steps.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Records = Any  # a structured array; in compiled code a row of one too


NOWHERE = -1
COLD = -2  # in place of a group's number
UNUSED = np.iinfo(np.int64).max  # nodes of a rescaling step that there is not
ROLLOUT, TRAINING = 0, 1  # sides of a group
TOLERANCE = 1e-9  # relative, in favour of <= and >=: SLO, residency, saturation

# Columns of the job table: name, type, second axis.
_JOB = (
    ("rollout_s", "f8", ""),  # worst-case rollout on the job's own rollout nodes, seconds
    ("training_s", "f8", ""),  # worst-case training on the job's own number of training nodes, seconds
    ("sync_s", "f8", ""),  # seconds
    ("staleness", "f8", ""),  # maximum age of the weights that sample, in versions
    ("solo_s", "f8", ""),  # T_solo, seconds
    ("alone_s", "f8", ""),  # the same in the shape that the row has, seconds
    ("limit_s", "f8", ""),  # longest period that keeps the SLO, slo * T_solo, seconds
    # Where switches are planned (`rollmux_env.kernel.promises`); else no switch takes time, and both limits are `limit_s`.
    # A limit is the longest period of a group that keeps the job's promise if no cold start is ahead in the group.
    ("rollout_warm_s", "f8", ""),  # warm start of a phase on nodes that others use too, seconds
    ("training_warm_s", "f8", ""),
    ("cold_s", "f8", ""),  # cold starts of both phases in a new place, seconds
    ("coming_cold_s", "f8", ""),  # those that it still has before it in its present place, seconds
    ("entered_done", "f8", ""),  # iterations that it had done when it came to its present place
    ("entered_warm", "i8", ""),  # 1 where it came there with its state alive on the nodes
    ("admitted_warm", "i8", ""),  # 1 where it came so to its first place
    ("warm_group", "i8", ""),  # of a job that waits: number of the group that it could enter so, NOWHERE for a new one, or COLD
    ("stays_limit_s", "f8", ""),  # where it is, when another job enters its group
    ("stays_per_cold", "f8", ""),  # decrease of that limit for each second of cold starts ahead
    ("enters_limit_s", "f8", ""),  # when it enters a group itself
    ("enters_per_cold", "f8", ""),  # likewise
    ("is_tentative", "i8", ""),  # 1 where its place is one of a plan in progress, which it has not entered yet
    ("rollout_gb", "f8", ""),  # host memory per node, GB
    ("training_gb", "f8", ""),
    ("rollout_device_gb", "f8", ""),  # memory that the job keeps on each GPU between its phases, GB
    ("training_device_gb", "f8", ""),
    ("rollout_pool", "i8", ""),  # pools whose nodes the phases run on, as numbers
    ("training_pool", "i8", ""),
    ("rollout_nodes", "i8", ""),  # nodes that the phases ask for
    ("training_nodes", "i8", ""),
    ("rescale_nodes", "i8", "K"),  # nodes, ascending, from which a training takes `rescale_s`; unused steps come last
    ("rescale_s", "f8", "K"),
    # A job of several shapes has a row of each, and one more that has those of the shape it runs in, or of shape 0 while it waits.
    ("of_shape", "i8", ""),  # number of the row's shape
    ("more_shapes", "i8", ""),  # how many shapes the job has beside shape 0; -1 in the row of a shape
    ("first_shape", "i8", ""),  # row of shape 0, behind which come the others; of a job with one shape its own
    ("movable", "i8", ""),  # 0 where the job stays in the place that it got first, else 1
    ("group", "i8", ""),  # row of the job's group, or NOWHERE
    ("pins", "i8", "N"),  # numbers of the rollout nodes that it is pinned to, ascending
    ("n_pins", "i8", ""),  # how many
    ("placed_rollout_s", "f8", ""),  # the phases in the present placement, seconds
    ("placed_training_s", "f8", ""),
    ("placed_sync_s", "f8", ""),
    ("done", "f8", ""),  # iterations done, with fractions, when its group was last settled
    ("rollout_busy_s", "f8", ""),  # node-seconds of its phases on either pool's nodes, likewise
    ("training_busy_s", "f8", ""),
    ("admitted_s", "f8", ""),  # when it was admitted
    ("paused_until_s", "f8", ""),  # end of the pause of a move
    ("iterations", "f8", ""),  # after which it leaves, or infinite
    ("leaves_s", "f8", ""),  # when its fixed stay ends, or infinite
    ("arrival_s", "f8", ""),  # when it arrived
    ("duration_s", "f8", ""),  # its fixed stay, or infinite
)

LIMITS = ("limit_s", "stays_limit_s", "enters_limit_s")  # all the same where switches are not planned

# Columns of the group table.
_GROUP = (
    ("id", "i8", ""),  # numbers in order of creation, never reused
    ("members", "i8", "M"),  # job rows in order of admission
    ("n_members", "i8", ""),  # how many
    ("rollout_pool", "i8", ""),  # pools of its nodes, as numbers; those of its first member, so of every one
    ("training_pool", "i8", ""),
    ("training_nodes", "i8", ""),  # how many training nodes it has
    ("node_number", "i8", "N"),  # the rollout nodes' numbers, ascending
    ("n_nodes", "i8", ""),  # how many
    ("next_number", "i8", ""),  # of the next new node
    ("node_load_s", "f8", "N"),  # rollout seconds pinned to a node in a meta-iteration, without warm starts
    ("node_gb", "f8", "N"),  # host memory in use on a node, GB
    ("node_device_gb", "f8", "N"),  # memory that its members keep on each GPU of a node, GB
    ("node_before", "i8", "N"),  # position of the last node before this one with the same pinned members, or -1
    ("training_load_s", "f8", ""),  # training seconds in a meta-iteration, without warm starts
    ("training_gb", "f8", ""),  # host memory in use on each training node, GB
    ("training_device_gb", "f8", ""),  # memory that its members keep on each GPU of a training node, GB
    ("cycle_s", "f8", ""),  # T_cycle, seconds
    ("load_s", "f8", ""),  # T_load, seconds
    ("limit_s", "f8", ""),  # longest period that keeps every member's SLO, seconds
    ("tentative_members", "i8", ""),  # members whose place is tentative
    ("coming_cold_s", "f8", ""),  # cold starts that its members still have before them, seconds
    ("joined_limit_s", "f8", ""),  # longest period that keeps every member's promise when a job enters warm
    ("joined_per_cold", "f8", ""),  # most that each second of a cold entry takes off that
    ("warm_s", "f8", ""),  # its members' longest warm start, seconds
    ("period_s", "f8", ""),  # exact round-robin period, seconds
    ("work_rate", "f8", ""),  # work-hours that its members do in an hour
    ("general", "i8", ""),  # 1 where the period can exceed max(cycles, loads): a member has sync or spans rollout nodes
    ("exclusive", "i8", ""),  # 1 for a co-located job's own training nodes: not a co-execution group, no one may join
    ("settled_s", "f8", ""),  # when the members' `done` was last brought up to date
    ("departs_s", "f8", ""),  # when the first member leaves at the present period
)


# A pool; counts and memory without a limit are infinite.
POOL = np.dtype(
    [
        ("usd", "f8"),  # price of a node, $/h
        ("nodes_max", "f8"),  # nodes that can be provisioned at once
        ("node_gb", "f8"),  # host memory of a node, GB
        ("device_gb", "f8"),  # of each GPU, for what jobs keep there between their phases, GB
    ]
)


def fields(whole: str, real: str = "") -> list[tuple[str, str]]:
    """Return the fields of a record by name: integers, then floats."""
    return [(name, "i8") for name in whole.split()] + [(name, "f8") for name in real.split()]


class Limits(NamedTuple):
    """Limits of the whole cluster.

    Attributes:
        pools: (P,) records of `POOL`, in the order of `rollmux_env.keys.cluster.Cluster.pools`.
        group_size_max: Maximum number of jobs in a group.
    """

    pools: Records
    group_size_max: int


class Clock(NamedTuple):
    """Present time and use of the cluster.

    Attributes:
        now_s: Time, seconds.
        nodes: (P, 2) provisioned nodes of each pool, for rollouts and for trainings, including those held for moves.
        waiting: Number of jobs in the queue.
    """

    now_s: float
    nodes: Ints
    waiting: int


class View(NamedTuple):
    """A cluster as compiled code sees it.

    Attributes:
        jobs: (J,) records of jobs.
        groups: (G,) records of groups.
        order: Rows of the relevant groups in order of creation; for a whole cluster, all present ones.
        limits: Limits of the whole cluster.
        clock: Present time and use of the cluster.
    """

    jobs: Records
    groups: Records
    order: Ints
    limits: Limits
    clock: Clock


_FILL = {
    "rescale_nodes": UNUSED,
    "movable": 1,
    "group": NOWHERE,
    "warm_group": COLD,
    "iterations": np.inf,
    "leaves_s": np.inf,
    "duration_s": np.inf,
}


@cache
def _blank(columns: tuple[tuple[str, str, str], ...], **widths: int) -> Records:
    """Return (1,) an empty record."""
    blank = np.zeros(1, np.dtype([(name, kind, (widths[axis],)) if axis else (name, kind) for name, kind, axis in columns]))
    for name, _, _ in columns:
        blank[name] = _FILL.get(name, 0)
    return blank


def _table(columns: tuple[tuple[str, str, str], ...], shape: tuple[int, ...], **widths: int) -> Records:
    """Return empty records. A width is part of the records' type, and every type is compiled separately."""
    blank = _blank(columns, **widths)
    table = np.empty(shape, blank.dtype)
    _bytes(table)[...] = _bytes(blank)
    return table


def _round_up(n: int, least: int) -> int:
    return least if n <= least else 1 << (n - 1).bit_length()


def job_table(shape: int | tuple[int, ...], pins: int, steps: int) -> Records:
    """Return empty records of jobs with at least `pins` rollout nodes and `steps` rescaling steps.

    The widths are rounded up to 4 and 2, and above to a power of two, so that most tables share one compiled kernel.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    return _table(_JOB, shape, N=_round_up(pins, 4), K=_round_up(steps, 2))


def group_table(shape: int | tuple[int, ...], members: int, nodes: int) -> Records:
    """Return empty records of groups of at least `members` jobs with `nodes` rollout nodes, rounded up to 6 and 24 likewise.

    A search needs room for one member more than a group may have: halfway through a swap the group has one more.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    return _table(_GROUP, shape, M=_round_up(members, 6), N=_round_up(nodes, 24))


def group_width(members: int, pins: int) -> tuple[int, int]:
    """Return the members and rollout nodes that a group's record has room for, from its jobs and the rollout nodes of each."""
    members = _round_up(members + 1, 6)
    return members, members * _round_up(pins, 4)


def copy_into(table: Records, other: Records) -> None:
    """Copy every column of another table, as far as this one has room for it."""
    for name in other.dtype.names:
        corner = tuple(slice(0, min(sizes)) for sizes in zip(table[name].shape, other[name].shape, strict=True))
        table[name][corner] = other[name][corner]


# NumPy copies records column by column, which takes twenty times as long as in one piece. For chosen rows, `table.take(rows)` does
# the same for `table[rows]`.


def copied(table: Records) -> Records:
    """Return a copy of a table."""
    return _bytes(table).copy().view(table.dtype)


def joined(first: Records, second: Records) -> Records:
    """Return the rows of two tables of the same type, one after the other."""
    return np.concatenate([_bytes(first), _bytes(second)]).view(first.dtype)


def begin_with(table: Records, rows: Records) -> None:
    """Write rows into the first ones of a table, as far as that is wide."""
    if table.dtype == rows.dtype:
        _bytes(table)[: len(rows)] = _bytes(rows)
    else:
        copy_into(table, rows)


def rows_of_shapes(jobs: Records) -> tuple[Ints, Ints, Ints]:
    """Return the positions of the jobs' shapes in the table that the jobs are from.

    Returns:
        (S,) rows of the shapes of jobs with several, job after job; (S,) the position in `jobs` of each one's job; (n,) the
        position among the S at which each job's shapes begin.
    """
    counts = np.where(jobs["more_shapes"] > 0, jobs["more_shapes"] + 1, 0)
    starts = np.cumsum(counts) - counts
    of_job = np.repeat(np.arange(len(jobs)), counts)
    return (jobs["first_shape"] - starts)[of_job] + np.arange(of_job.size), of_job, starts


def _bytes(table: Records) -> Records:
    return table.view(_type_of_bytes(table.dtype.itemsize))


@cache
def _type_of_bytes(count: int) -> np.dtype[Any]:
    return np.dtype((np.void, count))
