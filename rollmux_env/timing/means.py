"""What the phases of a job take for the lengths of its file: `actual` of a scenario file, as shares of their worst case."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.described import Lengths
from rollmux_env.timing.jobs import lengths_of, responses_of
from rollmux_env.timing.lengths import sample
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rollouts import rollout_s, worst_rollout_s
from rollmux_env.timing.training import MiniBatch, TrainingTiming

_MOST, _RESPONSES, _SEED = 4096, 8192, 0  # responses of a batch that is looked at, and of all batches together
_LEAST = 1e-6  # fraction of the worst case


@lru_cache(maxsize=1024)
def actual_of(
    replica: ReplicaTiming, replicas: int, training: TrainingTiming, lengths: Lengths
) -> tuple[dict[str, float], dict[str, float]]:
    """`actual` of both phases, over 2 to 16 batches whose lengths are drawn, the same each time; of large batches, a part.

    Raises:
        InputError: a response at the cap exceeds the cache; one line.
    """
    batch, distribution = min(lengths.batch, _MOST), lengths_of(lengths)
    responses = replace(responses_of(lengths), batch=batch)
    draws = np.random.Generator(np.random.Philox(_SEED))
    rollouts_s, trainings_s = [], []
    for _ in range(max(2, min(16, _RESPONSES // batch))):
        tokens = sample(distribution, draws, batch * lengths.turns).reshape(-1, lengths.turns).sum(axis=1)
        decoded_s = rollout_s(replica, replicas, responses, tokens)
        rollouts_s.append(max(decoded_s + (lengths.reward_s or 0.0), responses.rewards_s))
        trainings_s.append(training.seconds(MiniBatch.of(responses.prompts + tokens)))
    longest = MiniBatch.even(batch, responses.tokens(lengths.cap))
    worst_s = worst_rollout_s(replica, replicas, responses, lengths.cap), training.seconds(longest)
    return _actual(np.array(rollouts_s) / worst_s[0]), _actual(np.array(trainings_s) / worst_s[1])


def _actual(shares: Floats) -> dict[str, float]:
    mean = float(shares.mean())
    return {"mean_fraction": max(_LEAST, round(min(1.0, mean), 6)), "cv": round(float(shares.std()) / mean, 6)}
