"""Pipelines of stages, as AReaL-Hex (arXiv 2511.00796) has them: some layers each, on GPUs of one type in one machine.

The model's weights and its matrix products are spread evenly over its layers, embeddings too. The sequences of a replica are split
into as many micro-batches as it has stages, so that each stage always works on one; a step takes as many turns as there are stages,
and a turn as long as its slowest stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rollmux_env.timing.hardware import Hardware, Link, link_between
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import MACHINE, ReplicaTiming, stage_timing, token_bytes
from rollmux_env.timing.work import Work

ACTIVATIONS = 4  # numbers of a token and hidden unit that a stage holds while it works


@dataclass(frozen=True)
class Stage:
    """Layers on the GPUs of one tensor-parallel group, all of one type.

    Attributes:
        model: of the whole. layers: of the stage. hardware: of its GPUs. gpus: their number. link: between them.
    """

    model: ModelShape
    layers: int
    hardware: Hardware
    gpus: int
    link: Link

    @property
    def parameters(self) -> float:
        """Weights of the stage."""
        return self.model.parameters * self.layers / self.model.layers

    def timing(self, sequences: float) -> ReplicaTiming:
        """Seconds of its part of a rollout with so many sequences at once."""
        return stage_timing(self.model, self.hardware, self.gpus, self.layers, sequences, self.link)

    def rollout_gb(self, sequences: float, tokens: float, at_work: float) -> float:
        """GB on each GPU for so many sequences of so many tokens each, of which `at_work` are worked on at once."""
        number, cached = self.hardware.number_bytes, self.model.cached * self.layers / self.model.layers
        each = (self.parameters * number + sequences * tokens * cached * number) / self.gpus
        return (each + ACTIVATIONS * at_work * tokens * token_bytes(self.model, self.hardware)) / 1e9


def gpus_of(stages: Sequence[Stage]) -> dict[str, int]:
    """GPUs of some stages, by type."""
    counts: Counter[str] = Counter()
    for stage in stages:
        counts[stage.hardware.name] += stage.gpus
    return dict(counts)


@dataclass(frozen=True)
class Replica:
    """One copy of the model for rollouts.

    Attributes:
        stages: of its pipeline. batch: sequences at once.
    """

    stages: tuple[Stage, ...]
    batch: int

    @cached_property
    def gpus(self) -> dict[str, int]:
        """GPUs by type."""
        return gpus_of(self.stages)

    def batch_s(self, work: Work) -> float:
        """Seconds in which the batch is read and sampled, all of the average length."""
        turns, each = len(self.stages), self.batch / len(self.stages)
        context = work.prompt_tokens + work.response_tokens / 2 if work.reads_cache else 0.0
        timings = [stage.timing(each) for stage in self.stages]
        prefill_s = max(each * timing.prefill_seconds(work.prompt_tokens) for timing in timings)
        decode_s = max(timing.decode_s(each, each * context) for timing in timings)
        return turns * (prefill_s + self._hop_s(each * work.prompt_tokens)) + (
            work.response_tokens * turns * (decode_s + self._hop_s(each))
        )

    def responses_per_s(self, work: Work) -> float:
        """Its throughput, which the paper calls h."""
        return self.batch / self.batch_s(work)

    def memory_gb(self, work: Work) -> float:
        """GB on the GPU that holds most."""
        return max(self._stage_gb(stage, work) for stage in self.stages)

    def fits(self, work: Work) -> bool:
        """Whether every GPU can hold its part."""
        return all(self._stage_gb(stage, work) <= stage.hardware.memory_gb for stage in self.stages)

    def _stage_gb(self, stage: Stage, work: Work) -> float:
        return stage.rollout_gb(self.batch, work.sequence_tokens, self.batch / len(self.stages))

    def _hop_s(self, tokens: float) -> float:
        """Seconds of the slowest message from a stage to the next."""
        sent = tokens * token_bytes(self.stages[0].model, self.stages[0].hardware)
        return max((link_between(a.hardware, b.hardware).seconds(sent) for a, b in pairwise(self.stages)), default=0.0)


def largest_batch(stages: tuple[Stage, ...], work: Work) -> int:
    """Most sequences that fit beside each other, at most `work.in_flight`; 0 where not even one does."""
    low, high = 0, work.in_flight + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if Replica(stages, middle).fits(work) else (low, middle)
    return low


def pipeline(
    model: ModelShape, groups: tuple[tuple[Hardware, int], ...], speed: Callable[[Hardware], float], machine: int = MACHINE
) -> tuple[Stage, ...] | None:
    """The stages of a pipeline, with layers in proportion to their GPUs' speed; None where there are fewer layers than stages.

    Args:
        groups: hardware and GPUs of each stage, in order. speed: of one GPU, in any unit. machine: GPUs of a machine.
    """
    layers = share_layers(model.layers, tuple(speed(hardware) * gpus for hardware, gpus in groups))
    if layers is None:
        return None
    return tuple(
        Stage(model, count, hardware, gpus, hardware.link(gpus, machine))
        for count, (hardware, gpus) in zip(layers, groups, strict=True)
    )


def share_layers(layers: int, weights: tuple[float, ...]) -> tuple[int, ...] | None:
    """Layers of each stage in proportion to its weight, all whole and at least 1; None where there are fewer layers than stages.

    Largest remainders are rounded up, the first of equal ones first.
    """
    if len(weights) > layers:
        return None
    spare = layers - len(weights)
    exact = [max(0.0, layers * weight / sum(weights) - 1) for weight in weights]
    exact = [spare * share / sum(exact) if sum(exact) else 0.0 for share in exact]
    whole = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda k: whole[k] - exact[k])
    for k in order[: spare - sum(whole)]:
        whole[k] += 1
    return tuple(1 + count for count in whole)
