"""Conversions from the keys of a job with a model to the objects that a replay uses: lengths, replicas, training.

A job's `timing` and `lengths` hold everything needed, independent of the model and the GPUs (`rollmux_env.timing.filling`). The
module also computes `actual` of both phases: the fractions of the worst case that they take for the job's lengths.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats
from rollmux_env.keys.model import Lengths, ReplicaSeconds, Timing
from rollmux_env.timing.lengths import PUBLISHED, LengthDistribution, Lognormal, Piecewise, quantiles_of, sample
from rollmux_env.timing.replica import MixtureTiming, ReplicaTiming
from rollmux_env.timing.rewards import mean_reward_s
from rollmux_env.timing.rollouts import Responses, rollout_s, worst_rollout_s
from rollmux_env.timing.training import MiniBatch, TrainingTiming
from rollmux_env.validation_errors import not_one_of

_MAX_BATCH, _MAX_RESPONSES, _SEED = 4096, 8192, 0  # largest number of responses sampled per batch, and over all batches
_MIN_FRACTION = 1e-6  # smallest fraction of the worst case


def lengths_of(lengths: Lengths) -> LengthDistribution:
    """Return the distribution of the length of a turn.

    Raises:
        InputError: If its numbers are invalid, or it names a file, which the loader replaces by quantiles.
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


def responses_of(lengths: Lengths) -> Responses:
    """Return the size of a rollout, apart from the lengths of its responses."""
    turns = lengths.turns, lengths.environment_s
    return Responses(lengths.batch, lengths.prompt_tokens, *turns, lengths.worst_rewards_s)


def replica_of(timing: ReplicaSeconds) -> ReplicaTiming:
    """Return the timing of a rollout replica."""
    kind = MixtureTiming if timing.experts_s else ReplicaTiming
    return kind(**{field.name: getattr(timing, field.name) for field in fields(kind)})


def mean_reward_s_of(lengths: Lengths) -> float:
    """Return the mean seconds of a response's reward, 0 if rewards take no time."""
    return mean_reward_s(lengths.reward_quantiles) if lengths.reward_quantiles else lengths.reward_s or 0.0


def training_of(timing: Timing) -> TrainingTiming:
    """Return the cost of a training on the job's own nodes."""
    parts = timing.update_s, timing.training_s_per_token, timing.training_s_per_token2
    return TrainingTiming(*parts, timing.training_copies, timing.training_padded)


@lru_cache(maxsize=1024)
def actual_of(
    replica: ReplicaTiming, replicas: int, training: TrainingTiming, lengths: Lengths
) -> tuple[dict[str, float], dict[str, float]]:
    """Return `actual` of the rollout and of the training.

    Both are estimated over 2 to 16 batches of drawn lengths, with a fixed seed. Of a large batch only a part is drawn.

    Args:
        replica: Timing of a rollout replica.
        replicas: Number of replicas.
        training: Cost of a training.
        lengths: Response lengths of the job.

    Returns:
        Mean fraction of the worst case (`mean_fraction`) and coefficient of variation (`cv`), of both phases.

    Raises:
        InputError: If a response at the cap exceeds the KV cache.
    """
    batch, distribution = min(lengths.batch, _MAX_BATCH), lengths_of(lengths)
    responses = replace(responses_of(lengths), batch=batch)
    draws = np.random.Generator(np.random.Philox(_SEED))
    rollouts_s, trainings_s, reward_s = [], [], mean_reward_s_of(lengths)
    for _ in range(max(2, min(16, _MAX_RESPONSES // batch))):
        tokens = sample(distribution, draws, batch * lengths.turns).reshape(-1, lengths.turns).sum(axis=1)
        decoded_s = rollout_s(replica, replicas, responses, tokens)
        rollouts_s.append(max(decoded_s + reward_s, lengths.reward_turns * reward_s))
        trainings_s.append(training.seconds(MiniBatch.of(responses.prompts + tokens)))
    longest = MiniBatch.even(batch, responses.tokens(lengths.cap))
    worst_s = worst_rollout_s(replica, replicas, responses, lengths.cap), training.seconds(longest)
    return _actual(np.array(rollouts_s) / worst_s[0]), _actual(np.array(trainings_s) / worst_s[1])


def _actual(shares: Floats) -> dict[str, float]:
    mean = float(shares.mean())
    return {"mean_fraction": max(_MIN_FRACTION, round(min(1.0, mean), 6)), "cv": round(float(shares.std()) / mean, 6)}
