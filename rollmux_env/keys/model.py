"""Keys of a job's model and responses in scenario files, and of the predicted parts of its phases.

`rollmux_env.timing.filling` reads `Model` and `Lengths` and fills in `Timing`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from rollmux_env.fields import Count, FileModel, Index, NodeCount, NonNegative, Positive, Unwritten, counted_keys
from rollmux_env.validation_errors import field_error


class Model(FileModel):
    """The language model of a job, from whose sizes its phases are predicted. Its name alone is enough."""

    name: Annotated[str, Field(min_length=1)]
    """Size, such as `7B`, mixture, such as `30B-A3B`, or path of a Hugging Face config.json or its folder."""
    tensor_parallel: NodeCount = 1
    """Number of GPUs of one replica of the model; it divides those of the rollout nodes."""
    sizes: Unwritten[Annotated[tuple[NodeCount, ...], Field(strict=False)]] = ()
    """Other numbers of GPUs per replica, at most those of a node, that a rollout policy may choose."""
    measured: Unwritten[Annotated[dict[NodeCount, str], BeforeValidator(counted_keys("GPUs"))]] = Field(default={})
    """Files of `rollmux profile` of an engine of each size: {number of GPUs: file}. Sizes without one are predicted."""

    @model_validator(mode="after")
    def _other_sizes(self) -> Model:
        if len({self.tensor_parallel, *self.sizes}) <= len(self.sizes):
            raise field_error(f"must be different, and others than tensor_parallel, {self.tensor_parallel}", "sizes")
        if others := [size for size in self.measured if size not in (self.tensor_parallel, *self.sizes)]:
            raise field_error(f"{others[0]} GPUs are neither tensor_parallel nor in sizes", "measured")
        return self


Quantile = Annotated[tuple[NonNegative, Positive], Field(strict=False)]
Observed = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
KINDS_OF_LENGTHS = ("median", "quantiles", "published", "file", "trace", "observed")


class Lengths(FileModel):
    """The size of a rollout and the lengths of its responses. Without a distribution all are as long as the cap."""

    batch: Annotated[Count, Field(le=2**20)] = 256
    """Number of responses in an iteration."""
    prompt_tokens: Annotated[Index, Field(le=2**24)] = 512
    """Number of tokens that are read before each turn."""
    cap: Annotated[Count, Field(le=2**24)]
    """Largest number of tokens of a turn's response: the worst case."""
    turns: Annotated[Count, Field(le=2**10)] = 1
    """Number of turns of a response."""
    environment_s: NonNegative = 0.0
    """Time that the environment takes between two turns, seconds."""
    reward_s: Unwritten[Positive | None] = None
    """Time of a response's reward on a reward node, seconds; goes with `reward_nodes`."""
    reward_quantiles: Unwritten[Annotated[tuple[Quantile, ...], Field(strict=False)]] = ()
    """Times of rewards that differ, in place of `reward_s`: rising pairs of a share of the rewards, up to 1, and seconds."""
    reward_nodes: Unwritten[Annotated[Count | None, Field(le=2**20)]] = None
    """Number of the job's own reward nodes, with one reward at a time each."""
    median: Positive | None = None
    """Lognormal, truncated at the cap: median, tokens; goes with `sigma`."""
    sigma: NonNegative | None = None
    """Lognormal: standard deviation of the logarithm."""
    quantiles: Annotated[tuple[Quantile, ...], Field(strict=False)] | None = None
    """Piecewise linear from 1 token to the cap: rising pairs of a share of the responses and tokens."""
    published: str | None = None
    """Distribution of the RollMux paper: `7B-4k`, `7B-8k` or `14B-8k`."""
    file: str | None = None
    """Empirical: text file with one length per line, replaced by its quantiles."""
    trace: str | None = None
    """File or folder of trajectories, replaced by their lengths and replayed in order."""
    observed: Annotated[tuple[Observed, ...], Field(strict=False, min_length=1)] | None = None
    """Lengths of the responses to each prompt, tokens, replayed in order."""

    @model_validator(mode="after")
    def _one_kind(self) -> Lengths:
        kinds = [name for name in KINDS_OF_LENGTHS if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise field_error(f"takes at most one of {', '.join(KINDS_OF_LENGTHS)}; {' and '.join(kinds)} are given")
        if self.observed is not None:
            each = len(self.observed[0])
            if any(len(group) != each for group in self.observed):
                raise field_error("must have as many responses to each prompt", "observed")
            if self.batch % each:
                raise field_error(f"must be a multiple of the {each} responses to each prompt, not {self.batch}", "batch")
            if (longest := max(map(max, self.observed))) > self.cap:
                raise field_error(f"a response of {longest} tokens passes the cap of {self.cap}", "observed")
            if self.turns > 1:
                raise field_error("must be 1: all turns of a trajectory are one response", "turns")
        if (self.median is None) != (self.sigma is None):
            raise field_error("median and sigma go together; one of them is given")
        return self

    @model_validator(mode="after")
    def _rewards(self) -> Lengths:
        if self.reward_s is not None and self.reward_quantiles:
            raise field_error("takes reward_s or reward_quantiles, not both")
        name = "reward_quantiles" if self.reward_quantiles else "reward_s"
        if (getattr(self, name) in (None, ())) != (self.reward_nodes is None):
            raise field_error(f"{name} and reward_nodes go together; one of them is given")
        shares, seconds = [[pair[k] for pair in self.reward_quantiles] for k in (0, 1)]
        if any(a >= b for a, b in pairwise([0.0, *shares])) or any(a > b for a, b in pairwise(seconds)):
            raise field_error("must rise in share, from above 0, and in seconds", "reward_quantiles")
        if shares and shares[-1] != 1:
            raise field_error(f"must end with a share of 1, not {shares[-1]:g}", "reward_quantiles")
        return self

    @property
    def worst_rewards_s(self) -> float:
        """Seconds from the end of the last response to the last reward if all responses end together."""
        longest_s = self.reward_quantiles[-1][1] if self.reward_quantiles else self.reward_s or 0.0
        return self.reward_turns * longest_s

    @property
    def reward_turns(self) -> int:
        """Number of rewards that a reward node computes, one after the other."""
        return -(-self.batch // (self.reward_nodes or 1))


class ReplicaSeconds(FileModel):
    """Seconds of a replica's steps, and the size of its KV cache."""

    step_s: NonNegative
    """Fixed seconds of a decode step."""
    weights_s: NonNegative
    """Seconds to read the weights, once per step."""
    kv_s_per_token: NonNegative
    """Seconds to read a cached token, in each step."""
    sequence_s: NonNegative
    """Seconds of arithmetic of one sequence's token in a decode step."""
    prefill_s: NonNegative
    """Fixed seconds of a prefill."""
    prefill_s_per_token: NonNegative
    """Seconds to prefill a token."""
    prefill_s_per_token2: NonNegative
    """Seconds of attention in a prefill for each pair of a sequence's tokens."""
    kv_tokens: Count
    """Capacity of a replica's KV cache, tokens."""
    message_s: Unwritten[NonNegative] = 0.0
    """Seconds of messages of one sequence's token between the GPUs of a replica, in a decode step."""
    experts_s: Unwritten[NonNegative] = 0.0
    """Seconds to read all experts of a mixture of experts; `weights_s` covers the weights that every step reads."""
    expert_share: Unwritten[Annotated[float, Field(ge=0, le=1)]] = 0.0
    """Share of the experts of a mixture to which one token is routed."""


class ReplicaSize(ReplicaSeconds):
    """A replica of one size."""

    tensor_parallel: NodeCount
    """Number of GPUs of a replica."""


class Timing(ReplicaSeconds):
    """The seconds of each part of a job's phases on the cluster's GPUs, filled in from `model` when the file is read."""

    replicas: Count
    """Number of replicas of the model that share a rollout."""
    update_s: NonNegative
    """Fixed seconds of a training phase on training.nodes."""
    training_s_per_token: NonNegative
    """Seconds to train a token on training.nodes."""
    training_s_per_token2: NonNegative
    """Seconds of attention on training.nodes, to be multiplied by the square of a sequence's tokens."""
    training_copies: Annotated[Count, Field(exclude_if=lambda copies: copies == 1)] = 1
    """Number of data-parallel copies of the model in training; one copy has to process the longest response."""
    training_padded: Annotated[bool, Field(exclude_if=bool)] = True
    """Whether responses are padded to the longest of their iteration before they are trained."""
    sizes: Unwritten[Annotated[tuple[ReplicaSize, ...], Field(strict=False)]] = ()
    """Replicas of every size that a rollout policy may choose, the configured one first; empty if there is only one."""
