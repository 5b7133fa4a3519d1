"""What follows a rollout in a step: tests of its responses, and training beside it."""

from __future__ import annotations

import numpy as np
import pytest

from policies.rollout.rounds import RewardTimeout
from rollmux_env.errors import InputError
from rollmux_env.fidelity.step import RewardLaw, RewardRuns, reward_run_ends, trained_s


def runs(ready_s: list[float], runs_s: list[float], correct: list[bool], names: list[int]) -> RewardRuns:
    return RewardRuns(np.array(ready_s), np.array(runs_s), np.array(correct), np.array(names))


def test_a_test_waits_for_a_free_worker_and_learns_its_limit_from_correct_runs_that_have_ended() -> None:
    """Prompt 0's endless test begins before its correct run of 4 s has ended, and its second one after: 30 s and 1.5 * 4 s."""
    some = runs([0, 0, 5, 5], [4, np.inf, np.inf, 1], [True, False, False, True], [0, 0, 0, 1])
    assert reward_run_ends(some, 4, RewardTimeout()).tolist() == [4, 30, 11, 6]
    assert reward_run_ends(some, 1, RewardTimeout()).tolist() == [4, 10, 16, 17]
    timeout = RewardTimeout()
    reward_run_ends(some, 4, timeout)
    assert timeout.anchors == {"0": 4, "1": 1}


def test_training_beside_a_rollout_is_slow_until_it_is_over_and_waits_for_prompts() -> None:
    ready_s, work_s = np.array([6.0, 2.0, 10.0]), np.array([2.0, 2.0, 2.0])
    assert trained_s(ready_s, work_s, 10.0, 0.5, 10.0) == 16, "all of it after the rollout"
    assert trained_s(ready_s, work_s, 4.0, 0.5, 10.0) == 13, "3 of 6 s in 6 s beside it"
    assert trained_s(ready_s, work_s, 0.0, 1.0, 10.0) == 12, "on GPUs of its own only the last prompt is left"
    assert trained_s(np.array([1.0]), np.array([1.0]), 0.0, 1.0, 9.0) == 9


def test_a_law_has_the_shares_of_its_points_and_tests_that_never_end() -> None:
    law = RewardLaw(((0.5, 1.0), (0.9, 5.0)), 0.5)
    runs_s, correct = law.draw(np.random.default_rng(0), 20_000)
    shares = (runs_s <= 1).mean(), (runs_s <= 3).mean(), np.isinf(runs_s).mean(), correct[runs_s < 9].mean()
    assert shares == pytest.approx((0.5, 0.7, 0.1, 0.5), abs=0.02) and not correct[np.isinf(runs_s)].any()
    for points in ((), ((0.5, 2.0), (0.9, 1.0)), ((1.5, 1.0),)):
        with pytest.raises(InputError, match="rewards: "):
            RewardLaw(points, 0.5)
