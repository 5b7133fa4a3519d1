"""What the phases of a job take for the lengths of its file, as shares of their worst case: mean and spread."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.described import Lengths
from rollmux_env.timing.jobs import lengths_of, responses_of
from rollmux_env.timing.lengths import sample
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rollouts import rollout_s, worst_rollout_s
from rollmux_env.timing.training import MiniBatch, TrainingTiming

_BATCHES, _SEED = 16, 0


class Fraction(NamedTuple):
    """Of a phase's worst case: the mean of what it takes, and the standard deviation as a share of that."""

    mean: float
    cv: float


class Fractions(NamedTuple):
    """Of both phases."""

    rollout: Fraction
    training: Fraction


@lru_cache(maxsize=1024)
def mean_fractions(replica: ReplicaTiming, replicas: int, training: TrainingTiming, lengths: Lengths) -> Fractions:
    """Over batches whose lengths are drawn, the same each time.

    Raises:
        InputError: a response at the cap exceeds the cache; one line.
    """
    responses, distribution = responses_of(lengths), lengths_of(lengths)
    draws = np.random.Generator(np.random.Philox(_SEED))
    rollouts, trainings = np.zeros(_BATCHES), np.zeros(_BATCHES)
    for k in range(_BATCHES):
        tokens = sample(distribution, draws, lengths.batch * lengths.turns).reshape(-1, lengths.turns).sum(axis=1)
        decoded_s = rollout_s(replica, replicas, responses, tokens)
        rollouts[k] = max(decoded_s + (lengths.reward_s or 0.0), responses.rewards_s)
        trainings[k] = training.seconds(MiniBatch.of(responses.prompts + tokens))
    worst_s = worst_rollout_s(replica, replicas, responses, lengths.cap)
    longest_s = training.seconds(MiniBatch.even(lengths.batch, responses.tokens(lengths.cap)))
    return Fractions(_fraction(rollouts / worst_s), _fraction(trainings / longest_s))


def _fraction(shares: Floats) -> Fraction:
    mean = float(shares.mean())
    return Fraction(min(1.0, mean), float(shares.std()) / mean)
