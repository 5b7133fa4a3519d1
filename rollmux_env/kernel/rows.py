"""The rows of a chance to move jobs: what one says, room to look for them, and keeping those with the greatest gain."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.horizons import N_VALUES, Stays, value_of
from rollmux_env.kernel.joining import Records, Scratch, Terms, place_type
from rollmux_env.kernel.tables import Floats, GroupTable, Ints, JobTable, Limits

PLACE, STOP, MOVE, EXCHANGE, MERGER = range(5)  # kinds of choices
MOVES_MOST = 4  # of one row, so the largest group that a merger dissolves
GROUPS_MOST = 24  # that are looked at
JOBS_MOST = 96  # that may move

NEW_GROUP = -1
_PER_MOVE = ("job", "group", "new_nodes")


class Space(NamedTuple):
    """Room for looking at the moves of one decision. Shapes: F groups looked at, M jobs that may move, K moves of a row.

    Attributes:
        looked: (F,) rows of the groups.
        copies: group records: as many as there are group rows, unused, then M groups without one member, then K for mergers.
        base: (F, N_VALUES) the groups' values; cut: (M, N_VALUES) of each job's group without it.
        movers: (M,) job rows; home: (M,) which of the F groups; freed: (M, 2) rollout and training nodes that a job leaves.
        saved: (M,) what each one's leaving saves, $. nearest: (M, 2) the two of the other groups where it costs least.
        joins: (M, F + M) places in the groups, then in those without one member; alone: (M,) in a group of its own.
        trial: (K,) places of a merger; touched: (K,) which of the F groups; sums: (K, N_VALUES) their values.
        kept: (rows,) choices, unsorted; serial: (rows,) when each was found; rank: (rows,). found: (3,) see `offer`.
        scratch: for one place.
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
    touched: Ints
    sums: Floats
    kept: Records
    serial: Ints
    rank: Ints
    found: Ints
    scratch: Scratch


def choice_type(nodes: int) -> np.dtype[Any]:
    """One choice.

    kind: as above. n_moves: jobs that get a place, in this order: job: (K,) their rows; group: (K,) rows of the groups, NEW_GROUP
    for a new one; new_nodes: (K,) rollout nodes to add; nodes: (K, N) numbers of the groups' nodes, padded with -1.
    feasible: 1 where it breaks nothing; allowed: 1 where it may be chosen.
    usd: what it adds to the cluster's $/h, after the pauses. period_s: of the first job's group with it.
    gain: see above; price: of the nodes that are left, $. before, more: (N_VALUES,) of the groups that it changes, and the change.
    """
    ints = [*((name, "i8") for name in ("kind", "n_moves", "feasible", "allowed")), *((n, "i8", (MOVES_MOST,)) for n in _PER_MOVE)]
    floats = [
        *((name, "f8") for name in ("usd", "period_s", "gain", "price")),
        *((n, "f8", (N_VALUES,)) for n in ("before", "more")),
    ]
    return np.dtype([*ints, ("nodes", "i8", (MOVES_MOST, nodes)), *floats])


def move_space(groups: Records, rows: int, nodes: int) -> Space:
    """Room for tables like these group records, for so many choices, and jobs of at most so many rollout nodes."""
    jobs, wide = JOBS_MOST, groups.dtype["node_number"].shape[0]
    place = place_type(nodes)
    return Space(
        looked=np.zeros(GROUPS_MOST, dtype=np.int64),
        copies=np.zeros(len(groups) + jobs + MOVES_MOST, dtype=groups.dtype),
        base=np.zeros((GROUPS_MOST, N_VALUES)),
        cut=np.zeros((jobs, N_VALUES)),
        movers=np.zeros(jobs, dtype=np.int64),
        home=np.zeros(jobs, dtype=np.int64),
        freed=np.zeros((jobs, 2), dtype=np.int64),
        saved=np.zeros(jobs),
        nearest=np.zeros((jobs, 2), dtype=np.int64),
        joins=np.zeros((jobs, GROUPS_MOST + jobs), dtype=place),
        alone=np.zeros(jobs, dtype=place),
        trial=np.zeros(MOVES_MOST, dtype=place),
        touched=np.zeros(MOVES_MOST, dtype=np.int64),
        sums=np.zeros((MOVES_MOST, N_VALUES)),
        kept=np.zeros(rows, dtype=choice_type(nodes)),
        serial=np.zeros(rows, dtype=np.int64),
        rank=np.zeros(rows, dtype=np.int64),
        found=np.zeros(3, dtype=np.int64),
        scratch=Scratch(
            np.zeros(nodes + 1, dtype=np.int64), np.zeros(nodes + 1, dtype=np.int64), np.zeros(wide + 1), np.zeros(N_VALUES)
        ),
    )


@uncounted
def write_stop(choice: Records) -> None:
    """Make a choice that of no more moves."""
    choice.kind = STOP
    choice.n_moves = 0
    choice.usd = choice.period_s = choice.gain = choice.price = 0.0
    choice.feasible = choice.allowed = 1


@uncounted
def falls_short(kept: Records, found: Ints, gain: float) -> bool:
    """Whether a row with this gain is not to be kept; it is counted then. `offer` finds out the same, with more to pass."""
    short = found[0] == kept.shape[0] and not (found[0] > 0 and gain > kept[found[2]].gain)
    if short:
        found[1] += 1
    return bool(short)


@uncounted
def offer(space: Space, found: Ints, gain: float) -> int:
    """Where a row with this gain may be written, or -1; `found`: rows kept, rows offered, and the worst row of a full table."""
    kept, serial = space.kept, space.serial
    room = kept.shape[0]
    found[1] += 1
    if found[0] < room:
        found[0] += 1
        at = found[0] - 1
    elif room > 0 and gain > kept[found[2]].gain:
        at = found[2]
    else:
        return -1
    kept[at].gain = gain
    serial[at] = found[1]
    if found[0] == room:
        worst = 0
        for k in range(1, room):
            less = kept[k].gain - kept[worst].gain
            if less < 0.0 or (less == 0.0 and serial[k] > serial[worst]):
                worst = k
        found[2] = worst
    return int(at)


@uncounted
def begin_row(row: Records, kind: int) -> None:
    row.kind = kind
    row.n_moves = 0
    row.feasible = 1
    row.usd = 0.0
    row.price = 0.0
    for k in range(row.more.shape[0]):
        row.before[k] = 0.0
        row.more[k] = 0.0


@uncounted
def change_group(row: Records, limits: Limits, terms: Terms, rollout: int, training: int, before: Floats, after: Floats) -> None:
    """Write that a group changes from some values to others, and that so many nodes are left."""
    usd_per_hour = rollout * limits.rollout_usd + training * limits.training_usd
    row.usd -= usd_per_hour
    row.price += usd_per_hour * terms.migration_h
    for k in range(before.shape[0]):
        row.before[k] += before[k]
        row.more[k] += after[k] - before[k]


@uncounted
def add_move(row: Records, jobs: JobTable, limits: Limits, job: int, group: int, place: Records) -> None:
    """Write that a job takes a place."""
    at = row.n_moves
    row.n_moves += 1
    row.job[at] = job
    row.group[at] = group
    row.new_nodes[at] = place.new_nodes
    for k in range(place.nodes.shape[0]):
        row.nodes[at, k] = place.nodes[k]
    if at == 0:
        row.period_s = place.period_s
    if place.breaks == 1:
        row.feasible = 0
    row.usd += place.new_nodes * limits.rollout_usd
    if group == NEW_GROUP:
        row.usd += jobs.training_nodes[job] * limits.training_usd
    for k in range(place.more.shape[0]):
        row.more[k] += place.more[k]


@uncounted
def keep_group(row: Records, values: Floats) -> None:
    """Write that a group changes which no one leaves."""
    for k in range(values.shape[0]):
        row.before[k] += values[k]


@uncounted
def price_of(space: Space, limits: Limits, terms: Terms, k: int) -> float:
    """What is paid for the nodes that a job leaves, until its pause ends, $."""
    return float((space.freed[k, 0] * limits.rollout_usd + space.freed[k, 1] * limits.training_usd) * terms.migration_h)


@uncounted
def value_now(
    jobs: JobTable, groups: GroupTable, limits: Limits, stays: Stays, terms: Terms, group: int, scratch: Scratch, out: Floats
) -> None:
    """The values of a group as it is."""
    period, pool = groups.period_s[group], groups.training_nodes[group]
    needed, nodes = scratch.needed, scratch.nodes
    value_of(jobs, groups, limits, stays, group, pool, -1, nodes, 0, period, 0.0, terms.work_usd, needed, out)
