"""The search that knows all durations: the optimum of short episodes, and schedules that the event replay accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policies.dispatch import make_dispatch
from rollmux_env.bench.leaderboard.bounds import group_usd_per_work_hour
from rollmux_env.bench.leaderboard.clairvoyant import Clairvoyant
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.generator import SHAPES, Fixed, RandomGroups
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.types import SimulatedGroup


def usd(group: SimulatedGroup, dispatch: str | None = None, width: int = 4) -> float:
    order = Clairvoyant(group, width) if dispatch is None else make_dispatch(dispatch)
    return figures(group, replay_group(group, order))["usd_per_work_hour"]


def least_usd(group: SimulatedGroup) -> float:
    """Dollars per work-hour of the best of all sequences of choices."""
    env = DispatchVectorEnv(1, Fixed(group), autoreset_mode="Disabled")
    least, left = np.inf, [()]
    while left:
        choices: tuple[int, ...] = left.pop()
        observation, _ = env.reset(seed=0, options={"stream_seed": 0})
        over = False
        info: dict[str, Any] = {}
        for row in choices:
            observation, _, _, truncated, info = env.step(np.array([row]))
            over = bool(truncated[0])
        if over:
            least = min(least, float(info["usd_per_work_hour"][0]))
        else:
            left += [(*choices, row) for row in np.flatnonzero(observation["mask"][0]).tolist()]
    return least


@pytest.mark.parametrize(("shape", "periods", "stale"), [("temporal", 0.5, 0.0), ("spatial", 0.4, 0.0), ("temporal", 0.5, 1.0)])
def test_it_is_the_optimum_of_a_short_episode(shape: str, periods: float, stale: float) -> None:
    group = RandomGroups(shape, 0.5, 1, stale).group(1)
    short = replace(group, horizon_s=periods * group.horizon_s)
    assert usd(short, width=64) == pytest.approx(least_usd(short))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_costs_no_more_than_policies_that_know_less_and_no_less_than_the_bound(shape: str) -> None:
    group = RandomGroups(shape, rounds=8).group(0)
    others = [usd(group, name) for name in ("round-robin,migrate=0.8", "fifo,migrate=0.8", "learned:default")]
    assert group_usd_per_work_hour(group) <= usd(group) <= min(others) * (1 + 1e-9)
