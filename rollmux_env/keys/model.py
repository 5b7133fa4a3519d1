"""Keys of the model and the responses of a job in scenario files, and what they amount to on the cluster's GPUs.

`rollmux_env.timing.filling` reads `Model` and `Lengths` and fills in `Timing`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rollmux_env.fields import Count, FileModel, Index, NodeCount, NonNegative, Positive, Unwritten
from rollmux_env.validation_errors import field_error


class Model(FileModel):
    """The language model of a job, from whose shape its phases are predicted; its name alone is enough."""

    name: Annotated[str, Field(min_length=1)]
    """A size such as 7B, a mixture such as 30B-A3B, or the path of a Hugging Face config.json, relative to the scenario file."""
    tensor_parallel: NodeCount = 1
    """GPUs of one copy of the model in a rollout."""
    sizes: Unwritten[Annotated[tuple[NodeCount, ...], Field(strict=False)]] = ()
    """Other GPUs of a copy that a rollout policy may choose: engines of all sizes are built beforehand."""

    @model_validator(mode="after")
    def _other_sizes(self) -> Model:
        if len({self.tensor_parallel, *self.sizes}) <= len(self.sizes):
            raise field_error(f"must be different, and others than tensor_parallel, {self.tensor_parallel}", "sizes")
        return self


Quantile = Annotated[tuple[NonNegative, Positive], Field(strict=False)]
Observed = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
KINDS_OF_LENGTHS = ("median", "quantiles", "published", "file", "trace", "observed")


class Lengths(FileModel):
    """The size of a rollout and the lengths of its responses; without a distribution all are as long as the cap."""

    batch: Annotated[Count, Field(le=2**20)] = 256
    """Responses of an iteration."""
    prompt_tokens: Annotated[Index, Field(le=2**24)] = 512
    """Tokens read before each turn."""
    cap: Annotated[Count, Field(le=2**24)]
    """Most tokens of a turn's response: the worst case."""
    turns: Annotated[Count, Field(le=2**10)] = 1
    """Turns of a response."""
    environment_s: NonNegative = 0.0
    """Seconds that the environment takes between two turns."""
    reward_s: Unwritten[Positive | None] = None
    """Seconds of a response's reward on a reward node; null: none that counts."""
    reward_nodes: Unwritten[Annotated[Count | None, Field(le=2**20)]] = None
    """Reward nodes of the job's own: rewards that are computed at once."""
    median: Positive | None = None
    """Lognormal: median, tokens; goes with sigma."""
    sigma: NonNegative | None = None
    """Lognormal: standard deviation of the logarithm."""
    quantiles: Annotated[tuple[Quantile, ...], Field(strict=False)] | None = None
    """Piecewise: pairs of a share of the responses and the tokens that they do not pass, both rising."""
    published: str | None = None
    """A published distribution by the job type of its paper: 7B-4k, 7B-8k or 14B-8k."""
    file: str | None = None
    """Empirical: a text file with a length a line, relative to the scenario file; its quantiles take its place."""
    trace: str | None = None
    """A file or folder of trajectories, relative to the scenario file, that are replayed in their order; they take its place."""
    observed: Annotated[tuple[Observed, ...], Field(strict=False, min_length=1)] | None = None
    """Tokens of the responses to each prompt, which are replayed in this order, over and over."""

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
        if (self.reward_s is None) != (self.reward_nodes is None):
            raise field_error("reward_s and reward_nodes go together; one of them is given")
        if (self.median is None) != (self.sigma is None):
            raise field_error("median and sigma go together; one of them is given")
        return self

    @property
    def worst_rewards_s(self) -> float:
        """Seconds between the last response's end and the last reward, where all responses end at once."""
        return -(-self.batch // (self.reward_nodes or 1)) * (self.reward_s or 0.0)


class ReplicaSeconds(FileModel):
    """What a replica's steps take, and the room in its KV cache."""

    step_s: NonNegative
    """Fixed seconds of a decode step."""
    weights_s: NonNegative
    """Seconds to read the weights, once a step."""
    kv_s_per_token: NonNegative
    """Seconds to read a cached token, in each step."""
    sequence_s: NonNegative
    """Seconds of arithmetic of a sequence's token."""
    prefill_s: NonNegative
    """Fixed seconds to read a prompt."""
    prefill_s_per_token: NonNegative
    """Seconds to read a token of a prompt."""
    prefill_s_per_token2: NonNegative
    """Seconds of attention for each pair of a prompt's tokens."""
    kv_tokens: Count
    """Tokens that a replica's KV cache holds."""
    experts_s: Unwritten[NonNegative] = 0.0
    """Of a mixture of experts: seconds to read all of them; `weights_s` is what every step reads."""
    expert_share: Unwritten[Annotated[float, Field(ge=0, le=1)]] = 0.0
    """Of a mixture of experts: the share of them that one token is sent to."""


class ReplicaSize(ReplicaSeconds):
    """A replica of one size."""

    tensor_parallel: NodeCount
    """GPUs of a replica."""


class Timing(ReplicaSeconds):
    """The seconds of each part of a job's phases on the cluster's GPUs, filled in from `model` when the file is read."""

    replicas: Count
    """Copies of the model that share a rollout."""
    update_s: NonNegative
    """Fixed seconds of a training phase on training.nodes."""
    training_s_per_token: NonNegative
    """Seconds to train a token there."""
    training_s_per_token2: NonNegative
    """Seconds of attention there, for the squared length of a sequence."""
    training_copies: Annotated[Count, Field(exclude_if=lambda copies: copies == 1)] = 1
    """Copies of the model there; the longest response is one copy's alone."""
    training_padded: Annotated[bool, Field(exclude_if=bool)] = True
    """Whether responses are padded to the longest of their iteration before they are trained."""
    sizes: Unwritten[Annotated[tuple[ReplicaSize, ...], Field(strict=False)]] = ()
    """Replicas of every size that a rollout policy may choose, the configured one first; nothing where there is one."""
