"""What the phases of a job take for the lengths of its file: `actual` of a scenario file, as shares of their worst case."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.described import Lengths
from rollmux_env.timing.jobs import lengths_of, responses_of
from rollmux_env.timing.lengths import sample
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rollouts import rollout_s, worst_rollout_s
from rollmux_env.timing.training import MiniBatch, TrainingTiming

_BATCHES, _SEED = 16, 0
_LEAST = 1e-6  # fraction of the worst case


@lru_cache(maxsize=1024)
def actual_of(
    replica: ReplicaTiming, replicas: int, training: TrainingTiming, lengths: Lengths
) -> tuple[dict[str, float], dict[str, float]]:
    """`actual` of both phases, over batches whose lengths are drawn, the same each time.

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
    return _actual(rollouts / worst_s), _actual(trainings / longest_s)


def _actual(shares: Floats) -> dict[str, float]:
    mean = float(shares.mean())
    return {"mean_fraction": max(_LEAST, round(min(1.0, mean), 6)), "cv": round(float(shares.std()) / mean, 6)}
