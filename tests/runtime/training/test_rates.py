"""Learning rates depend on the step alone, and are those of the schedules' definitions."""

from __future__ import annotations

from math import cos, pi

import pytest

from runtime.training.trainer import rates


def test_a_constant_rate_is_constant_behind_its_warm_up() -> None:
    assert [rates(2.0, "constant", 0, 10)(step) for step in (0, 5, 99)] == [2.0] * 3
    assert [rates(2.0, "constant", 4, 10)(step) for step in range(6)] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]


def test_others_go_down_to_nothing_at_the_last_step() -> None:
    linear, cosine = rates(1.0, "linear", 2, 12), rates(1.0, "cosine", 2, 12)
    assert [linear(step) for step in (0, 1, 2, 7, 12, 20)] == [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    for step in range(2, 13):
        assert cosine(step) == pytest.approx((1 + cos(pi * (step - 2) / 10)) / 2)
