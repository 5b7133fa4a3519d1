"""The setting of a job's rollouts: what they must produce, and the replicas they run on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.keys.job import Job
from rollmux_env.timing.lengths import LengthDistribution, whole
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.rewards import RewardQuantiles

RESPONSES_EACH = 8  # responses per prompt in RollPacker's jobs, since scenario files give only the size of the batch


@dataclass(frozen=True)
class Setting:
    """The setting of a job's rollouts.

    Attributes:
        timings: Available replica sizes: pairs of the number of GPUs (tensor parallelism) and the timing.
        gpus: Number of GPUs of all replicas together.
        parallel: Number of GPUs of each replica as the job is configured.
        prompts: Number of prompts of an iteration.
        responses: Number of responses to each prompt.
        prompt_tokens: Length of the prompt of each turn, in tokens.
        lengths: Distribution of the length of a response's turn, in tokens.
        alike: Correlation, from 0 to 1, between the normal scores of the lengths of one prompt's responses. Hard prompts have long
            responses whenever they are sampled.
        turns: Number of turns of a response.
        environment_s: Wait for the environment before each further turn, in seconds.
        most: Largest number of sequences in a replica's batch.
        observed: Lengths of the responses to each prompt of a trace, in tokens. Prompts and responses beyond their number start
            again at the first. If empty, lengths are drawn from `lengths`.
        reward_s: Seconds of the reward of one response, the mean if rewards differ.
        reward_nodes: Number of rewards that are computed at once, on separate nodes.
        reward_quantiles: Distribution of the seconds of rewards that differ; empty if all take `reward_s`.

    Raises:
        InputError: If `parallel` has no timing, a replica size does not divide `gpus`, or a count or share is out of range.
    """

    timings: tuple[tuple[int, ReplicaTiming], ...]
    gpus: int
    parallel: int
    prompts: int
    responses: int
    prompt_tokens: int
    lengths: LengthDistribution
    alike: float = 0.5
    turns: int = 1
    environment_s: float = 0.0
    most: int = 256
    observed: tuple[tuple[int, ...], ...] = ()
    reward_s: float = 0.0
    reward_nodes: int = 1
    reward_quantiles: RewardQuantiles = ()

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
        """Return the lengths of responses in tokens, with the shape of `own`.

        Args:
            hard: Normal scores of the hardness of each response's prompt; broadcast against `own`.
            own: Normal scores of the responses themselves, shape (n, ...).
        """
        from scipy.special import ndtr

        scores = np.sqrt(self.alike) * hard + np.sqrt(1 - self.alike) * own
        return whole(self.lengths.quantile(ndtr(scores).ravel())).reshape(own.shape)

    def on(self, gpus: int) -> Setting:
        """Return the same setting on `gpus` GPUs, with only replicas of the configured size."""
        return replace(self, timings=((self.parallel, dict(self.timings)[self.parallel]),), gpus=gpus)

    @property
    def replicas(self) -> list[ReplicaTiming]:
        """Timing of each replica as the job is configured."""
        return [dict(self.timings)[self.parallel]] * (self.gpus // self.parallel)


def setting_of(job: Job) -> Setting | None:
    """Return the setting of a scenario job's rollouts, or None if the job has no model.

    Without a trace, a batch that 8 divides consists of prompts with 8 responses each, and any other batch of prompts with one each.
    """
    if job.timing is None or job.lengths is None:
        return None
    from rollmux_env.timing.jobs import lengths_of, mean_reward_s_of, replica_of

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
        reward_s=mean_reward_s_of(described),
        reward_nodes=described.reward_nodes or 1,
        reward_quantiles=described.reward_quantiles,
    )
