"""Decisions of many groups: from the answer to one to the next question."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.dispatch.actions import round_robin, write_mask
from rollmux_env.envs.dispatch.dynamics import carry_out
from rollmux_env.envs.dispatch.observation import write_observation
from rollmux_env.envs.dispatch.types import Groups, TailParameters
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.tables import Ints


@compiled(arrays=False)
def ask(groups: Groups, e: int, out: Observations, tails: TailParameters) -> None:
    """Let a group run to its next decision that has more than one answer, and write what is seen then."""
    group, clock, members, mask = groups.groups[e], groups.clocks[e], groups.members[e], out.mask[e]
    while clock.over == 0:
        count = write_mask(group, members, mask)
        if count + mask[0] > 1:
            break
        carry_out(groups, e, _first(mask) if count > 0 else 0, tails)
    write_observation(group, members, out.job[e], out.candidates[e], out.cluster[e], mask)
    if clock.over == 1:
        mask[:] = 0
        mask[0] = 1


@compiled(arrays=False)
def _first(mask: NDArray[np.int8]) -> int:
    for row in range(len(mask)):
        if mask[row] == 1:
            return row
    return 0


@compiled(arrays=False)
def step_all(groups: Groups, actions: Ints, out: Observations, tails: TailParameters) -> None:
    """Carry out a decision in every group that is not over, and bring it to its next one."""
    for e in range(len(groups.groups)):
        group, clock = groups.groups[e], groups.clocks[e]
        clock.since_s = group.now_s
        clock.work_s = 0.0
        clock.behind_s = 0.0
        clock.invalid = 0
        if clock.over == 1:
            continue
        row, mask = actions[e], out.mask[e]
        if row < 0 or row >= len(mask) or mask[row] == 0:
            clock.invalid = 1
            row = round_robin(group, groups.members[e], True)
            if mask[row] == 0:
                row = _first(mask)
        clock.decisions += 1
        carry_out(groups, e, row, tails)
        ask(groups, e, out, tails)
        clock.all_work_s += clock.work_s


@compiled(arrays=False)
def follow_round_robin(groups: Groups, e: int, migrates: bool, tails: TailParameters) -> None:
    """Play a group to its end in strict round robin."""
    group, clock = groups.groups[e], groups.clocks[e]
    while clock.over == 0:
        carry_out(groups, e, round_robin(group, groups.members[e], migrates), tails)
    clock.all_work_s = clock.work_s
