"""Throughput of a rollout replica: a pipeline of stages, by HexGen's model (`rollmux_env.timing.stages`).

The sequences of a replica are split into as many micro-batches as it has stages, so that each stage always works on one; a step
takes as many turns as there are stages, and a turn as long as its slowest stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rollmux_env.timing.links import link_between
from rollmux_env.timing.stages import Stage
from rollmux_env.timing.work import Work


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
        counts: dict[str, int] = {}
        for stage in self.stages:
            counts[stage.hardware.name] = counts.get(stage.hardware.name, 0) + stage.gpus
        return counts

    def batch_s(self, work: Work) -> float:
        """Seconds in which the batch is read and sampled, all of the average length."""
        turns = len(self.stages)
        each = self.batch / turns
        context = work.prompt_tokens + work.response_tokens / 2 if work.reads_cache else 0.0
        prefill_s = max(stage.prefill_s(each, work.prompt_tokens) for stage in self.stages)
        decode_s = max(stage.decode_s(each, context) for stage in self.stages)
        return turns * (prefill_s + self._hop_s(each * work.prompt_tokens)) + (
            work.response_tokens * turns * (decode_s + self._hop_s(each))
        )

    def responses_per_s(self, work: Work) -> float:
        """Its throughput, which the paper calls h."""
        return self.batch / self.batch_s(work)

    def memory_gb(self, work: Work) -> float:
        """GB on the GPU that holds most."""
        each = self.batch / len(self.stages)
        return max(stage.rollout_gb(self.batch, work.sequence_tokens, each) for stage in self.stages)

    def fits(self, work: Work) -> bool:
        """Whether every GPU can hold its part."""
        each = self.batch / len(self.stages)
        return all(stage.rollout_gb(self.batch, work.sequence_tokens, each) <= stage.hardware.memory_gb for stage in self.stages)

    def _hop_s(self, tokens: float) -> float:
        """Seconds of the slowest message from a stage to the next."""
        links = [link_between(a.hardware, b.hardware) for a, b in pairwise(self.stages)]
        return max((link.seconds(tokens * self.stages[0].token_bytes) for link in links), default=0.0)


def largest_batch(stages: tuple[Stage, ...], work: Work) -> int:
    """Most sequences that fit beside each other, at most `work.in_flight`; 0 where not even one does."""
    low, high = 0, work.in_flight + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if Replica(stages, middle).fits(work) else (low, middle)
    return low
