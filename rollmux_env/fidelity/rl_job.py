"""Seconds of one step of a published RL job, whose phases run one after the other, overlapped, or streamed.

A single controller sends padded batches from phase to phase. docs/reference/timing.md gives the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollmux_env.errors import InputError
from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.fidelity.streaming import StreamLimits, simulate_streamed_step
from rollmux_env.timing.calibration import PHYSICAL, Calibration
from rollmux_env.timing.hardware import GPUS, Hardware, achieved
from rollmux_env.timing.models import ALL_SHAPES, ModelShape
from rollmux_env.timing.replica import Parallelism, ReplicaTiming, replica_timing
from rollmux_env.timing.rollouts import Responses, rollout_s, worst_rollout_s
from rollmux_env.timing.training import Load, TrainingPlan, even_plan, scoring_load, update_load


@dataclass(frozen=True)
class Workers:
    """The GPUs of a phase.

    Attributes:
        gpu: GPU type, a key of `GPUS`.
        count: Number of GPUs.
        parallel: Number of GPUs that share one copy of the model, and so the work of one sequence.
        stages: Number of pipeline stages among the GPUs of a copy.
        eager: Whether decoding runs without CUDA graphs.
        number_bytes: Bytes of a weight; 1 for FP8, which doubles the peak rate.

    Raises:
        InputError: If `parallel` does not divide `count`.
    """

    gpu: str
    count: int
    parallel: int = 1
    stages: int = 1
    eager: bool = False
    number_bytes: float = 2.0

    def __post_init__(self) -> None:
        if self.parallel < 1 or self.count < 1 or self.count % self.parallel:
            raise InputError(f"workers: {self.parallel} GPUs a copy do not divide {self.count}")

    @property
    def copies(self) -> int:
        """Number of copies of the model."""
        return self.count // self.parallel

    def hardware(self, system: Calibration) -> Hardware:
        """Return the rates of one GPU under a calibration."""
        gpu = GPUS[self.gpu]
        own = achieved(self.gpu, replace(gpu, tflops=gpu.tflops * 2 / self.number_bytes), system)
        return replace(own, number_bytes=self.number_bytes, layer_s=system.eager_layer_s if self.eager else system.layer_s)


@dataclass(frozen=True)
class RlJob:
    """Everything that determines the seconds of a job's step.

    Attributes:
        model: Name of the model, a key of `ALL_SHAPES`.
        rollout: GPUs of the rollout.
        training: GPUs of the training; the same as those of the rollout if the job is colocated.
        batch: Batch of responses of a step.
        scored: Names of the forward passes before the update, such as `old_log_prob`.
        overlapped: Whether the next step's rollout runs during this step's training.
        stream: Limits of a job whose training starts before its rollout ends, or None for any other job.
    """

    model: str
    rollout: Workers
    training: Workers
    batch: ResponseBatch
    scored: tuple[str, ...] = ("old_log_prob",)
    overlapped: bool = False
    stream: StreamLimits | None = None


def bound_s(job: RlJob, system: Calibration = PHYSICAL) -> dict[str, float]:
    """Return the seconds by phase, as `phases_s`, with all responses at the cap.

    A streamed job is played in the same way with such responses.
    """
    capped = replace(job, batch=job.batch.at_cap())
    if job.stream is not None:
        return _play_streamed_step(capped, job.stream, system)
    timing = rollout_replica(ALL_SHAPES[job.model], job.rollout, system)
    responses = Responses(job.batch.count, job.batch.prompt_tokens)
    gen_s = worst_rollout_s(timing, job.rollout.copies, responses, job.batch.lengths.cap)
    return _step(capped, gen_s + _around_s(job.batch, system), system)


def phases_s(job: RlJob, system: Calibration = PHYSICAL) -> dict[str, float]:
    """Return the seconds by phase.

    The keys are `gen` (for a stream, the trainer's wait for prompts), each name of `scored`, `update`, `training` (the sum of
    `scored` and `update`), and `step`.

    Args:
        job: Job with its GPUs and its batch.
        system: Calibration of the system that runs it.

    Raises:
        InputError: If the model does not fit or a response exceeds the KV cache.
    """
    if job.stream is not None:
        return _play_streamed_step(job, job.stream, system)
    return _step(job, generation_s(ALL_SHAPES[job.model], job.rollout, job.batch, system), system)


def rollout_replica(model: ModelShape, workers: Workers, system: Calibration = PHYSICAL) -> ReplicaTiming:
    """Return the timing of a replica.

    Raises:
        InputError: If the weights leave no room for a KV cache.
    """
    return replica_timing(model, workers.hardware(system), workers.parallel)


def generation_s(model: ModelShape, workers: Workers, batch: ResponseBatch, system: Calibration = PHYSICAL) -> float:
    """Return the seconds of a rollout and of collecting its responses.

    The rollout starts with all prompts at once and ends with the last response.
    """
    timing = rollout_replica(model, workers, system)
    decoding_s = rollout_s(timing, workers.copies, Responses(batch.count, batch.prompt_tokens), batch.tokens())
    return decoding_s + _around_s(batch, system)


def scoring_s(model: ModelShape, workers: Workers, batch: ResponseBatch, system: Calibration = PHYSICAL) -> float:
    """Return the seconds of one forward pass over the batch, for log-probabilities, shared evenly by the ranks."""
    load = scoring_load(system, batch.prompt_tokens + batch.tokens(), batch.micro_tokens)
    return training_plan(model, workers, system).seconds(load) + controller_s(batch, system)


def update_s(model: ModelShape, workers: Workers, batch: ResponseBatch, system: Calibration = PHYSICAL) -> float:
    """Return the seconds of an update: all mini-batches, and sending the batch to the trainer."""
    return training_plan(model, workers, system).seconds(load_of(batch, system)) + controller_s(batch, system)


def load_of(batch: ResponseBatch, system: Calibration = PHYSICAL) -> Load:
    """Return the training load of an update."""
    return update_load(system, batch.prompt_tokens + batch.tokens(), batch.updates, batch.micro_tokens)


def training_plan(model: ModelShape, workers: Workers, system: Calibration = PHYSICAL) -> TrainingPlan:
    """Return how the GPUs of a training share its work."""
    parallelism = Parallelism(workers.parallel // workers.stages, workers.stages, workers.copies)
    return even_plan(model, workers.hardware(system), parallelism)


def controller_s(batch: ResponseBatch, system: Calibration = PHYSICAL) -> float:
    """Return the seconds in which the controller sends the batch once, padded to the cap."""
    return system.controller_s(batch.count * batch.micro_tokens)


def rewards_s(batch: ResponseBatch, system: Calibration = PHYSICAL) -> float:
    """Return the seconds between the phases of a step: rewards, advantages, and the transfer of the weights."""
    return batch.count * system.response_s


def _around_s(batch: ResponseBatch, system: Calibration) -> float:
    return (batch.turns - 1) * batch.environment_s + controller_s(batch, system)


def _step(job: RlJob, gen_s: float, system: Calibration) -> dict[str, float]:
    training = _training(job, job.batch, system)
    training_s = sum(training.values())
    both_s = max(gen_s, training_s) if job.overlapped else gen_s + training_s
    return {"gen": gen_s, **training, "training": training_s, "step": both_s + rewards_s(job.batch, system)}


def _training(job: RlJob, batch: ResponseBatch, system: Calibration) -> dict[str, float]:
    scored = {name: scoring_s(ALL_SHAPES[job.model], job.training, batch, system) for name in job.scored}
    return {**scored, "update": update_s(ALL_SHAPES[job.model], job.training, batch, system)}


def _play_streamed_step(job: RlJob, stream: StreamLimits, system: Calibration) -> dict[str, float]:
    """Play a streamed step: each piece is fetched, then trained."""
    batch = job.batch
    piece = replace(batch, prompts=batch.prompts // stream.pieces, updates=max(1, batch.updates // stream.pieces))
    training = _training(job, piece, system)
    fetch_s = piece.count * system.fetch_s
    timing = rollout_replica(ALL_SHAPES[job.model], job.rollout, system)
    piece_s = fetch_s + sum(training.values())
    played = simulate_streamed_step(timing, job.rollout.copies, batch, stream, piece_s, rewards_s(batch, system))
    by_phase = {name: seconds * stream.pieces for name, seconds in training.items()}
    waited_s, training_s = played.wait_s + stream.pieces * fetch_s, sum(by_phase.values())
    return {"gen": waited_s, **by_phase, "training": training_s, "step": played.step_s}
