"""The dispatch policies `learned:default` and `learned:PATH`: a network that scores the possible choices of a group.

The observation is that of training (`rollmux_env.envs.dispatch.observation`). The policy takes the best row that the mask allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

import numpy as np

from policies.placement.policy_file import read_default
from policies.placement.scorer import score
from rollmux_env.envs.dispatch.actions import choice_of
from rollmux_env.envs.dispatch.observation import ON_POLICY, STALE, observed, write_observation
from rollmux_env.envs.dispatch.types import MIGRATION, MOST_NODES
from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.rows import GROUP, MEMBER, NOTHING, ROLLOUT, TRAINING, TRAINING_POOL, record
from rollmux_env.kernel.feature_tables import observation_table
from rollmux_env.kernel.tables import Records
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase


class Learned:
    """Dispatch policy that takes the row with the highest score: a waiting phase, a tail to migrate, or nothing.

    Args:
        path: Path of a policy file for dispatch, or `default` for the one that RollMux ships.

    Raises:
        InputError: The file cannot be read, is damaged, or uses features that this version does not have.
    """

    migration = MIGRATION

    def __init__(self, path: str = "default") -> None:
        self._file, config, self._weights = read_default(path, "dispatch", (ON_POLICY, STALE))
        self._stale = config.features == STALE

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the waiting phase or the member's tail with the highest score, or None to wait."""
        if not self._stale and (stale := next((member for member in group.views if member.staleness), None)):
            raise InputError(f"job {stale.job_id}: staleness: {self._file} was trained without stale jobs")
        own, members = records_of(group)
        out = observation_table(1, *observed(len(members), self._stale))
        count = write_observation(own, members, out.job[0], out.candidates[0], out.cluster[0], out.mask[0])
        if count == 0:
            return None
        rows = np.flatnonzero(out.mask[0])
        row = int(rows[0])
        if len(rows) > 1:
            row = int(rows[score(self._weights, out.job[0], out.candidates[0, rows], out.cluster[0]).argmax()])
        number, phase = choice_of(members, row)
        if phase == NOTHING:
            return None
        member = group.views[number]
        return {ROLLOUT: member.rollout, TRAINING: member.training}.get(phase, member)


def records_of(group: GroupView) -> tuple[Records, Records]:
    """Convert a group and its members to records, the members with shape (n,).

    A sync that holds nodes is shown as a training. If the group has more nodes than an integer has bits, nodes that the same
    members use are shown as one.
    """
    rows = group.rows
    shown = _fewer_nodes([row.nodes for row in rows])
    members = np.array([record(row, nodes=shown(row.nodes)) for row in rows], dtype=MEMBER)
    syncs = members["syncs"] == 1
    members["trains"] |= members["syncs"]
    members["training_start_s"][syncs] = members["sync_start_s"][syncs]
    return np.array([record(group.row, busy=shown(group.busy), tails=shown(group.tails))], dtype=GROUP)[0], members


def _fewer_nodes(own: Sequence[int]) -> Callable[[int], int]:
    """Return a function that maps a bit set of nodes to one with at most `MOST_NODES` nodes."""
    every = reduce(or_, own, TRAINING_POOL)
    if every.bit_length() <= MOST_NODES + 1:
        return lambda nodes: nodes
    kinds: dict[tuple[bool, ...], int] = {}
    bits = {0: 0}
    for bit in range(1, every.bit_length()):
        if every >> bit & 1:
            users = tuple(bool(nodes >> bit & 1) for nodes in own)
            bits[bit] = kinds.setdefault(users, min(len(kinds) + 1, MOST_NODES))
    return lambda nodes: reduce(or_, (1 << to for bit, to in bits.items() if nodes >> bit & 1), 0)
