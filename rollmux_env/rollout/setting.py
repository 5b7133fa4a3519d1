"""What a job's rollouts are asked for, and on what they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollmux_env.errors import InputError
from rollmux_env.timing.lengths import Lengths
from rollmux_env.timing.replica import ReplicaTiming


@dataclass(frozen=True)
class Setting:
    """A job's rollouts.

    Attributes:
        timings: {GPUs of a replica (tensor parallelism): what it costs}. gpus: of all replicas. parallel: GPUs of each replica as
            the job is configured.
        prompts, responses: an iteration trains on so many prompts, with so many responses to each. prompt_tokens: of each.
        lengths: of all responses. alike: correlation of the lengths of one prompt's responses (of their normal scores): hard
            prompts have long ones whenever they are sampled; 0 to 1.
        most: sequences of a replica's batch.

    Raises:
        InputError: no timing for `parallel`, GPUs that it does not divide, or a count or share out of range.
    """

    timings: Mapping[int, ReplicaTiming]
    gpus: int
    parallel: int
    prompts: int
    responses: int
    prompt_tokens: int
    lengths: Lengths
    alike: float = 0.5
    most: int = 256

    def __post_init__(self) -> None:
        if min(self.gpus, self.parallel, self.prompts, self.responses, self.most) < 1 or self.prompt_tokens < 0:
            raise InputError("rollout: gpus, parallel, prompts, responses and most must be at least 1, prompt_tokens at least 0")
        if self.parallel not in self.timings or self.gpus % self.parallel:
            raise InputError(f"rollout: {self.gpus} GPUs are not replicas of {self.parallel}, or its timing is not given")
        if not 0 <= self.alike <= 1:
            raise InputError(f"rollout: alike must be between 0 and 1, not {self.alike}")

    @property
    def replicas(self) -> list[ReplicaTiming]:
        """The replicas as the job is configured."""
        return [self.timings[self.parallel]] * (self.gpus // self.parallel)
