"""The dispatcher `clairvoyant`, which knows how long every phase of a group will take: a yardstick for those that do not.

It is a beam search over the choices of `RollMux/Dispatch-v0`. Of the schedules after each decision, it keeps those that do the most
work until the horizon if a simple rule makes all further choices (the pilot method). The best schedule on the way is replayed. In
short episodes it is the optimum, else the best one that was found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.actions import choice_of, side_of, write_mask
from rollmux_env.envs.dispatch.dynamics import INSTANT_S, begin, carry_out
from rollmux_env.envs.dispatch.env import load_group
from rollmux_env.envs.dispatch.observation import observed
from rollmux_env.envs.dispatch.types import MIGRATION, Groups, SimulatedGroup, TailParameters, group_table
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.dispatch.rows import ROLLOUT, TRAINING
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase
from rollmux_env.timing.tail import TailModel

WIDTH = 4  # number of schedules that are kept
_OLDEST, _SHORTEST = 0, 1  # rules for further choices
_ITERATIONS = 2048  # largest number of iterations of a member until the horizon


class _Schedules(NamedTuple):
    """Groups with the same jobs after different choices.

    Attributes:
        groups: States of the groups.
        made: Number of starts and migrations in each, shape (E,).
        at_s: Times of the choices, shape (E, C).
        rows: Rows of the choices, as in the environment, shape (E, C).
        masks: Rows that may be chosen next, shape (E, A); none at the horizon.
    """

    groups: Groups
    made: Ints
    at_s: Floats
    rows: Ints
    masks: NDArray[np.int8]


@compiled(arrays=False)
def _choose(schedules: _Schedules, e: int, row: int, tails: TailParameters) -> None:
    """Carry out a choice, and record it unless it waits."""
    if row > 0:
        schedules.at_s[e, schedules.made[e]] = schedules.groups.groups[e].now_s
        schedules.rows[e, schedules.made[e]] = row
        schedules.made[e] += 1
    carry_out(schedules.groups, e, row, tails)


@compiled(arrays=False)
def _by_rule(schedules: _Schedules, e: int, rule: int) -> int:
    """Return the row of the first phase in order of a rule, else a tail, else the row that waits."""
    members, progress, mask = schedules.groups.members[e], schedules.groups.progress[e], schedules.masks[e]
    best, least = 0, np.inf
    for row in range(1, len(mask)):
        if mask[row] == 0:
            continue
        k, phase = choice_of(members, row)
        rank = 1e18  # tails come last
        if phase in (TRAINING, ROLLOUT):
            trains = phase == TRAINING
            r = progress[k]
            number = r.trained if trains else r.sampled
            rank = float(side_of(members[k], trains)[2])
            if rule == _SHORTEST:
                rank = r.base_s[int(trains)] * schedules.groups.durations[e, k, int(trains), number]
        if rank < least:
            best, least = row, rank
    return best


@compiled(arrays=False)
def _to_decision(schedules: _Schedules, e: int, row: int, tails: TailParameters) -> None:
    """Carry out a choice, if `row` is one, and all further ones up to the next decision with an alternative or the horizon."""
    group, clock, mask = schedules.groups.groups[e], schedules.groups.clocks[e], schedules.masks[e]
    if row >= 0:
        _choose(schedules, e, row, tails)
    while clock.over == 0:
        if write_mask(group, schedules.groups.members[e], mask) + mask[0] > 1:
            return
        _choose(schedules, e, int(mask.argmax()), tails)
    mask[:] = 0


@compiled(arrays=False)
def _branch(schedules: _Schedules, rows: Ints, tails: TailParameters) -> None:
    """Carry out a choice in each of the first schedules, up to its next decision."""
    for e in range(len(rows)):
        _to_decision(schedules, e, rows[e], tails)


@compiled(arrays=False)
def _play_out(schedules: _Schedules, n: int, rule: int, tails: TailParameters) -> None:
    """Play the first n schedules to the horizon with a rule."""
    for e in range(n):
        while schedules.groups.clocks[e].over == 0:
            write_mask(schedules.groups.groups[e], schedules.groups.members[e], schedules.masks[e])
            _choose(schedules, e, _by_rule(schedules, e, rule), tails)


class Clairvoyant:
    """Dispatch policy that replays the best schedule found for one group.

    Args:
        group: The group.
        width: Number of schedules that are kept.
    """

    migration = MIGRATION

    def __init__(self, group: SimulatedGroup, width: int = WIDTH) -> None:
        searches = [_search(group, width, rule) for rule in (_OLDEST, _SHORTEST)]
        _, self._at_s, self._rows = max(searches, key=lambda one: one[0])
        self._made = 0

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the next choice of the schedule at its time; after the horizon, the first phase that can start."""
        if self._made == len(self._rows):
            return next((phase for phase in group.waiting if not phase.nodes & group.busy), None)
        if self._at_s[self._made] > group.now_s + INSTANT_S:
            return None
        row, members = int(self._rows[self._made]) - 1, group.views
        self._made += 1
        member = members[row % len(members)]
        if row >= len(members) or (member.training.is_waiting and not member.staleness):
            return member.training
        return member.rollout if member.rollout.is_waiting else member


def _search(group: SimulatedGroup, width: int, rule: int) -> tuple[float, Floats, Ints]:
    """Return the most work until the horizon that the search finds, in seconds of T_solo, and the times and rows of its choices."""
    model = TailModel()
    tails = TailParameters(MIGRATION.share, model.rate(MIGRATION.share), model.move_s)
    beam, pilots = (_schedules(group, width, model) for _ in range(2))
    best_s, choices = 0.0, (beam.at_s[0, :0], beam.rows[0, :0])
    begin(beam.groups, 0)
    _branch(beam, np.array([-1]), tails)
    n = 1
    while n:
        parents, rows = np.nonzero(beam.masks[:n])
        n = len(parents)
        _copy(beam, parents, beam)
        _branch(beam, rows, tails)
        _copy(beam, np.arange(n), pilots)
        _play_out(pilots, n, rule, tails)
        work_s = pilots.groups.clocks["work_s"][:n]
        if work_s.max() > best_s:
            e = int(work_s.argmax())
            best_s, made = float(work_s[e]), int(pilots.made[e])
            choices = pilots.at_s[e, :made].copy(), pilots.rows[e, :made].copy()
        which = np.arange(n)
        if n > width:  # schedules with equal work are mostly the same one
            which = np.unique(np.round(-work_s, 3), return_index=True)[1]
        which = which[beam.groups.clocks["over"][which] == 0][:width]
        n = len(which)
        _copy(beam, which, beam)
    return best_s, *choices


def _schedules(group: SimulatedGroup, width: int, model: TailModel) -> _Schedules:
    """Return tables of one group with room for all choices after each of the schedules in the beam."""
    members, stale = len(group.jobs), any(job.staleness for job in group.jobs)
    rows, _ = observed(members, stale)
    one = group_table(1, members, group.rollout_nodes + 1, _ITERATIONS, stale, spans=1)
    load_group(one, 0, group, model)
    iterations = 2 + int(np.flatnonzero(one.durations.sum(axis=(0, 1, 2))).max())
    n, most = width * rows, 3 * members * iterations  # an iteration has two starts and a migration
    groups = group_table(n, members, group.rollout_nodes + 1, iterations, stale, spans=1)
    for table, own in zip(groups, one._replace(durations=one.durations[..., :iterations]), strict=True):
        table[:] = own
    return _Schedules(groups, np.zeros(n, int), np.zeros((n, most)), np.zeros((n, most), int), np.zeros((n, rows), np.int8))


def _copy(schedules: _Schedules, which: Ints, to: _Schedules) -> None:
    """Copy some schedules without their durations, which all schedules share."""
    groups, others = schedules.groups, to.groups
    for name in ("groups", "clocks", "members", "progress", "last", "syncs"):
        getattr(others, name)[: len(which)] = getattr(groups, name)[which]
    for name in ("made", "at_s", "rows", "masks"):
        getattr(to, name)[: len(which)] = getattr(schedules, name)[which]
