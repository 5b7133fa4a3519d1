"""RollPacker's timeout of rewards and its planner of parallelism."""

from __future__ import annotations

from typing import Any

import pytest

from policies.rollout import make_rollout
from policies.rollout.published import Size
from policies.rollout.rounds import RewardTimeout
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming


def test_a_timeout_follows_the_longest_correct_run_within_its_bounds() -> None:
    timeout = RewardTimeout()
    assert timeout.seconds("a") == 30
    timeout.correct("a", 0.1)
    assert timeout.seconds("a") == 2
    timeout.correct("a", 4.0)
    timeout.correct("a", 3.0)
    assert timeout.seconds("a") == 6
    timeout.correct("a", 25.0)
    assert timeout.seconds("a") == 30
    assert timeout.seconds("b") == 30
    assert RewardTimeout(timeout.anchors).seconds("a") == 30


@pytest.mark.parametrize("wrong", [{"least_s": 0.0}, {"most_s": 1.0}, {"factor": 0.5}, {"most_s": float("inf")}])
def test_impossible_bounds_are_refused_in_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="reward timeout: must") as error:
        RewardTimeout(**wrong)
    assert "\n" not in str(error.value)


def test_replicas_grow_when_preemptions_rise_and_shrink_after_four_calm_rollouts() -> None:
    size = Size((1, 2, 4), 1)
    found = []
    for preemptions in (0, 10, 10, 12, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0):
        size.observe(preemptions)
        found.append(size.size)
    assert found == [1, 2, 2, 4, 4, 4, 4, 4, 2, 2, 2, 2, 1, 1]


def test_the_planner_ends_preemptions_and_is_faster_for_it() -> None:
    one = ReplicaTiming(0.008, 0.012, 4e-8, 1e-4, 1e-4, 1e-9, 0.01, 12_000)
    two = ReplicaTiming(0.008, 0.006, 2e-8, 5e-5, 5e-5, 5e-10, 0.01, 60_000)  # half the weights on each GPU leave more than twice
    setting = Setting(((1, one), (2, two)), 4, 1, 16, 4, 100, Lognormal(8000, 800, 1.0))
    plain, planned = (JobRollouts(setting, make_rollout(name), 0) for name in ("plain", "parallelism-planner"))
    before, after = [plain.next() for _ in range(5)], [planned.next() for _ in range(5)]
    assert before[0].seconds == after[0].seconds and before[0].preemptions > 0
    assert sum(one.preemptions for one in after[1:]) < sum(one.preemptions for one in before[1:])
    assert sum(one.seconds for one in after[1:]) < sum(one.seconds for one in before[1:])
