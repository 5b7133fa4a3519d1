"""A training that stands still is said once, when it has lasted; a sampler that is not the trainer is said at once."""

from __future__ import annotations

import pytest

from runtime.standstill import PATIENCE, gap_warning, warnings

FINE = {"frac_reward_zero_std": 0.5, "entropy": 0.4, "cut_off": 0.1}


def said(iterations: list[dict[str, float]]) -> list[tuple[int, str]]:
    """(iteration, line) as a run goes on."""
    return [(k, line) for k in range(len(iterations)) for line in warnings(iterations[: k + 1])]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"frac_reward_zero_std": 0.95}, "in 95% of the groups all responses earn the same"),
        ({"entropy": 0.001}, "its entropy is 0.001 nats a token"),
        ({"cut_off": 0.5}, "50% of the responses are cut off at max_tokens"),
        ({"completions/clipped_ratio": 1.0}, "100% of the responses are cut off at max_tokens"),
    ],
)
def test_what_lasts_is_said_once_and_again_when_it_comes_back(bad: dict[str, float], text: str) -> None:
    fine = FINE if "completions/clipped_ratio" not in bad else {}
    (line,) = said([fine] * 3 + [fine | bad] * 20)
    assert line[0] == 3 + PATIENCE - 1 and line[1].startswith(text) and line[1].endswith(f"(for {PATIENCE} iterations)")
    assert "\n" not in line[1]
    assert [k for k, _ in said([fine | bad] * PATIENCE + [fine] + [fine | bad] * PATIENCE)] == [PATIENCE - 1, 2 * PATIENCE]
    assert said(([fine | bad] * (PATIENCE - 1) + [fine]) * 3) == []


def test_a_training_that_moves_or_says_nothing_is_left_in_peace() -> None:
    assert said([FINE] * 20) == [] and said([{"loss": 1.0}] * 20) == [] and warnings([]) == []


@pytest.mark.parametrize(("reward", "cut_off_reward", "count"), [(0.5, 0.4, 0), (0.5, 0.6, 0), (0.5, 0.1, 1), (0.0, 0.0, 1)])
def test_responses_that_earn_as_much_may_be_cut_off(reward: float, cut_off_reward: float, count: int) -> None:
    iteration = FINE | {"cut_off": 0.9, "reward": reward, "cut_off_reward": cut_off_reward}
    assert len(said([iteration] * 20)) == count


def test_the_last_iterations_are_enough() -> None:
    bad = FINE | {"entropy": 0.0}
    assert warnings([bad] * (PATIENCE + 1)) == [] and len(warnings([FINE, *[bad] * PATIENCE])) == 1


@pytest.mark.parametrize("name", ["logprob_gap", "sampling/sampling_logp_difference/mean"])
def test_a_sampler_that_computes_other_probabilities_is_said_at_once_and_not_again_while_it_comes_and_goes(name: str) -> None:
    near, far = FINE | {name: 0.01}, FINE | {name: 0.06}
    on_policy = {"sampled_version": 3.0, "trained_version": 3.0}
    (line,) = said([near, far | on_policy, near, far, far, *[near] * 4, far])
    assert line[0] == 1 and line[1].startswith("log-probabilities of sampler and trainer differ by 0.06 a token")
    assert [k for k, _ in said([far, *[near] * PATIENCE, far])] == [0, PATIENCE + 1]
    assert gap_warning(far, 1.0) == line[1] and gap_warning(near, 1.0) is None


def test_a_gap_of_older_samples_or_of_a_truncated_distribution_is_none() -> None:
    far = FINE | {"logprob_gap": 0.14}
    assert said([far | {"sampled_version": 2.0, "trained_version": 3.0}]) == []
    assert warnings([far], top_p=0.9) == [] and len(warnings([far], top_p=0.95)) == 1
