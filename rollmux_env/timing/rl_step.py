"""Seconds of the parts of one RL step, from the shapes of the model, of the batch and of the parallelism.

Builds on `rollmux_env.timing.roofline` and goes further. A decode step pays for each layer's launches and messages. Training sees
the real lengths, without padding; the ranks of a mini-batch wait for its longest response; and what is not a matrix product is
bound by memory. A single controller sends padded batches from phase to phase. docs/reference/timing.md gives the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats
from rollmux_env.timing.hardware import GPUS, HBM_SHARE, Factors, achieved
from rollmux_env.timing.lengths import Lengths, Tokens, typical
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.roofline import Responses, replica_timing, rollout_s

UPDATE, RECOMPUTED = 3, 1  # forward passes that forward and backward amount to; and one more, as activations are recomputed
SLOT_BYTES = 64  # of a padded position that the controller sends: ids, masks, positions, labels and log-probabilities
_SEED = 0  # of the order in which responses fall into mini-batches


@dataclass(frozen=True)
class Kernels:
    """What engines and trainers reach, the same for all GPUs and models.

    Attributes:
        arithmetic: share of the peak that dense matrix products reach. grouped: of that, what products of many experts reach.
        step_s: fixed seconds of a decode step. layer_s: of each layer, replayed from a graph. eager_layer_s: launched one kernel
            at a time. message_s: of a layer's messages where a replica has several GPUs.
        controller_gb_s: at which the controller sends a batch. response_s: for the reward of a response. fetch_s: to
            fetch a response from a queue, one by one.
    """

    arithmetic: float = 0.7
    grouped: float = 0.55
    step_s: float = 0.002
    layer_s: float = 6e-5
    eager_layer_s: float = 6e-4
    message_s: float = 6e-5
    controller_gb_s: float = 0.35
    response_s: float = 5e-4
    fetch_s: float = 0.003


KERNELS = Kernels()


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


@dataclass(frozen=True)
class Batch:
    """The responses of a step.

    Attributes:
        prompts: of a step. responses: of each prompt. updates: mini-batches that the step trains on, one after the other.
        prompt_tokens: of a prompt. lengths: of a response, over all its turns. turns: of a response. environment_s: wait before
            each further turn.
    """

    prompts: int
    responses: int
    updates: int
    prompt_tokens: int
    lengths: Lengths
    turns: int = 1
    environment_s: float = 0.0

    @property
    def count(self) -> int:
        """Responses of a step."""
        return self.prompts * self.responses

    def tokens(self) -> Tokens:
        """(count,) lengths of a representative batch, ascending."""
        return typical(self.lengths, self.count)


def rollout_replica(shape: ModelShape, workers: Workers, kernels: Kernels = KERNELS) -> ReplicaTiming:
    """Timing of a replica whose decode step pays for each layer.

    Raises:
        InputError: weights that leave no room for a KV cache.
    """
    share = _share(shape, kernels) * 2 / workers.number_bytes
    hardware = replace(
        achieved(workers.gpu, GPUS[workers.gpu], Factors(kernels.step_s, share, 0.0, 1.0)), number_bytes=workers.number_bytes
    )
    layer_s = kernels.eager_layer_s if workers.eager else kernels.layer_s
    if workers.parallel > 1:
        layer_s += kernels.message_s
    timing = replica_timing(shape, hardware, workers.parallel)
    return replace(timing, step_s=kernels.step_s + shape.layers * layer_s, prefill_s=0.0)


def generation_s(shape: ModelShape, workers: Workers, batch: Batch, kernels: Kernels = KERNELS) -> float:
    """Seconds of a rollout that starts with all prompts and ends with the last response, and of collecting the responses."""
    timing = rollout_replica(shape, workers, kernels)
    decoding_s = rollout_s(timing, workers.copies, Responses(batch.count, batch.prompt_tokens), batch.tokens())
    return decoding_s + (batch.turns - 1) * batch.environment_s + controller_s(batch, kernels)


def scoring_s(shape: ModelShape, workers: Workers, batch: Batch, kernels: Kernels = KERNELS) -> float:
    """Seconds of one forward pass over the batch, for log-probabilities; ranks share the whole of it evenly."""
    tokens = batch.prompt_tokens + batch.tokens()
    seconds = _sequence_s(shape, workers, tokens, kernels)
    slowest_s = max(float(seconds.sum()) / workers.copies, float(seconds.max()))
    return slowest_s * _bubble(workers, batch, float(tokens.sum())) + controller_s(batch, kernels)


def update_s(shape: ModelShape, workers: Workers, batch: Batch, kernels: Kernels = KERNELS) -> float:
    """Seconds of all mini-batches. Responses fall into them in any order and are spread evenly over the ranks; the longest one
    is a rank's alone."""
    tokens = np.random.default_rng(_SEED).permutation(batch.prompt_tokens + batch.tokens())
    seconds = (UPDATE + RECOMPUTED) * _sequence_s(shape, workers, tokens, kernels)
    total_s = sum(max(float(part.sum()) / workers.copies, float(part.max())) for part in np.array_split(seconds, batch.updates))
    return total_s * _bubble(workers, batch, float(tokens.sum()) / batch.updates) + controller_s(batch, kernels)


def controller_s(batch: Batch, kernels: Kernels = KERNELS) -> float:
    """Seconds in which the controller sends the batch once, padded to the cap."""
    slots = batch.count * (batch.prompt_tokens + batch.lengths.cap)
    return slots * SLOT_BYTES / (kernels.controller_gb_s * 1e9)


def rewards_s(batch: Batch, kernels: Kernels = KERNELS) -> float:
    """Seconds between the phases of a step: rewards, advantages, and the weights' way to the rollout."""
    return batch.count * kernels.response_s


def _sequence_s(shape: ModelShape, workers: Workers, tokens: Tokens, kernels: Kernels) -> Floats:
    """(n,) seconds of a forward pass of each sequence on the GPUs that share it."""
    gpu, n = GPUS[workers.gpu], tokens.astype(np.float64)
    operations = 2 * shape.matrix_parameters * n + shape.attended * n**2  # causal: half of all pairs, two operations each
    arithmetic_s = operations / (gpu.tflops * 1e12 * _share(shape, kernels) * 2 / workers.number_bytes)
    memory_s = shape.layers * _bytes(shape) * n / (gpu.hbm_tb_s * 1e12 * HBM_SHARE)
    return np.asarray((arithmetic_s + memory_s) / workers.parallel)


def _bytes(shape: ModelShape) -> int:
    """Bytes of a token that a layer reads and writes in bf16: norms, residuals, rotations, attention, ends of products."""
    return 45 * shape.hidden + 12 * shape.active * shape.intermediate


def _bubble(workers: Workers, batch: Batch, tokens: float) -> float:
    """What a pipeline's stages wait for each other, as a factor; its micro-batches are packed up to the cap."""
    packed = max(1.0, tokens / workers.copies / (batch.prompt_tokens + batch.lengths.cap))
    return 1 + (workers.stages - 1) / packed


def _share(shape: ModelShape, kernels: Kernels) -> float:
    return kernels.arithmetic * (kernels.grouped if shape.experts > 1 else 1.0)
