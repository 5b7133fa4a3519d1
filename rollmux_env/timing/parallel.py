"""Seconds and memory of a scenario job's phases for every tensor, pipeline and data parallelism that fits on some nodes.

The roofline of `rollmux_env.timing.roofline` says what one copy of the model costs on GPUs that share its work evenly; to that come
the messages of HexGen's model (`rollmux_env.timing.stages`), and what a pipeline's stages wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.links import Link, link_between, machine_link
from rollmux_env.timing.memory import rollout_memory_gb, training_memory_gb
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.roofline import Responses, replica_timing, worst_rollout_s
from rollmux_env.timing.stages import MESSAGES, pipeline
from rollmux_env.timing.training_plans import TrainingPlan
from rollmux_env.timing.work import Work

STAGES = (1, 2, 4, 8)  # of a pipeline


@dataclass(frozen=True)
class Nodes:
    """Nodes of one pool.

    Attributes:
        pool: its name. hardware: of their GPUs. number: of nodes. gpus: of one.
    """

    pool: str
    hardware: Hardware
    number: int
    gpus: int

    @property
    def devices(self) -> int:
        """GPUs of all nodes."""
        return self.number * self.gpus


class Parallelism(NamedTuple):
    """How a phase divides the model and its batch.

    Attributes:
        tensor: GPUs that share each layer, in one machine. stages: of a pipeline. copies: of the model, which share the batch.
    """

    tensor: int
    stages: int
    copies: int


class PhaseTime(NamedTuple):
    """A phase on some nodes.

    Attributes:
        pool, nodes: which, and how many. parallelism: on them. seconds: at worst case. device_gb: on the GPU that holds most, while
            the phase runs. host_gb: that keep the job resident on each node.
    """

    pool: str
    nodes: int
    parallelism: Parallelism
    seconds: float
    device_gb: float
    host_gb: float


def parallelisms(nodes: Nodes, layers: int) -> Iterator[Parallelism]:
    """Every one that uses all GPUs: tensor parallelism within a machine, pipelines of 1, 2, 4 or 8 stages."""
    for tensor in (2**k for k in range(nodes.gpus.bit_length())):
        for stages in STAGES:
            if nodes.gpus % tensor == 0 and nodes.devices % (tensor * stages) == 0 and stages <= layers:
                yield Parallelism(tensor, stages, nodes.devices // (tensor * stages))


def rollout_time(shape: ModelShape, nodes: Nodes, parallelism: Parallelism, responses: Responses, cap: int) -> PhaseTime:
    """A rollout whose responses all reach the cap.

    Raises:
        InputError: the weights leave no room for a KV cache, or a response exceeds it; one line.
    """
    share = -(-responses.batch // parallelism.copies)
    timing = parallel_replica(shape, nodes, parallelism, share)
    tokens = (responses.prompt_tokens + cap) * responses.turns
    cached = min(timing.kv_tokens, share * tokens) * shape.cached * nodes.hardware.number_bytes
    together = parallelism.tensor * parallelism.stages
    return PhaseTime(
        nodes.pool,
        nodes.number,
        parallelism,
        worst_rollout_s(timing, parallelism.copies, responses, cap),
        (shape.parameters * nodes.hardware.number_bytes + cached) / together / 1e9,
        rollout_memory_gb(shape, nodes.gpus, together, nodes.hardware.number_bytes),
    )


def parallel_replica(shape: ModelShape, nodes: Nodes, parallelism: Parallelism, sequences: int) -> ReplicaTiming:
    """A replica with the messages of its parallelism.

    A pipeline's stages work on as many micro-batches at the same time. Each of these reads all weights of its stage, so that only
    tensor parallelism makes the reading of weights shorter; arithmetic and cache are divided by both.

    Args:
        sequences: at once, at most; messages of a decode step are counted for so many.

    Raises:
        InputError: the weights leave no room for a KV cache; one line.
    """
    tensor, stages, _ = parallelism
    timing = replica_timing(shape, nodes.hardware, tensor * stages)
    message_bytes = shape.hidden * nodes.hardware.number_bytes
    fixed_s = token_s = 0.0
    if tensor > 1:
        link = machine_link(nodes.hardware)
        fixed_s += link.seconds(0, MESSAGES * shape.layers)
        token_s += MESSAGES * shape.layers * message_bytes / tensor / (link.gb_s * 1e9)
    if stages > 1:
        link = _between_stages(nodes, tensor * stages)
        fixed_s += link.seconds(0, stages)
        token_s += message_bytes / (link.gb_s * 1e9)
    return replace(
        timing,
        step_s=timing.step_s + fixed_s + token_s * sequences,
        weights_s=timing.weights_s * stages,
        prefill_s=timing.prefill_s + fixed_s,
        prefill_s_per_token=timing.prefill_s_per_token + token_s,
    )


def training_time(shape: ModelShape, nodes: Nodes, parallelism: Parallelism, responses: Responses, cap: int) -> PhaseTime:
    """A training whose sequences all reach the cap; whether it fits is for the caller to see.

    Raises:
        InputError: the hardware's rate of training is not known, or there are more stages than layers; one line.
    """
    hardware = nodes.hardware
    if not hardware.training_tflops:
        raise InputError(f"{hardware.name}: its rate of training was not measured; a training pool needs a GPU of the catalogue")
    groups = ((hardware, parallelism.tensor),) * parallelism.stages
    stages = pipeline(shape, groups, lambda each: each.training_tflops)
    if stages is None:
        raise InputError(f"{parallelism.stages} stages are more than the model's {shape.layers} layers")
    tokens = cap * responses.turns
    work = Work(shape, responses.batch, max(1, responses.prompt_tokens * responses.turns), tokens, tokens, 1, 0)
    plan = TrainingPlan(stages, parallelism.copies, nodes.gpus)
    host_gb = training_memory_gb(shape, nodes.gpus, nodes.number)
    return PhaseTime(nodes.pool, nodes.number, parallelism, hardware.update_s + plan.seconds(work), plan.memory_gb(work), host_gb)


def _between_stages(nodes: Nodes, gpus: int) -> Link:
    """From a stage to the next of a replica with so many GPUs."""
    return machine_link(nodes.hardware) if gpus <= nodes.gpus else link_between(nodes.hardware, nodes.hardware)
