"""Seconds and memory of a training on a pipeline whose stages may have GPUs of different types, copied for data parallelism.

As AReaL-Hex (arXiv 2511.00796) has it: a tensor-parallel group and the copies of a stage have one type each; types mix only from
stage to stage, with layers in proportion to a stage's arithmetic. A pass over a token is two operations a weight, and
half of all pairs of tokens attend to each other; forward, backward and the old log-probabilities are `PASSES / 2` passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rollmux_env.timing.links import link_between, machine_link
from rollmux_env.timing.roofline import PASSES
from rollmux_env.timing.stages import Stage
from rollmux_env.timing.work import Work

WEIGHT_BYTES = 6  # of a weight and its gradient on every copy: bf16 and float32
OPTIMIZER_BYTES = 12  # of a weight, spread over the copies: itself and two moments in float32
GRADIENT_BYTES = 4  # that the copies of a weight send each other
FORWARDS = 3  # passes that send messages: forward, backward, old log-probabilities
WORKING = 34  # bytes of a token and hidden unit in the layer at work; other layers keep their inputs alone and recompute


@dataclass(frozen=True)
class TrainingPlan:
    """A pipeline and its copies.

    Attributes:
        stages: of one copy, in order. copies: data parallelism. machine: GPUs of a machine.
    """

    stages: tuple[Stage, ...]
    copies: int
    machine: int

    @cached_property
    def gpus(self) -> dict[str, int]:
        """GPUs by type, of all copies."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            counts[stage.hardware.name] = counts.get(stage.hardware.name, 0) + stage.gpus * self.copies
        return counts

    def seconds(self, work: Work) -> float:
        """Seconds of a training: of its mini-batches, each a pipeline's run over its micro-batches and a sum of gradients."""
        micro_tokens = work.prompt_tokens + work.cap
        micro = max(1.0, work.responses * work.sequence_tokens / (self.copies * work.updates * micro_tokens))
        slowest_s = max(self._micro_s(stage, micro_tokens, work) for stage in self._different) + self._hops_s(micro_tokens)
        sums_s = max(self._sum_s(stage) for stage in self._different)
        return work.updates * ((micro + len(self.stages) - 1) * slowest_s + sums_s)

    def memory_gb(self, work: Work) -> float:
        """GB on the GPU that holds most."""
        return max(self._stage_gb(stage, work) for stage in self._different)

    def fits(self, work: Work) -> bool:
        """Whether every GPU can hold its part."""
        return all(self._stage_gb(stage, work) <= stage.hardware.memory_gb for stage in self._different)

    @cached_property
    def _different(self) -> tuple[Stage, ...]:
        """One of each kind of its stages."""
        return tuple({(stage.hardware.name, stage.gpus, stage.layers): stage for stage in self.stages}.values())

    def _micro_s(self, stage: Stage, tokens: float, work: Work) -> float:
        """Of a stage, a micro-batch of so many tokens: sequences of the average length, one after the other."""
        shape, part = stage.shape, stage.layers / stage.shape.layers
        operations = part * (PASSES * shape.matrix_parameters + PASSES / 2 * shape.attended * work.sequence_tokens) * tokens
        return operations / (stage.hardware.training_tflops * 1e12 * stage.gpus) + FORWARDS * stage.messages_s(tokens)

    def _hops_s(self, tokens: float) -> float:
        """Of a micro-batch's slowest way from a stage to the next, in all passes."""
        alone = len(self.gpus) == 1 and sum(self.gpus.values()) <= self.machine
        links = [machine_link(a.hardware) if alone else link_between(a.hardware, b.hardware) for a, b in pairwise(self.stages)]
        return max((link.seconds(tokens * self.stages[0].token_bytes, FORWARDS) for link in links), default=0.0)

    def _sum_s(self, stage: Stage) -> float:
        """Of the sum of a stage's gradients over its copies, as a ring, on whose slowest link it waits."""
        inside = stage.gpus * self.copies <= self.machine
        link = machine_link(stage.hardware) if inside else link_between(stage.hardware, stage.hardware)
        steps = 2 * (self.copies - 1)
        return link.seconds(stage.parameters * GRADIENT_BYTES / stage.gpus / self.copies, steps)

    def _stage_gb(self, stage: Stage, work: Work) -> float:
        tokens, hidden = work.prompt_tokens + work.cap, stage.shape.hidden
        weights = stage.parameters * (WEIGHT_BYTES + OPTIMIZER_BYTES / self.copies)
        activations = tokens * hidden * (stage.layers * stage.hardware.number_bytes * len(self.stages) + WORKING)
        return (weights + activations) / stage.gpus / 1e9
