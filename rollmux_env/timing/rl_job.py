"""A published RL job, and the seconds of its phases by the model: one after the other, overlapped, or streamed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollmux_env.timing.models import OTHER_SHAPES, SHAPES, ModelShape
from rollmux_env.timing.rl_step import (
    KERNELS,
    Batch,
    Kernels,
    Workers,
    generation_s,
    rewards_s,
    rollout_replica,
    scoring_s,
    update_s,
)
from rollmux_env.timing.streaming import Stream, streamed_step


@dataclass(frozen=True)
class RlJob:
    """What the seconds of a step depend on.

    Attributes:
        model: a key of `SHAPES` or `OTHER_SHAPES`. rollout, training: GPUs of the phases; the same ones where the job is colocated.
        batch: of a step. scored: names of the forward passes before the update, such as `old_log_prob`.
        overlapped: the next step's rollout runs during this step's training. stream: training starts before the rollout has ended.
    """

    model: str
    rollout: Workers
    training: Workers
    batch: Batch
    scored: tuple[str, ...] = ("old_log_prob",)
    overlapped: bool = False
    stream: Stream | None = None

    @property
    def shape(self) -> ModelShape:
        """Of the model."""
        return SHAPES.get(self.model) or OTHER_SHAPES[self.model]


def phases_s(job: RlJob, kernels: Kernels = KERNELS) -> dict[str, float]:
    """Seconds by phase: `gen` (of a stream, what its trainer waits for prompts), each of `scored`, `update`, `training` (these
    together), and `step`.

    Raises:
        InputError: the model does not fit, or a response exceeds the KV cache.
    """
    if job.stream is not None:
        return _streamed(job, job.stream, kernels)
    gen_s = generation_s(job.shape, job.rollout, job.batch, kernels)
    training = _training(job, job.batch, kernels)
    training_s = sum(training.values())
    both_s = max(gen_s, training_s) if job.overlapped else gen_s + training_s
    return {"gen": gen_s, **training, "training": training_s, "step": both_s + rewards_s(job.batch, kernels)}


def _training(job: RlJob, batch: Batch, kernels: Kernels) -> dict[str, float]:
    scored = {name: scoring_s(job.shape, job.training, batch, kernels) for name in job.scored}
    return {**scored, "update": update_s(job.shape, job.training, batch, kernels)}


def _streamed(job: RlJob, stream: Stream, kernels: Kernels) -> dict[str, float]:
    """A piece is fetched, then trained."""
    batch = job.batch
    piece = replace(batch, prompts=batch.prompts // stream.pieces, updates=max(1, batch.updates // stream.pieces))
    training = _training(job, piece, kernels)
    fetch_s = piece.count * kernels.fetch_s
    timing = rollout_replica(job.shape, job.rollout, kernels)
    piece_s = fetch_s + sum(training.values())
    played = streamed_step(timing, job.rollout.copies, batch, stream, piece_s, rewards_s(batch, kernels))
    by_phase = {name: seconds * stream.pieces for name, seconds in training.items()}
    waited_s, training_s = played.wait_s + stream.pieces * fetch_s, sum(by_phase.values())
    return {"gen": waited_s, **by_phase, "training": training_s, "step": played.step_s}
