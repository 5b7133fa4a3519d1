"""What a replay needs of a job with a model: its lengths, its replicas, and the duration of a training.

A job's `timing` and `lengths` hold everything needed, whatever the model and the GPUs were
(`rollmux_env.timing.filling`).
"""

from __future__ import annotations

from dataclasses import fields

from rollmux_env.errors import InputError
from rollmux_env.timing.described import Lengths as LengthsOfFile
from rollmux_env.timing.described import ReplicaSeconds, Timing
from rollmux_env.timing.lengths import PUBLISHED, Lengths, Lognormal, Piecewise, quantiles_of
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rollouts import Responses
from rollmux_env.timing.training import TrainingTiming
from rollmux_env.validation_errors import not_one_of


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
    return ReplicaTiming(**{field.name: getattr(timing, field.name) for field in fields(ReplicaTiming)})


def training_of(timing: Timing) -> TrainingTiming:
    """Return what a training on the job's own nodes costs."""
    parts = timing.update_s, timing.training_s_per_token, timing.training_s_per_token2
    return TrainingTiming(*parts, timing.training_copies, timing.training_padded)
