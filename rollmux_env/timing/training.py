"""Seconds and memory of a training on a pipeline whose stages may have GPUs of different types, copied for data parallelism.

As AReaL-Hex (arXiv 2511.00796) has it: a tensor-parallel group and the copies of a stage have one type each; types mix only from
stage to stage, with layers in proportion to a stage's arithmetic. A pass over a token is two operations a weight, and half of all
pairs of tokens attend to each other. The responses of a mini-batch are spread evenly over the copies, and the longest one is a
copy's alone. What is no matrix product is bound by memory.
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

UPDATE = 3  # forward passes that forward and backward amount to
WEIGHT_BYTES = 6  # of a weight and its gradient on every copy: bf16 and float32
OPTIMIZER_BYTES = 12  # of a weight, spread over the copies: itself and two moments in float32
GRADIENT_BYTES = 4  # that the copies of a weight send each other
WORKING = 34  # bytes of a token and hidden unit in the layer at work; other layers keep their inputs alone and recompute
HIDDEN_BYTES, EXPERT_BYTES = 45, 12  # of a token in a layer, in bf16: norms, residuals, rotations, attention; ends of products
_SEED = 0  # of the order in which responses fall into mini-batches


class MiniBatch(NamedTuple):
    """Sequences that are trained on together: their number, all their tokens, the sum of these squared, tokens of the longest."""

    number: float
    tokens: float
    squares: float
    longest: float

    @classmethod
    def of(cls, tokens: Floats | Ints) -> MiniBatch:
        """Of sequences with so many tokens each."""
        each = np.asarray(tokens, dtype=np.float64)
        return cls(each.size, float(each.sum()), float((each**2).sum()), float(each.max()))

    @classmethod
    def even(cls, count: float, tokens: float) -> MiniBatch:
        """Of sequences of one length."""
        return cls(count, count * tokens, count * tokens**2, tokens)

    def padded(self) -> MiniBatch:
        """With all sequences as long as the longest."""
        return self.even(self.number, self.longest)


class Load(NamedTuple):
    """What a trainer is given.

    Attributes:
        parts: mini-batches, one after the other, each with how often. micro_tokens: of a micro-batch, which holds one sequence at
            the cap. passes: forward passes that the arithmetic amounts to. sends: those whose messages count. updates: whether
            weights change, or log-probabilities are computed alone.
    """

    parts: tuple[tuple[MiniBatch, int], ...]
    micro_tokens: float
    passes: int
    sends: int
    updates: bool = True


def update_load(system: Calibration, tokens: Floats | Ints, updates: int, micro_tokens: float, scored: int = 0) -> Load:
    """Forward and backward passes over (n,) sequences of so many tokens, which fall into mini-batches in any order.

    Args:
        scored: passes for log-probabilities that count as part of it.
    """
    order = np.random.default_rng(_SEED).permutation(tokens)
    parts = [MiniBatch.of(part) for part in np.array_split(order, updates)]
    return _updates(system, tuple((part.padded() if system.padded else part, 1) for part in parts), micro_tokens, scored)


def even_load(system: Calibration, count: float, tokens: float, micro_tokens: float, updates: int = 1) -> Load:
    """As `update_load`, of sequences of one length, with a pass for log-probabilities."""
    return _updates(system, ((MiniBatch.even(count / updates, tokens), updates),), micro_tokens, 1)


def _updates(system: Calibration, parts: tuple[tuple[MiniBatch, int], ...], micro_tokens: float, scored: int) -> Load:
    more = system.recomputed + scored
    return Load(parts, micro_tokens, UPDATE + more, UPDATE - 1 + more)


def scoring_load(system: Calibration, tokens: Floats | Ints, micro_tokens: float) -> Load:
    """One forward pass over (n,) sequences of so many tokens, for log-probabilities."""
    part = MiniBatch.of(tokens)
    return Load(((part.padded() if system.padded else part, 1),), micro_tokens, 1, 1, updates=False)


@dataclass(frozen=True)
class TrainingTiming:
    """What a training phase costs on all its devices: of the copies of a model, the one that takes longest.

    Attributes:
        update_s: fixed. s_per_token, s_per_token2: of a token, and of a sequence's tokens squared, evenly over all copies.
        copies: of the model. padded: whether all sequences are padded to the longest.
    """

    update_s: float
    s_per_token: float
    s_per_token2: float
    copies: int = 1
    padded: bool = True

    def busy_s(self, part: MiniBatch) -> float:
        """Seconds of the passes over a mini-batch."""
        alone_s = self.copies * (self.s_per_token * part.longest + self.s_per_token2 * part.longest**2)
        return max(self.s_per_token * part.tokens + self.s_per_token2 * part.squares, alone_s)

    def seconds(self, part: MiniBatch) -> float:
        """Seconds of a training in one mini-batch."""
        return self.update_s + self.busy_s(part.padded() if self.padded else part)


@dataclass(frozen=True)
class TrainingPlan:
    """A pipeline and its copies.

    Attributes:
        stages: of one copy, in order. copies: data parallelism. machine: GPUs of a machine.
    """

    stages: tuple[Stage, ...]
    copies: int
    machine: int = MACHINE

    @cached_property
    def gpus(self) -> dict[str, int]:
        """GPUs by type, of all copies."""
        return {name: count * self.copies for name, count in gpus_of(self.stages).items()}

    def seconds(self, load: Load) -> float:
        """Seconds of a load: of its mini-batches, each a pipeline's run over its micro-batches and a sum of gradients."""
        rates = [self._rate(stage, load) for stage in self._different]
        latency_s = max(self._latency_s(stage, load) for stage in self._different) + self._hops_s(load)
        fixed_s = max(stage.hardware.update_s for stage in self._different) if load.updates else 0.0
        return fixed_s + sum(times * self._part_s(rates, latency_s, part, load) for part, times in load.parts)

    def computing_s(self, load: Load) -> float:
        """Of it, seconds without what crosses the network: without hops between stages and sums of gradients."""
        rates = [self._rate(stage, load) for stage in self._different]
        return sum(times * self._part_s(rates, 0.0, part, load._replace(updates=False)) for part, times in load.parts)

    def timing(self, load: Load) -> TrainingTiming:
        """Of a pipeline of one stage, for mini-batches other than the load's, whose messages count."""
        (stage,) = self.stages
        rate = self._rate(stage, load)
        (part, _), *_ = load.parts
        return replace(rate, update_s=stage.hardware.update_s + self._part_s([rate], 0.0, part, load) - rate.busy_s(part))

    def memory_gb(self, micro_tokens: float) -> float:
        """GB on the GPU that holds most."""
        return max(self._stage_gb(stage, micro_tokens) for stage in self._different)

    def fits(self, micro_tokens: float) -> bool:
        """Whether every GPU can hold its part."""
        return all(self._stage_gb(stage, micro_tokens) <= stage.hardware.memory_gb for stage in self._different)

    @cached_property
    def _different(self) -> tuple[Stage, ...]:
        """One of each kind of its stages."""
        return tuple({(stage.hardware.name, stage.gpus, stage.layers): stage for stage in self.stages}.values())

    def _part_s(self, rates: list[TrainingTiming], latency_s: float, part: MiniBatch, load: Load) -> float:
        """Of a mini-batch. The sum of gradients goes on beside the backward pass over the last micro-batch."""
        busy_s = max(rate.busy_s(part) for rate in rates)
        micro = max(1.0, part.tokens / (self.copies * load.micro_tokens))
        more = len(self.stages) - 1
        beside_s = busy_s / micro * (UPDATE - 1) / load.passes
        sums_s = max(self._sum_s(stage) for stage in self._different) if load.updates else 0.0
        return busy_s * (1 + more / micro) + (micro + more) * latency_s + max(0.0, sums_s - beside_s)

    def _rate(self, stage: Stage, load: Load) -> TrainingTiming:
        """Seconds of the load's tokens on a stage."""
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
        """Fixed seconds of a micro-batch's messages inside a stage."""
        return load.sends * message_seconds(stage.model, stage.hardware, stage.gpus, stage.layers, stage.link)[0]

    def _hops_s(self, load: Load) -> float:
        """Of a micro-batch's slowest way from a stage to the next, in all passes."""
        alone = len(self.gpus) == 1 and sum(self.gpus.values()) <= self.machine
        links = [a.hardware.machine_link if alone else link_between(a.hardware, b.hardware) for a, b in pairwise(self.stages)]
        sent = load.micro_tokens * token_bytes(self.stages[0].model, self.stages[0].hardware)
        return max((link.seconds(sent, load.sends) for link in links), default=0.0)

    def _sum_s(self, stage: Stage) -> float:
        """Of the sum of a stage's gradients over its copies: as a ring inside each machine, then of each part over the machines."""
        here = min(self.copies, max(1, self.machine // stage.gpus))
        sent, machines = stage.parameters * GRADIENT_BYTES / stage.gpus / here, -(-self.copies // here)
        inside_s = stage.hardware.machine_link.seconds(sent, 2 * (here - 1))
        return inside_s + link_between(stage.hardware, stage.hardware).seconds(sent / machines, 2 * (machines - 1))

    def _stage_gb(self, stage: Stage, tokens: float) -> float:
        weights = stage.parameters * (WEIGHT_BYTES + OPTIMIZER_BYTES / self.copies)
        layer_bytes = stage.layers * stage.hardware.number_bytes * len(self.stages) + WORKING
        return (weights + tokens * stage.model.hidden * layer_bytes) / stage.gpus / 1e9


def even_plan(model: ModelShape, hardware: Hardware, parallelism: Parallelism, machine: int = MACHINE) -> TrainingPlan:
    """The plan of GPUs of one type.

    Raises:
        InputError: the hardware's rate of training is not known, or there are more stages than layers; one line.
    """
    if not hardware.training_tflops:
        raise InputError(f"{hardware.name}: its rate of training was not measured; a training pool needs a GPU of the catalogue")
    stages = pipeline(model, ((hardware, parallelism.tensor),) * parallelism.stages, lambda each: each.training_tflops, machine)
    if stages is None:
        raise InputError(f"{parallelism.stages} stages are more than the model's {model.layers} layers")
    return TrainingPlan(stages, parallelism.copies, machine)
