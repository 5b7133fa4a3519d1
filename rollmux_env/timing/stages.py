"""Pipeline stages as in AReaL-Hex (arXiv 2511.00796): some layers each, on GPUs of one type in one machine.

The model's weights, including embeddings, and its matrix products are spread evenly over its layers. The sequences of a replica are
split into as many micro-batches as it has stages, so that each stage always works on one. A step has as many turns as there are
stages, and a turn takes as long as its slowest stage.
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
from rollmux_env.timing.work import IterationWork

ACTIVATIONS = 4  # values per token and hidden unit that a stage holds while it computes


@dataclass(frozen=True)
class Stage:
    """Layers on the GPUs of one tensor-parallel group, all of one type.

    Attributes:
        model: Sizes of the whole model.
        layers: Number of layers of the stage.
        hardware: Rates of one GPU.
        gpus: Number of GPUs.
        link: Link between the GPUs.
    """

    model: ModelShape
    layers: int
    hardware: Hardware
    gpus: int
    link: Link

    @property
    def parameters(self) -> float:
        """Number of weights of the stage."""
        return self.model.parameters * self.layers / self.model.layers

    @cached_property
    def timing(self) -> ReplicaTiming:
        """Seconds of the stage's part of a rollout."""
        return stage_timing(self.model, self.hardware, self.gpus, self.layers, self.link)

    def rollout_gb(self, sequences: float, tokens: float, at_work: float) -> float:
        """Return the memory on each GPU, in GB.

        Args:
            sequences: Number of sequences in the KV cache.
            tokens: Length of each sequence, in tokens.
            at_work: Number of the sequences that are computed at once.
        """
        number, cached = self.hardware.number_bytes, self.model.cached * self.layers / self.model.layers
        each = (self.parameters * number + sequences * tokens * cached * number) / self.gpus
        return (each + ACTIVATIONS * at_work * tokens * token_bytes(self.model, self.hardware)) / 1e9


def gpus_of(stages: Sequence[Stage]) -> dict[str, int]:
    """Return the number of GPUs of some stages, by type."""
    counts: Counter[str] = Counter()
    for stage in stages:
        counts[stage.hardware.name] += stage.gpus
    return dict(counts)


@dataclass(frozen=True)
class Replica:
    """One copy of the model for rollouts.

    Attributes:
        stages: Stages of its pipeline, in order.
        batch: Number of concurrent sequences.
    """

    stages: tuple[Stage, ...]
    batch: int

    @cached_property
    def gpus(self) -> dict[str, int]:
        """Number of GPUs by type."""
        return gpus_of(self.stages)

    def batch_s(self, work: IterationWork) -> float:
        """Return the seconds in which the batch is read and sampled, with all responses of average length."""
        turns, each = len(self.stages), self.batch / len(self.stages)
        context = work.prompt_tokens + work.response_tokens / 2 if work.reads_cache else 0.0
        timings = [stage.timing for stage in self.stages]
        prefill_s = max(each * timing.prefill_seconds(work.prompt_tokens) for timing in timings)
        decode_s = max(timing.decode_s(each, each * context) for timing in timings)
        return turns * (prefill_s + self._hop_s(each * work.prompt_tokens)) + (
            work.response_tokens * turns * (decode_s + self._hop_s(each))
        )

    def responses_per_s(self, work: IterationWork) -> float:
        """Return the throughput in responses per second, which the paper calls h."""
        return self.batch / self.batch_s(work)

    def memory_gb(self, work: IterationWork) -> float:
        """Return the memory of the fullest GPU, in GB."""
        return max(self._stage_gb(stage, work) for stage in self.stages)

    def fits(self, work: IterationWork) -> bool:
        """Return whether every GPU can hold its part."""
        return all(self._stage_gb(stage, work) <= stage.hardware.memory_gb for stage in self.stages)

    def _stage_gb(self, stage: Stage, work: IterationWork) -> float:
        return stage.rollout_gb(self.batch, work.sequence_tokens, self.batch / len(self.stages))

    def _hop_s(self, tokens: float) -> float:
        """Return the seconds of the slowest message from a stage to the next."""
        sent = tokens * token_bytes(self.stages[0].model, self.stages[0].hardware)
        return max((link_between(a.hardware, b.hardware).seconds(sent) for a, b in pairwise(self.stages)), default=0.0)


def largest_batch(stages: tuple[Stage, ...], work: IterationWork) -> int:
    """Return the largest number of concurrent sequences that fit, at most `work.in_flight`, or 0 if none fits."""
    low, high = 0, work.in_flight + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if Replica(stages, middle).fits(work) else (low, middle)
    return low


def pipeline(
    model: ModelShape, groups: tuple[tuple[Hardware, int], ...], speed: Callable[[Hardware], float], machine: int = MACHINE
) -> tuple[Stage, ...] | None:
    """Return the stages of a pipeline, with layers in proportion to the speed of their GPUs.

    Args:
        model: Sizes of the model.
        groups: Hardware and number of GPUs of each stage, in order.
        speed: Function that returns the speed of one GPU, in any unit.
        machine: Number of GPUs per machine.

    Returns:
        The stages, or None if there are fewer layers than stages.
    """
    layers = share_layers(model.layers, tuple(speed(hardware) * gpus for hardware, gpus in groups))
    if layers is None:
        return None
    return tuple(
        Stage(model, count, hardware, gpus, hardware.link(gpus, machine))
        for count, (hardware, gpus) in zip(layers, groups, strict=True)
    )


def share_layers(layers: int, weights: tuple[float, ...]) -> tuple[int, ...] | None:
    """Divide layers among stages in proportion to their weights, at least one layer each.

    Largest remainders are rounded up, in order among equal ones.

    Args:
        layers: Number of layers.
        weights: Weight of each stage.

    Returns:
        Number of layers of each stage, or None if there are fewer layers than stages.
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
