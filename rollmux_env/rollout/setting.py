"""The setting of a job's rollouts: what they must produce, and the replicas they run on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.keys.job import Job
from rollmux_env.timing.lengths import Lengths, whole
from rollmux_env.timing.replica import ReplicaTiming

RESPONSES_EACH = 8  # to a prompt, in RollPacker's jobs; scenario files give whole batches


@dataclass(frozen=True)
class Setting:
    """The setting of a job's rollouts.

    Attributes:
        timings: (GPUs of a replica, that is tensor parallelism; what it costs), for every choice there is. gpus: of all replicas.
        parallel: GPUs of each replica as the job is configured.
        prompts, responses: an iteration trains on so many prompts, with so many responses to each. prompt_tokens: of each.
        lengths: of all responses. alike: correlation of the lengths of one prompt's responses (of their normal scores): hard
            prompts have long ones whenever they are sampled; 0 to 1.
        turns: of a response; `prompt_tokens` come before and `lengths` are of each. environment_s: wait before each further turn.
        most: sequences of a replica's batch.
        reward_s: seconds of a response's reward. reward_nodes: rewards that are computed at once, on nodes of their own.
        observed: tokens of the responses to each prompt of a trace: prompt n has those of n modulo their number, and from the first
            again where it has more. Nothing: they are drawn from `lengths`.

    Raises:
        InputError: no timing for `parallel`, GPUs that it does not divide, or a count or share out of range.
    """

    timings: tuple[tuple[int, ReplicaTiming], ...]
    gpus: int
    parallel: int
    prompts: int
    responses: int
    prompt_tokens: int
    lengths: Lengths
    alike: float = 0.5
    turns: int = 1
    environment_s: float = 0.0
    most: int = 256
    observed: tuple[tuple[int, ...], ...] = ()
    reward_s: float = 0.0
    reward_nodes: int = 1

    def __post_init__(self) -> None:
        counts = self.gpus, self.parallel, self.prompts, self.responses, self.turns, self.most, self.reward_nodes
        if min(counts) < 1 or self.prompt_tokens < 0 or not 0 <= self.reward_s < float("inf"):
            raise InputError("rollout: prompt_tokens and reward_s must be at least 0, and all other counts at least 1")
        if self.parallel not in dict(self.timings) or any(self.gpus % size for size, _ in self.timings):
            raise InputError(
                f"rollout: {self.gpus} GPUs are not replicas of every size that has a timing, {self.parallel} among them"
            )
        if not 0 <= self.alike <= 1:
            raise InputError(f"rollout: alike must be between 0 and 1, not {self.alike}")

    def lengths_of(self, hard: Floats, own: Floats) -> Ints:
        """Tokens of responses by normal scores: how hard their prompts are, and what is their own, (n, ...)."""
        from scipy.special import ndtr

        scores = np.sqrt(self.alike) * hard + np.sqrt(1 - self.alike) * own
        return whole(self.lengths.quantile(ndtr(scores).ravel())).reshape(own.shape)

    def on(self, gpus: int) -> Setting:
        """The same on so many GPUs, with replicas of the configured size alone."""
        return replace(self, timings=((self.parallel, dict(self.timings)[self.parallel]),), gpus=gpus)

    @property
    def replicas(self) -> list[ReplicaTiming]:
        """The replicas as the job is configured."""
        return [dict(self.timings)[self.parallel]] * (self.gpus // self.parallel)


def setting_of(job: Job) -> Setting | None:
    """The rollouts of a scenario's job; None where it has no model. A batch that 8 divides is of prompts with 8 responses each."""
    if job.timing is None or job.lengths is None:
        return None
    from rollmux_env.timing.jobs import lengths_of, replica_of

    described = job.lengths
    observed = described.observed or ()
    each = len(observed[0]) if observed else RESPONSES_EACH if described.batch % RESPONSES_EACH == 0 else 1
    parallel = job.timing.sizes[0].tensor_parallel if job.timing.sizes else 1
    sizes = tuple((size.tensor_parallel, replica_of(size)) for size in job.timing.sizes)
    return Setting(
        timings=sizes or ((parallel, replica_of(job.timing)),),
        gpus=job.timing.replicas * parallel,
        parallel=parallel,
        prompts=described.batch // each,
        responses=each,
        prompt_tokens=described.prompt_tokens,
        lengths=lengths_of(described),
        turns=described.turns,
        environment_s=described.environment_s,
        observed=observed,
        reward_s=described.reward_s or 0.0,
        reward_nodes=described.reward_nodes or 1,
    )
