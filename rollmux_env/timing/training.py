"""Seconds and memory of a training on a pipeline with data parallelism, whose stages may have GPUs of different types.

As in AReaL-Hex (arXiv 2511.00796), a tensor-parallel group and all copies of a stage have one GPU type. Types differ only between
stages, and a stage has layers in proportion to its arithmetic. A pass over a token is two operations per weight, and half of all
pairs of tokens attend to each other. The responses of a mini-batch are spread evenly over the copies, but one copy has to process
the longest response. Operations other than matrix products are bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.calibration import Calibration
from rollmux_env.timing.hardware import Hardware, link_between
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import MACHINE, Parallelism, message_seconds, token_bytes
from rollmux_env.timing.stages import Stage, gpus_of, pipeline

UPDATE = 3  # cost of a forward and backward pass, in forward passes
WEIGHT_BYTES = 6  # bytes of a weight (bf16) and its gradient (float32) on every copy
OPTIMIZER_BYTES = 12  # bytes per weight that the copies share: the weight and two moments in float32
GRADIENT_BYTES = 4  # bytes per weight that the copies exchange
WORKING = 34  # bytes per token and hidden unit in the layer being computed; other layers keep only their inputs and recompute
# Memory traffic in bytes of a token in a layer, in bf16. Per hidden unit: norms, residuals, rotations, attention. Per unit of an
# expert: inputs and results of the products.
HIDDEN_BYTES, EXPERT_BYTES = 45, 12
_SEED = 0  # seed of the random assignment of responses to mini-batches


class MiniBatch(NamedTuple):
    """Sequences that are trained together.

    Attributes:
        number: Number of sequences.
        tokens: Sum of their lengths, in tokens.
        squares: Sum of the squares of their lengths.
        longest: Length of the longest, in tokens.
    """

    number: float
    tokens: float
    squares: float
    longest: float

    @classmethod
    def of(cls, tokens: Floats | Ints) -> MiniBatch:
        """Return the mini-batch of sequences with the given lengths."""
        each = np.asarray(tokens, dtype=np.float64)
        return cls(each.size, float(each.sum()), float((each**2).sum()), float(each.max()))

    @classmethod
    def even(cls, count: float, tokens: float) -> MiniBatch:
        """Return the mini-batch of `count` sequences of `tokens` tokens each."""
        return cls(count, count * tokens, count * tokens**2, tokens)

    def padded(self) -> MiniBatch:
        """Return the mini-batch with all sequences as long as the longest."""
        return self.even(self.number, self.longest)


class Load(NamedTuple):
    """The work that a trainer is given.

    Attributes:
        parts: Mini-batches that are trained one after the other, each with its number of repetitions.
        micro_tokens: Length of a micro-batch in tokens, which holds one sequence at the cap.
        passes: Amount of arithmetic, in forward passes.
        sends: Number of passes whose messages count.
        updates: Whether weights change; otherwise only log-probabilities are computed.
    """

    parts: tuple[tuple[MiniBatch, int], ...]
    micro_tokens: float
    passes: int
    sends: int
    updates: bool = True


def update_load(system: Calibration, tokens: Floats | Ints, updates: int, micro_tokens: float, scored: int = 0) -> Load:
    """Return the load of forward and backward passes over sequences that are divided randomly into mini-batches.

    Args:
        system: Calibration of the trainer.
        tokens: Length of each sequence, in tokens, shape (n,).
        updates: Number of mini-batches.
        micro_tokens: Length of a micro-batch, in tokens.
        scored: Number of further forward passes, for log-probabilities, that count as part of the load.
    """
    order = np.random.default_rng(_SEED).permutation(tokens)
    parts = [MiniBatch.of(part) for part in np.array_split(order, updates)]
    return _updates(system, tuple((part.padded() if system.padded else part, 1) for part in parts), micro_tokens, scored)


def even_load(system: Calibration, count: float, tokens: float, micro_tokens: float, updates: int = 1) -> Load:
    """Return the load of forward and backward passes over sequences of one length, with one pass for log-probabilities.

    Args:
        system: Calibration of the trainer.
        count: Number of sequences.
        tokens: Length of each sequence, in tokens.
        micro_tokens: Length of a micro-batch, in tokens.
        updates: Number of mini-batches.
    """
    return _updates(system, ((MiniBatch.even(count / updates, tokens), updates),), micro_tokens, 1)


def _updates(system: Calibration, parts: tuple[tuple[MiniBatch, int], ...], micro_tokens: float, scored: int) -> Load:
    more = system.recomputed + scored
    return Load(parts, micro_tokens, UPDATE + more, UPDATE - 1 + more)


def scoring_load(system: Calibration, tokens: Floats | Ints, micro_tokens: float) -> Load:
    """Return the load of one forward pass over sequences, for log-probabilities.

    Args:
        system: Calibration of the trainer.
        tokens: Length of each sequence, in tokens, shape (n,).
        micro_tokens: Length of a micro-batch, in tokens.
    """
    part = MiniBatch.of(tokens)
    return Load(((part.padded() if system.padded else part, 1),), micro_tokens, 1, 1, updates=False)


@dataclass(frozen=True)
class TrainingTiming:
    """The cost of a training phase on all its devices, as that of the copy of the model that takes longest.

    Attributes:
        update_s: Fixed overhead of a training phase, in seconds.
        s_per_token: Seconds per token with all copies at work.
        s_per_token2: Seconds per squared token of a sequence with all copies at work.
        copies: Number of copies of the model.
        padded: Whether all sequences are padded to the longest.
    """

    update_s: float
    s_per_token: float
    s_per_token2: float
    copies: int = 1
    padded: bool = True

    def busy_s(self, part: MiniBatch) -> float:
        """Return the seconds of the passes over a mini-batch."""
        alone_s = self.copies * (self.s_per_token * part.longest + self.s_per_token2 * part.longest**2)
        return max(self.s_per_token * part.tokens + self.s_per_token2 * part.squares, alone_s)

    def seconds(self, part: MiniBatch) -> float:
        """Return the seconds of a training in one mini-batch."""
        return self.update_s + self.busy_s(part.padded() if self.padded else part)


@dataclass(frozen=True)
class TrainingPlan:
    """A pipeline and its copies.

    Attributes:
        stages: Stages of one copy, in order.
        copies: Number of copies (data parallelism).
        machine: Number of GPUs per machine.
    """

    stages: tuple[Stage, ...]
    copies: int
    machine: int = MACHINE

    @cached_property
    def gpus(self) -> dict[str, int]:
        """Number of GPUs of all copies, by type."""
        return {name: count * self.copies for name, count in gpus_of(self.stages).items()}

    def seconds(self, load: Load) -> float:
        """Return the seconds of a load.

        Each mini-batch takes a pipelined run over its micro-batches and, if weights change, an all-reduce of the gradients.
        """
        rates = [self._rate(stage, load) for stage in self._different]
        latency_s = max(self._latency_s(stage, load) for stage in self._different) + self._hops_s(load)
        fixed_s = max(stage.hardware.update_s for stage in self._different) if load.updates else 0.0
        return fixed_s + sum(times * self._part_s(rates, latency_s, part, load) for part, times in load.parts)

    def computing_s(self, load: Load) -> float:
        """Return the seconds of a load without hops between stages and without the all-reduce of gradients."""
        rates = [self._rate(stage, load) for stage in self._different]
        return sum(times * self._part_s(rates, 0.0, part, load._replace(updates=False)) for part, times in load.parts)

    def timing(self, load: Load) -> TrainingTiming:
        """Return the cost of a training on a pipeline of one stage, for mini-batches of any size.

        Args:
            load: Load whose first mini-batch determines the share of the messages in the fixed overhead.
        """
        (stage,) = self.stages
        rate = self._rate(stage, load)
        (part, _), *_ = load.parts
        return replace(rate, update_s=stage.hardware.update_s + self._part_s([rate], 0.0, part, load) - rate.busy_s(part))

    def memory_gb(self, micro_tokens: float) -> float:
        """Return the memory of the fullest GPU, in GB."""
        return max(self._stage_gb(stage, micro_tokens) for stage in self._different)

    def fits(self, micro_tokens: float) -> bool:
        """Return whether every GPU can hold its part."""
        return all(self._stage_gb(stage, micro_tokens) <= stage.hardware.memory_gb for stage in self._different)

    @cached_property
    def _different(self) -> tuple[Stage, ...]:
        """One stage of each kind."""
        return tuple({(stage.hardware.name, stage.gpus, stage.layers): stage for stage in self.stages}.values())

    def _part_s(self, rates: list[TrainingTiming], latency_s: float, part: MiniBatch, load: Load) -> float:
        """Return the seconds of a mini-batch.

        The all-reduce of the gradients overlaps with the backward pass over the last micro-batch.
        """
        busy_s = max(rate.busy_s(part) for rate in rates)
        micro = max(1.0, part.tokens / (self.copies * load.micro_tokens))
        more = len(self.stages) - 1
        beside_s = busy_s / micro * (UPDATE - 1) / load.passes
        sums_s = max(self._sum_s(stage) for stage in self._different) if load.updates else 0.0
        return busy_s * (1 + more / micro) + (micro + more) * latency_s + max(0.0, sums_s - beside_s)

    def _rate(self, stage: Stage, load: Load) -> TrainingTiming:
        """Return the seconds of the load's tokens on a stage."""
        model, hardware = stage.model, stage.hardware
        operations = hardware.training_tflops * 1e12 * hardware.arithmetic_of(model) * stage.gpus * model.layers / stage.layers
        _, send_s = message_seconds(model, hardware, stage.gpus, stage.layers, stage.link)
        token_s = 2 * load.passes * model.matrix_parameters / operations + load.sends * send_s
        if hardware.system.elementwise:
            layer_bytes = HIDDEN_BYTES * model.hidden + EXPERT_BYTES * model.active * model.intermediate
            token_s += load.passes * stage.layers * layer_bytes / (hardware.weights_gb_s * 1e9 * stage.gpus)
        return TrainingTiming(
            0.0, token_s / self.copies, load.passes * model.attended / operations / self.copies, self.copies, hardware.system.padded
        )

    def _latency_s(self, stage: Stage, load: Load) -> float:
        """Return the fixed seconds of a micro-batch's messages inside a stage."""
        return load.sends * message_seconds(stage.model, stage.hardware, stage.gpus, stage.layers, stage.link)[0]

    def _hops_s(self, load: Load) -> float:
        """Return the seconds of a micro-batch's slowest transfer from a stage to the next, over all passes."""
        alone = len(self.gpus) == 1 and sum(self.gpus.values()) <= self.machine
        links = [a.hardware.machine_link if alone else link_between(a.hardware, b.hardware) for a, b in pairwise(self.stages)]
        sent = load.micro_tokens * token_bytes(self.stages[0].model, self.stages[0].hardware)
        return max((link.seconds(sent, load.sends) for link in links), default=0.0)

    def _sum_s(self, stage: Stage) -> float:
        """Return the seconds of the all-reduce of a stage's gradients over its copies.

        It runs as a ring inside each machine, then as a ring over the machines for each part.
        """
        here = min(self.copies, max(1, self.machine // stage.gpus))
        sent, machines = stage.parameters * GRADIENT_BYTES / stage.gpus / here, -(-self.copies // here)
        inside_s = stage.hardware.machine_link.seconds(sent, 2 * (here - 1))
        return inside_s + link_between(stage.hardware, stage.hardware).seconds(sent / machines, 2 * (machines - 1))

    def _stage_gb(self, stage: Stage, tokens: float) -> float:
        weights = stage.parameters * (WEIGHT_BYTES + OPTIMIZER_BYTES / self.copies)
        layer_bytes = stage.layers * stage.hardware.number_bytes * len(self.stages) + WORKING
        return (weights + tokens * stage.model.hidden * layer_bytes) / stage.gpus / 1e9


def even_plan(model: ModelShape, hardware: Hardware, parallelism: Parallelism, machine: int = MACHINE) -> TrainingPlan:
    """Return the plan for GPUs of one type.

    Args:
        model: Sizes of the model.
        hardware: Rates of one GPU.
        parallelism: Division of the model among the GPUs.
        machine: Number of GPUs per machine.

    Raises:
        InputError: If the hardware's training rate is unknown, or there are more stages than layers.
    """
    if not hardware.training_tflops:
        raise InputError(f"{hardware.name}: its rate of training was not measured; a training pool needs a GPU of the catalogue")
    stages = pipeline(model, ((hardware, parallelism.tensor),) * parallelism.stages, lambda each: each.training_tflops, machine)
    if stages is None:
        raise InputError(f"{parallelism.stages} stages are more than the model's {model.layers} layers")
    return TrainingPlan(stages, parallelism.copies, machine)
