"""Adaptive parallelism: forecasts from what was seen, and changes that pay."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout import make_rollout
from rollmux_env.bench.suites.rollout import setting
from rollmux_env.bench.suites.tables import make_packed_lengths
from rollmux_env.kernel.rollout_trials import descending, forecast, spread
from rollmux_env.rollout.job import JobRollouts, RolloutOutcome
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming


def rollouts(policy: str, parallel: int, count: int = 6) -> list[RolloutOutcome]:
    job = JobRollouts(setting("14B", "H800", 16, parallel, make_packed_lengths(16384)), make_rollout(policy), 0)
    return [job.next() for _ in range(count)]


@given(st.lists(st.integers(0, 900), min_size=1, max_size=50))
def test_a_forecast_adds_at_least_a_token_and_stays_within_what_was_seen(sampled: list[int]) -> None:
    quantiles = np.linspace(1, 1000, 512)
    ahead = forecast(quantiles, np.array(sampled))
    assert (ahead >= 1).all()
    assert (np.array(sampled) + ahead <= 1001).all()


def test_the_forecast_of_many_new_responses_is_distributed_as_what_was_seen() -> None:
    quantiles = np.sort(np.random.default_rng(0).lognormal(6, 1, 512))
    ahead = forecast(quantiles, np.zeros(2000, np.int64))
    for share in (0.1, 0.5, 0.9):
        assert np.isclose(np.quantile(ahead, share), np.quantile(quantiles, share), rtol=0.03)


def test_a_spread_is_even_and_gives_the_longest_to_different_replicas() -> None:
    where = spread(descending(np.array([5, 100, 7, 90, 80, 1, 2])), 3)
    assert sorted(where[[1, 3, 4]]) == [0, 1, 2]
    assert np.bincount(where).max() - np.bincount(where).min() <= 1


def test_a_job_learns_with_which_size_to_begin() -> None:
    plain, adaptive, large = rollouts("plain", 1), rollouts("adaptive-parallelism", 1), rollouts("plain", 8)
    assert adaptive[0].seconds == plain[0].seconds, "nothing is forecast before something was seen"
    learned = list(zip(adaptive, large, plain, strict=True))[1:]
    assert all(one.seconds < 1.05 * best.seconds < other.seconds for one, best, other in learned)
    assert adaptive[1].seconds >= large[1].seconds + 3.5 - 1e-6, "the switch takes its seconds"
    assert [one.counted_tokens.sum() for one in adaptive] == [one.counted_tokens.sum() for one in plain]


def test_small_replicas_become_large_ones_inside_a_rollout_that_begins_with_many_responses() -> None:
    """Where larger replicas cost as much as they gain until few responses are left, the size changes on the way."""
    one = ReplicaTiming(0.002, 0.02, 1e-8, 1e-3, 1e-5, 0.0, 0.0, 500_000)
    eight = ReplicaTiming(0.002, 0.0025, 1e-8, 1e-3, 1e-5, 0.0, 0.0, 500_000)  # weights are read faster, sequences are not
    where = Setting(((1, one), (8, eight)), 8, 1, 32, 8, 100, Lognormal(16384, 700.0, 1.2))
    plain, adaptive = (JobRollouts(where, make_rollout(name), 0) for name in ("plain", "adaptive-parallelism"))
    found = [(adaptive.next(), plain.next()) for _ in range(4)]
    assert found[0][0].seconds == found[0][1].seconds
    assert all(adapted.migrations > 0 and adapted.seconds < other.seconds for adapted, other in found[1:])


def test_a_switch_that_costs_more_than_it_gains_is_not_made() -> None:
    slow = rollouts("adaptive-parallelism,switch_s=10000", 1)
    assert all(one.seconds <= other.seconds * 1.05 for one, other in zip(slow, rollouts("plain", 1), strict=True))
