"""The rows of a chance to move jobs: what one says, room to look for them, and keeping those with the greatest gain."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import shape_row
from rollmux_env.kernel.neighbourhood.insertion import place_type
from rollmux_env.kernel.pools import nodes_usd, rollout_usd
from rollmux_env.kernel.tables import Floats, Ints, Limits, Records
from rollmux_env.kernel.valuation import N_VALUES, STAY

PLACE, STOP, MOVE, EXCHANGE, MERGER = range(5)  # kinds of choices
MOVES_MOST = 4  # of one row, so the largest group that a merger dissolves
GROUPS_MOST = 24  # that are looked at
JOBS_MOST = 96  # that may move

NEW_GROUP = -1
_PER_MOVE = ("job", "of_shape", "group", "new_nodes")


class Scratch(NamedTuple):
    """Room for looking at the moves of one decision. Shapes: F groups looked at, M jobs that may move, K moves of a row.

    Attributes:
        looked: (F,) rows of the groups.
        copies: group records: as many as there are group rows, unused, then M groups without one member, then K for mergers.
        base: (F, N_VALUES) the groups' values; cut: (M, N_VALUES) of each job's group without it.
        movers: (M,) job rows; home: (M,) which of the F groups; freed: (M, 2) rollout and training nodes that a job leaves.
        saved: (M,) what each one's leaving saves, $. nearest: (M, 2) the two of the other groups where it costs least.
        joins: (M, F + M) places in the groups, then in those without one member; that in the job's own group is in another shape.
        alone: (M,) places in a group of its own.
        trial: (K,) places of a merger; merged: (1,) one that is looked at; was_jobs, was_stays: (K,) rows that it changes;
            touched: (K,) which of the F groups; sums: (K, N_VALUES) their values.
        rows: (R,) choices, unsorted; serial: (R,) when each was found; rank: (R,). counts: (3,) see `offer`.
    """

    looked: Ints
    copies: Records
    base: Floats
    cut: Floats
    movers: Ints
    home: Ints
    freed: Ints
    saved: Floats
    nearest: Ints
    joins: Records
    alone: Records
    trial: Records
    merged: Records
    was_jobs: Records
    was_stays: Records
    touched: Ints
    sums: Floats
    rows: Records
    serial: Ints
    rank: Ints
    counts: Ints


def choice_type(nodes: int) -> np.dtype[Any]:
    """One choice.

    kind: as above. n_moves: jobs that get a place, in this order: job: (K,) their rows; of_shape: (K,) numbers of the shapes that
    they get; group: (K,) rows of the groups, NEW_GROUP for a new one; new_nodes: (K,) rollout nodes to add; nodes: (K, N) numbers
    of the groups' nodes, padded with -1.
    feasible: 1 where it breaks nothing; allowed: 1 where it may be chosen.
    usd: what it adds to the cluster's $/h, after the pauses. period_s: of the first job's group with it.
    gain: see above; price: of the nodes that are left, $. before, more: (N_VALUES,) of the groups that it changes, and the change.
    """
    ints = [
        *((name, "i8") for name in ("kind", "n_moves", "feasible", "allowed")),
        *((n, "i8", (MOVES_MOST,)) for n in _PER_MOVE),
    ]
    floats = [
        *((name, "f8") for name in ("usd", "period_s", "gain", "price")),
        *((n, "f8", (N_VALUES,)) for n in ("before", "more")),
    ]
    return np.dtype([*ints, ("nodes", "i8", (MOVES_MOST, nodes)), *floats])


def make_scratch(jobs: Records, groups: Records, rows: int) -> Scratch:
    """Room for tables like these records, and for so many choices."""
    nodes, most = jobs.dtype["pins"].shape[0], JOBS_MOST
    place = place_type(nodes)
    return Scratch(
        looked=np.zeros(GROUPS_MOST, dtype=np.int64),
        copies=np.zeros(len(groups) + most + MOVES_MOST, dtype=groups.dtype),
        base=np.zeros((GROUPS_MOST, N_VALUES)),
        cut=np.zeros((most, N_VALUES)),
        movers=np.zeros(most, dtype=np.int64),
        home=np.zeros(most, dtype=np.int64),
        freed=np.zeros((most, 2), dtype=np.int64),
        saved=np.zeros(most),
        nearest=np.zeros((most, 2), dtype=np.int64),
        joins=np.zeros((most, GROUPS_MOST + most), dtype=place),
        alone=np.zeros(most, dtype=place),
        trial=np.zeros(MOVES_MOST, dtype=place),
        merged=np.zeros(1, dtype=place),
        was_jobs=np.zeros(MOVES_MOST, dtype=jobs.dtype),
        was_stays=np.zeros(MOVES_MOST, dtype=STAY),
        touched=np.zeros(MOVES_MOST, dtype=np.int64),
        sums=np.zeros((MOVES_MOST, N_VALUES)),
        rows=np.zeros(rows, dtype=choice_type(nodes)),
        serial=np.zeros(rows, dtype=np.int64),
        rank=np.zeros(rows, dtype=np.int64),
        counts=np.zeros(3, dtype=np.int64),
    )


@compiled(arrays=False)
def write_stop(choice: Records) -> None:
    """Make a choice that of no more moves."""
    choice.kind = STOP
    choice.n_moves = 0
    choice.usd = choice.period_s = choice.gain = choice.price = 0.0
    choice.feasible = choice.allowed = 1


@compiled(arrays=False)
def falls_short(scratch: Scratch, gain: float) -> bool:
    """Whether a row with this gain is not to be kept; it is counted then. `offer` finds out the same, with more to pass."""
    rows, counts = scratch.rows, scratch.counts
    short = counts[0] == rows.shape[0] and not (counts[0] > 0 and gain > rows[counts[2]].gain)
    if short:
        counts[1] += 1
    return bool(short)


@compiled(arrays=False)
def offer(scratch: Scratch, gain: float) -> int:
    """Where a row with this gain may be written, or -1; `counts`: rows kept, rows offered, and the worst row of a full table."""
    rows, serial, counts = scratch.rows, scratch.serial, scratch.counts
    room = rows.shape[0]
    counts[1] += 1
    if counts[0] < room:
        counts[0] += 1
        at = counts[0] - 1
    elif room > 0 and gain > rows[counts[2]].gain:
        at = counts[2]
    else:
        return -1
    rows[at].gain = gain
    serial[at] = counts[1]
    if counts[0] == room:
        worst = 0
        for k in range(1, room):
            less = rows[k].gain - rows[worst].gain
            if less < 0.0 or (less == 0.0 and serial[k] > serial[worst]):
                worst = k
        counts[2] = worst
    return int(at)


@compiled(arrays=False)
def begin_row(row: Records, kind: int) -> None:
    row.kind = kind
    row.n_moves = 0
    row.feasible = 1
    row.usd = 0.0
    row.price = 0.0
    for k in range(row.more.shape[0]):
        row.before[k] = 0.0
        row.more[k] = 0.0


@compiled(arrays=False)
def leave_nodes(row: Records, left: Records, limits: Limits, migration_h: float, rollout: int, training: int) -> None:
    """Write that so many nodes of the pools of a job or a group, a record, are left, and paid for until the pauses end."""
    usd_per_hour = nodes_usd(left, rollout, training, limits)
    row.usd -= usd_per_hour
    row.price += usd_per_hour * migration_h


@compiled(arrays=False)
def change_group(row: Records, before: Floats, after: Floats) -> None:
    """Write that a group changes from some values to others."""
    for k in range(before.shape[0]):
        row.before[k] += before[k]
        row.more[k] += after[k] - before[k]


@compiled(arrays=False)
def add_move(row: Records, jobs: Records, limits: Limits, number: int, group: int, place: Records) -> None:
    """Write that a job takes a place; `number` is its row."""
    job = jobs[shape_row(jobs[number], number, place.of_shape)]
    at = row.n_moves
    row.n_moves += 1
    row.job[at] = number
    row.of_shape[at] = place.of_shape
    row.group[at] = group
    row.new_nodes[at] = place.new_nodes
    for k in range(place.nodes.shape[0]):
        row.nodes[at, k] = place.nodes[k]
    if at == 0:
        row.period_s = place.period_s
    if place.breaks == 1:
        row.feasible = 0
    row.usd += place.new_nodes * rollout_usd(job, limits)
    if group == NEW_GROUP:
        row.usd += job.training_nodes * limits.pools[job.training_pool].usd
    for k in range(place.more.shape[0]):
        row.more[k] += place.more[k]


@compiled(arrays=False)
def keep_group(row: Records, values: Floats) -> None:
    """Write that a group changes which no one leaves."""
    for k in range(values.shape[0]):
        row.before[k] += values[k]


@compiled(arrays=False)
def clear_unused_moves(row: Records) -> None:
    """Zero what earlier rows left behind the last move: a row is a function of its decision alone, which exact resume relies on."""
    for k in range(row.n_moves, row.job.shape[0]):
        row.job[k] = row.of_shape[k] = row.group[k] = row.new_nodes[k] = 0
        for v in range(row.nodes.shape[1]):
            row.nodes[k, v] = 0


@compiled(arrays=False)
def price_of(scratch: Scratch, job: Records, limits: Limits, migration_h: float, k: int) -> float:
    """What is paid for the nodes that a job, a record, leaves, until its pause ends, $."""
    return float(nodes_usd(job, scratch.freed[k, 0], scratch.freed[k, 1], limits) * migration_h)
