"""What a replay may ask of a job with a model: how long this iteration's responses get, and how long its phases then take.

A job's `timing` and `lengths` hold all that is needed, whatever the model and the GPUs were (`rollmux_env.timing.filling`).
"""

from __future__ import annotations

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.scenario import Job, Timing
from rollmux_env.scenario import Lengths as LengthsOfFile
from rollmux_env.timing.lengths import PUBLISHED, Lengths, Lognormal, Piecewise, Tokens, whole
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.roofline import Responses, TrainingTiming, rollout_s

REPLICA = (
    "step_s",
    "weights_s",
    "kv_s_per_token",
    "sequence_s",
    "prefill_s",
    "prefill_s_per_token",
    "prefill_s_per_token2",
    "kv_tokens",
)
"""Fields of `ReplicaTiming`, which a job's `timing` has too."""


def lengths_of(lengths: LengthsOfFile) -> Lengths:
    """The distribution of a turn's length.

    Raises:
        InputError: its numbers are none, or it names a file, which the loader replaces by quantiles; one line.
    """
    if lengths.median is not None and lengths.sigma is not None:
        return Lognormal(lengths.cap, lengths.median, lengths.sigma)
    if lengths.published is not None:
        if lengths.published not in PUBLISHED:
            raise InputError(f"published: must be one of {', '.join(PUBLISHED)}, not '{lengths.published}'")
        found = PUBLISHED[lengths.published]
        if found.cap != lengths.cap:
            raise InputError(f"published: {lengths.published} has a cap of {found.cap} tokens, not of {lengths.cap}")
        return found
    if lengths.file is not None:
        raise InputError("file: is read when a scenario is loaded")
    return Piecewise(lengths.cap, lengths.quantiles or ((0.0, float(lengths.cap)),))


def replica_of(timing: Timing) -> ReplicaTiming:
    """One of the rollout's replicas."""
    return ReplicaTiming(**{name: getattr(timing, name) for name in REPLICA})


def draw_lengths(lengths: LengthsOfFile, generator: np.random.Generator) -> Tokens:
    """(batch,) tokens that the responses of an iteration get, over all turns."""
    shares = generator.random((lengths.batch, lengths.turns))
    return np.asarray(whole(lengths_of(lengths).quantile(shares)).sum(axis=1), dtype=np.int64)


def sampled_rollout_s(job: Job, tokens: Tokens) -> float:
    """Seconds of a rollout of a job with a model, by the closed form; at most its worst case, drift left out.

    Args:
        tokens: (batch,) of `draw_lengths`.
    """
    timing, lengths = _inside(job)
    responses = Responses(lengths.batch, lengths.prompt_tokens, lengths.turns, lengths.environment_s)
    return rollout_s(replica_of(timing), timing.replicas, responses, tokens)


def sampled_training_s(job: Job, tokens: Tokens, nodes: int | None = None) -> float:
    """Seconds of the training of a job with a model on such responses, each padded to the longest of them.

    Args:
        tokens: (batch,) of `draw_lengths`. nodes: of the training pool; None is the job's own number.
    """
    seconds = padded_training_s(job, float(tokens.max()))
    return seconds if nodes is None else seconds * job.training_s(nodes) / job.training.worst_case_s


def padded_training_s(job: Job, longest: float) -> float:
    """The same on the job's own training nodes, where the longest response has so many tokens over all turns."""
    timing, lengths = _inside(job)
    training = TrainingTiming(timing.update_s, timing.training_s_per_token, timing.training_s_per_token2)
    return training.seconds(lengths.batch, lengths.prompt_tokens * lengths.turns + longest)


def _inside(job: Job) -> tuple[Timing, LengthsOfFile]:
    if job.timing is None or job.lengths is None:
        raise ValueError(f"job {job.id} has no model")
    return job.timing, job.lengths
