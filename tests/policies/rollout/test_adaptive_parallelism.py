"""Adaptive parallelism: forecasts from what was seen, and changes that pay."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout import make_rollout
from policies.rollout.adaptive_parallelism import forecast, spread
from rollmux_env.bench.rollouts import setting
from rollmux_env.bench.suites.rollout import tail
from rollmux_env.rollout.job import JobRollouts, Rollout


def rollouts(policy: str, parallel: int, count: int = 6) -> list[Rollout]:
    job = JobRollouts(setting("14B", "H800", 16, parallel, tail(16384)), make_rollout(policy), 0)
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
    where = spread(np.array([5, 100, 7, 90, 80, 1, 2]), 3)
    assert sorted(where[[1, 3, 4]]) == [0, 1, 2]
    assert np.bincount(where).max() - np.bincount(where).min() <= 1


def test_small_replicas_become_large_ones_and_the_rollout_is_faster() -> None:
    plain, adaptive = rollouts("plain", 1), rollouts("adaptive-parallelism", 1)
    assert adaptive[0].seconds == plain[0].seconds, "nothing is forecast before something was seen"
    assert all(one.migrations > 0 and one.seconds < other.seconds for one, other in zip(adaptive[1:], plain[1:], strict=True))
    assert [one.counted_tokens.sum() for one in adaptive] == [one.counted_tokens.sum() for one in plain]


def test_a_switch_that_costs_more_than_it_gains_is_not_made() -> None:
    slow = rollouts("adaptive-parallelism,switch_s=10000", 1)
    assert all(one.seconds <= other.seconds * 1.05 for one, other in zip(slow, rollouts("plain", 1), strict=True))
