"""Possible actions at a decision in a group.

With M members, row 0 waits. Row k + 1 starts the phase for which member k waits, or migrates the tail of its rollout. Row M + k + 1
starts the training of member k if it is stale, because it may wait for a rollout at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch import turns
from rollmux_env.kernel.dispatch.rows import NOTHING, ROLLOUT, TAIL, TRAINING, TRAINING_POOL, WAITS
from rollmux_env.kernel.tables import Records

_overdue_before, _round_robin = twin(turns.overdue_before), twin(turns.round_robin)
_movable, _awaited_nodes = twin(turns.movable), twin(turns.awaited_nodes)


@compiled(arrays=False)
def row_of(members: Records, k: int, phase: int) -> int:
    """Return the row that starts a phase of member k or migrates its tail, or 0 for `NOTHING`."""
    if phase == NOTHING:
        return 0
    return (len(members) if phase == TRAINING and members[k].staleness > 0 else 0) + k + 1


@compiled(arrays=False)
def choice_of(members: Records, row: int) -> tuple[int, int]:
    """Return the member and the phase that a row starts, with `TAIL` for a migration and `NOTHING` for row 0."""
    if row == 0:
        return 0, NOTHING
    k = (row - 1) % len(members)
    m = members[k]
    if row > len(members) or (m.waits_training == WAITS and m.staleness == 0):
        return k, TRAINING
    return k, ROLLOUT if m.waits_rollout == WAITS else TAIL


@compiled(arrays=False)
def round_robin(group: Records, members: Records, migrates: bool) -> int:
    """Return the row that strict round robin chooses, or 0 if it waits."""
    k, phase = _round_robin(group, members, migrates, False)
    return row_of(members, k, phase)


@compiled(arrays=False)
def side_of(m: Records, trains: bool) -> Any:
    """Return fields of a member's rollout or training: expected seconds, whether it waits, number, times overtaken, turn."""
    if trains:
        return m.training_s, m.waits_training == WAITS, m.training_number, m.training_overtaken, m.turn_training
    return m.rollout_s, m.waits_rollout == WAITS, m.rollout_number, m.rollout_overtaken, m.turn_rollout


@compiled(arrays=False)
def _write_overdue(group: Records, members: Records, mask: NDArray[np.int8]) -> tuple[int, bool]:
    """Mark the overdue phases that may start. Return the nodes kept for all overdue phases, and whether one may start."""
    nodes, may = 0, False
    for k in range(group.n):
        for trains in (False, True):
            _, waits, number, overtaken, _ = side_of(members[k], trains)
            if waits and overtaken >= group.n:
                own = TRAINING_POOL if trains else members[k].nodes
                nodes |= own
                if own & (group.busy | _overdue_before(group, members, number)) == 0:
                    mask[row_of(members, k, TRAINING if trains else ROLLOUT)] = 1
                    may = True
    return nodes, may


@compiled(arrays=False)
def write_mask(group: Records, members: Records, mask: NDArray[np.int8]) -> int:
    """Write which rows may be chosen, and return their number without the row that waits.

    A phase may start if its nodes are free. A phase that was overtaken as often as the group has members is overdue. Its nodes are
    kept for it, the oldest overdue phase first. Waiting is masked while an overdue phase could start, and while nothing runs.
    """
    mask[:] = 0
    overdue, must = _write_overdue(group, members, mask)
    awaited_nodes, taken, runs = _awaited_nodes(group, members), group.busy | overdue, False
    for k in range(group.n):
        m = members[k]
        runs = runs or m.rolls != NOTHING or m.trains != 0
        if _movable(group, m, awaited_nodes):
            mask[k + 1] = 1
        for trains in (False, True):
            _, waits, _, overtaken, _ = side_of(m, trains)
            if waits and overtaken < group.n and (TRAINING_POOL if trains else m.nodes) & taken == 0:
                mask[row_of(members, k, TRAINING if trains else ROLLOUT)] = 1
    mask[0] = runs and not must
    return int(mask[1:].sum())
