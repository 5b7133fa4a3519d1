"""What a replay needs of a job with a model: its lengths, its replicas, and the duration of a training; and what its phases take
for the lengths of its file, `actual` of a scenario file.

A job's `timing` and `lengths` hold everything needed, whatever the model and the GPUs were
(`rollmux_env.timing.filling`).
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats
from rollmux_env.keys.model import Lengths as LengthsOfFile
from rollmux_env.keys.model import ReplicaSeconds, Timing
from rollmux_env.timing.lengths import PUBLISHED, Lengths, Lognormal, Piecewise, quantiles_of, sample
from rollmux_env.timing.replica import MixtureTiming, ReplicaTiming
from rollmux_env.timing.rollouts import Responses, rollout_s, worst_rollout_s
from rollmux_env.timing.training import MiniBatch, TrainingTiming
from rollmux_env.validation_errors import not_one_of

_MOST, _RESPONSES, _SEED = 4096, 8192, 0  # responses of a batch that is looked at, and of all batches together
_LEAST = 1e-6  # fraction of the worst case


def lengths_of(lengths: LengthsOfFile) -> Lengths:
    """Return the distribution of the length of a turn.

    Raises:
        InputError: its numbers are none, or it names a file, which the loader replaces by quantiles; one line.
    """
    if lengths.median is not None and lengths.sigma is not None:
        return Lognormal(lengths.cap, lengths.median, lengths.sigma)
    if lengths.published is not None:
        if lengths.published not in PUBLISHED:
            raise InputError(f"published: {not_one_of(lengths.published, PUBLISHED)}")
        published = PUBLISHED[lengths.published]
        if published.cap != lengths.cap:
            raise InputError(f"published: {lengths.published} has a cap of {published.cap} tokens, not of {lengths.cap}")
        return published
    if lengths.file is not None or lengths.trace is not None:
        raise InputError(f"{'trace' if lengths.file is None else 'file'}: is read when a scenario is loaded")
    if lengths.observed is not None:
        return quantiles_of([tokens for group in lengths.observed for tokens in group], lengths.cap)
    return Piecewise(lengths.cap, lengths.quantiles or ((0.0, float(lengths.cap)),))


def responses_of(lengths: LengthsOfFile) -> Responses:
    """Return the size of a rollout."""
    turns = lengths.turns, lengths.environment_s
    return Responses(lengths.batch, lengths.prompt_tokens, *turns, lengths.worst_rewards_s)


def replica_of(timing: ReplicaSeconds) -> ReplicaTiming:
    """Return a replica of the rollout."""
    kind = MixtureTiming if timing.experts_s else ReplicaTiming
    return kind(**{field.name: getattr(timing, field.name) for field in fields(kind)})


def training_of(timing: Timing) -> TrainingTiming:
    """Return what a training on the job's own nodes costs."""
    parts = timing.update_s, timing.training_s_per_token, timing.training_s_per_token2
    return TrainingTiming(*parts, timing.training_copies, timing.training_padded)


@lru_cache(maxsize=1024)
def actual_of(
    replica: ReplicaTiming, replicas: int, training: TrainingTiming, lengths: LengthsOfFile
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
