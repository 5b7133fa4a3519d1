from __future__ import annotations

import itertools
from typing import Any

import pytest

from rollmux_env.errors import InputError
from rollmux_env.timing.drift import FACTORS, TEMPLATES, drift


def test_none_is_no_drift() -> None:
    assert drift("none", 1.0, 7) == ()


@pytest.mark.parametrize(("billions", "highest"), [(3, 1.17), (7, 1.17), (8, 1.17), (14, 1.38), (32, 1.58), (70, 1.58)])
def test_increasing_ends_at_the_papers_figures(billions: int, highest: float) -> None:
    entries = drift("increasing", 1.0, billions)
    assert entries[-1].rollout == entries[-1].training == pytest.approx(highest)
    assert max(entry.rollout for entry in entries) == entries[-1].rollout
    assert entries[-1].iteration < 88


def test_large_models_burst_and_small_ones_do_not() -> None:
    falls = []
    for billions in (7, 32):
        entries = drift("increasing", 1.0, billions)
        falls.append(sum(before.rollout > after.rollout for before, after in itertools.pairwise(entries)))
    assert falls[0] == 0
    assert falls[1] > 2


@pytest.mark.parametrize("billions", [7, 14, 32])
def test_factors_scale_the_gain_and_decreasing_undoes_increasing(billions: int) -> None:
    half, one, more = (drift("increasing", factor, billions) for factor in FACTORS)
    for a, b, c, d in zip(half, one, more, drift("decreasing", 1.0, billions), strict=True):
        assert a.rollout - 1 == pytest.approx((b.rollout - 1) / 2)
        assert c.rollout - 1 == pytest.approx((b.rollout - 1) * 1.5)
        assert b.rollout * d.rollout == pytest.approx(1)


@pytest.mark.parametrize("template", TEMPLATES)
def test_entries_are_in_order_after_the_first_iteration(template: Any) -> None:
    at = [entry.iteration for entry in drift(template, 1.5, 32)]
    assert at == sorted(set(at))
    assert all(0 < k < 88 for k in at)


@pytest.mark.parametrize("bad", [("up", 1.0, 7), ("none", 0.0, 7), ("none", float("nan"), 7), ("none", 1.0, 0)])
def test_what_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match=r"^drift "):
        drift(*bad)
