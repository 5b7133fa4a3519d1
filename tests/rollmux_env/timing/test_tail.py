from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.timing.tail import Migration, TailModel


def sampled(model: TailModel, at: float, rollouts: int = 400) -> float:
    """The same by brute force: every length of every rollout; mean share of the time at which `at` are done."""
    rng = np.random.default_rng(1)
    lengths = np.minimum(1, model.median * np.exp(model.sigma * rng.standard_normal((rollouts, model.responses))))
    lengths.sort(axis=1)
    everyone = np.sort(lengths.ravel())

    def seconds(length: float) -> float:
        return length + model.batching * float(np.minimum(everyone, length).mean())

    done = round(at * model.responses) - 1
    return float(np.mean([seconds(row[done]) / seconds(row[-1]) for row in lengths]))


@pytest.mark.parametrize(("sigma", "batching", "at"), [(1.233, 1.0, 0.8), (0.5, 3.0, 0.8), (1.233, 0.0, 0.5)])
def test_the_threshold_is_what_sampling_all_lengths_gives(sigma: float, batching: float, at: float) -> None:
    model = TailModel(sigma=sigma, batching=batching)
    threshold, stretch = model.draw(np.random.default_rng(0), Migration(at), 20_000)
    assert threshold.mean() == pytest.approx(sampled(model, at), rel=0.02)
    assert ((threshold > 0) & (threshold <= 1)).all() and (stretch >= 1).all()


def test_without_batching_a_tail_and_the_rollout_beside_it_lose_nothing() -> None:
    model = TailModel(batching=0.0)
    assert model.rate(0.25) == 1 and (model.draw(np.random.default_rng(0), Migration(), 100)[1] == 1).all()
    assert 1 - 0.25 < TailModel().rate(0.25) < 1


def test_the_longer_the_tail_the_earlier_most_is_done() -> None:
    means = [TailModel(sigma=sigma).draw(np.random.default_rng(0), Migration(), 2000)[0].mean() for sigma in (0.3, 0.6, 1.2)]
    assert means == sorted(means, reverse=True)


def test_equal_lengths_have_no_tail() -> None:
    threshold, stretch = TailModel(median=1.0, sigma=1e-3).draw(np.random.default_rng(0), Migration(), 50)
    assert (threshold > 0.99).all() and (stretch >= 1).all() and np.isfinite(stretch).all()


@pytest.mark.parametrize("wrong", [{"sigma": 0.0}, {"responses": 1}, {"move_s": -1.0}])
def test_models_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="tail model"):
        TailModel(**wrong)
