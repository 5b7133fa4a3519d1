"""Seconds of one step of a published RL job: its phases one after the other, overlapped, or streamed.

A single controller sends padded batches from phase to phase. docs/reference/timing.md gives the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollmux_env.errors import InputError
from rollmux_env.timing.batch import Batch
from rollmux_env.timing.calibration import PHYSICAL, Calibration
from rollmux_env.timing.hardware import GPUS, Hardware, achieved
from rollmux_env.timing.models import ALL_SHAPES, ModelShape
from rollmux_env.timing.replica import Parallelism, ReplicaTiming, replica_timing
from rollmux_env.timing.rollouts import Responses, rollout_s, worst_rollout_s
from rollmux_env.timing.streaming import Stream, streamed_step
from rollmux_env.timing.training import Load, TrainingPlan, even_plan, scoring_load, update_load


@dataclass(frozen=True)
class Workers:
    """GPUs of a phase.

    Attributes:
        gpu: a key of `GPUS`. count: of them. parallel: that share one copy of the model, and so the work of one sequence.
        stages: of a pipeline, among them. eager: decode without graphs. number_bytes: of a weight, 1 for FP8, at twice the peak.
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
        """Copies of the model."""
        return self.count // self.parallel

    def hardware(self, system: Calibration) -> Hardware:
        """Rates of one GPU."""
        gpu = GPUS[self.gpu]
        own = achieved(self.gpu, replace(gpu, tflops=gpu.tflops * 2 / self.number_bytes), system)
        return replace(own, number_bytes=self.number_bytes, layer_s=system.eager_layer_s if self.eager else system.layer_s)


@dataclass(frozen=True)
class RlJob:
    """What the seconds of a step depend on.

    Attributes:
        model: a key of `ALL_SHAPES`. rollout, training: GPUs of the phases; the same ones where the job is colocated.
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


def bound_s(job: RlJob, system: Calibration = PHYSICAL) -> dict[str, float]:
    """Seconds by phase, as `phases_s`, where all responses reach the cap. One that streams does not wait less than it would."""
    capped = replace(job, batch=job.batch.at_cap())
    if job.stream is not None:
        return _streamed(capped, job.stream, system)
    timing = rollout_replica(ALL_SHAPES[job.model], job.rollout, capped.batch, system)
    responses = Responses(job.batch.count, job.batch.prompt_tokens)
    gen_s = worst_rollout_s(timing, job.rollout.copies, responses, job.batch.lengths.cap)
    return _step(capped, gen_s + _around_s(job.batch, system), system)


def phases_s(job: RlJob, system: Calibration = PHYSICAL) -> dict[str, float]:
    """Seconds by phase: `gen` (of a stream, what its trainer waits for prompts), each of `scored`, `update`, `training` (these
    together), and `step`.

    Raises:
        InputError: the model does not fit, or a response exceeds the KV cache.
    """
    if job.stream is not None:
        return _streamed(job, job.stream, system)
    return _step(job, generation_s(ALL_SHAPES[job.model], job.rollout, job.batch, system), system)


def rollout_replica(model: ModelShape, workers: Workers, batch: Batch, system: Calibration = PHYSICAL) -> ReplicaTiming:
    """Timing of a replica; messages of a decode step are counted for its mean load.

    Raises:
        InputError: weights that leave no room for a KV cache.
    """
    tokens = batch.tokens()
    load = float(tokens.sum()) / float(tokens.max()) / workers.copies
    return replica_timing(model, workers.hardware(system), workers.parallel, load)


def generation_s(model: ModelShape, workers: Workers, batch: Batch, system: Calibration = PHYSICAL) -> float:
    """Seconds of a rollout that starts with all prompts and ends with the last response, and of collecting the responses."""
    timing = rollout_replica(model, workers, batch, system)
    decoding_s = rollout_s(timing, workers.copies, Responses(batch.count, batch.prompt_tokens), batch.tokens())
    return decoding_s + _around_s(batch, system)


def scoring_s(model: ModelShape, workers: Workers, batch: Batch, system: Calibration = PHYSICAL) -> float:
    """Seconds of one forward pass over the batch, for log-probabilities; ranks share the whole of it evenly."""
    load = scoring_load(system, batch.prompt_tokens + batch.tokens(), batch.micro_tokens)
    return training_plan(model, workers, system).seconds(load) + controller_s(batch, system)


def update_s(model: ModelShape, workers: Workers, batch: Batch, system: Calibration = PHYSICAL) -> float:
    """Seconds of all mini-batches."""
    return training_plan(model, workers, system).seconds(load_of(batch, system)) + controller_s(batch, system)


def load_of(batch: Batch, system: Calibration = PHYSICAL) -> Load:
    """What the trainer is given for the update."""
    return update_load(system, batch.prompt_tokens + batch.tokens(), batch.updates, batch.micro_tokens)


def training_plan(model: ModelShape, workers: Workers, system: Calibration = PHYSICAL) -> TrainingPlan:
    """How GPUs of a training share its work."""
    parallelism = Parallelism(workers.parallel // workers.stages, workers.stages, workers.copies)
    return even_plan(model, workers.hardware(system), parallelism)


def controller_s(batch: Batch, system: Calibration = PHYSICAL) -> float:
    """Seconds in which the controller sends the batch once, padded to the cap."""
    return system.controller_s(batch.count * batch.micro_tokens)


def rewards_s(batch: Batch, system: Calibration = PHYSICAL) -> float:
    """Seconds between the phases of a step: rewards, advantages, and the weights' way to the rollout."""
    return batch.count * system.response_s


def _around_s(batch: Batch, system: Calibration) -> float:
    return (batch.turns - 1) * batch.environment_s + controller_s(batch, system)


def _step(job: RlJob, gen_s: float, system: Calibration) -> dict[str, float]:
    training = _training(job, job.batch, system)
    training_s = sum(training.values())
    both_s = max(gen_s, training_s) if job.overlapped else gen_s + training_s
    return {"gen": gen_s, **training, "training": training_s, "step": both_s + rewards_s(job.batch, system)}


def _training(job: RlJob, batch: Batch, system: Calibration) -> dict[str, float]:
    scored = {name: scoring_s(ALL_SHAPES[job.model], job.training, batch, system) for name in job.scored}
    return {**scored, "update": update_s(ALL_SHAPES[job.model], job.training, batch, system)}


def _streamed(job: RlJob, stream: Stream, system: Calibration) -> dict[str, float]:
    """A piece is fetched, then trained."""
    batch = job.batch
    piece = replace(batch, prompts=batch.prompts // stream.pieces, updates=max(1, batch.updates // stream.pieces))
    training = _training(job, piece, system)
    fetch_s = piece.count * system.fetch_s
    timing = rollout_replica(ALL_SHAPES[job.model], job.rollout, replace(batch, prompts=stream.at_once), system)
    piece_s = fetch_s + sum(training.values())
    played = streamed_step(timing, job.rollout.copies, batch, stream, piece_s, rewards_s(batch, system))
    by_phase = {name: seconds * stream.pieces for name, seconds in training.items()}
    waited_s, training_s = played.wait_s + stream.pieces * fetch_s, sum(by_phase.values())
    return {"gen": waited_s, **by_phase, "training": training_s, "step": played.step_s}
