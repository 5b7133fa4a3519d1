"""Keys of job files for built-in jobs: GRPO on a model and a task. docs/reference/jobs.md explains them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rollmux_env.fields import AtLeastOne, Count, FileModel, Index, NonNegative, Positive
from rollmux_env.validation_errors import describe, field_error, not_one_of
from runtime.engines.interface import COLDEST, HOTTEST
from runtime.jobs.tasks import BUILT_IN
from runtime.jobs.verifiers import CHEAP, VERIFIERS
from runtime.sync.plan import Topology

TINY = "tiny"
_NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _named(value: str) -> str:
    if not _NAMED.fullmatch(value):
        raise ValueError(f"must be module:Name, not {describe(value)}")
    return value


Named = Annotated[str, AfterValidator(_named)]
"""A class or function as module:Name."""


def _verifier(value: str) -> str:
    return value if value in VERIFIERS else _named(value)


class ModelSpec(FileModel):
    """The language model: `tiny`, which is generated, or a Hugging Face directory. Only `tiny` has sizes to choose."""

    name: Annotated[str, Field(min_length=1)] = TINY
    """`tiny`, or the folder of a Hugging Face model; `model: NAME` is short."""
    hidden_size: Annotated[Count, Field(ge=64, le=1024)] = 128
    """Width of `tiny`; a multiple of 32."""
    layers: Annotated[Count, Field(le=64)] = 3
    """Number of layers of `tiny`."""

    @model_validator(mode="after")
    def _sizes(self) -> ModelSpec:
        if self.hidden_size % 32:
            raise field_error(f"must be a multiple of 32, not {self.hidden_size}", "hidden_size")
        for field in ("hidden_size", "layers"):
            if self.name != TINY and field in self.model_fields_set:
                raise field_error(f"is a size of the model tiny; {describe(self.name)} has its own", field)
        return self


class TaskSpec(FileModel):
    """The source of prompts and rewards."""

    name: Annotated[str, Field(min_length=1)]
    """Built-in task, `jsonl`, or module:Class of the user; `task: NAME` is short."""
    file: str | None = None
    """For `jsonl`: path of the file."""
    prompt: Annotated[str, Field(min_length=1)] = "prompt"
    """For `jsonl`: field of the prompt: text, or messages with `role` and `content`."""
    answer: Annotated[str, Field(min_length=1)] = "answer"
    """For `jsonl`: field of the answer."""
    chat: bool = False
    """For `jsonl`: whether a text prompt becomes a user's message of the chat template."""
    system: str | None = None
    """For `jsonl`: system message before the prompt."""
    reward: Annotated[str, AfterValidator(_verifier)] | None = None
    """For `jsonl`: `number`, `math`, or module:function(line, response); by default 1 for the line's answer."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of a user's class."""

    @model_validator(mode="after")
    def _fits(self) -> TaskSpec:
        if ":" in self.name:
            _named(self.name)
        elif self.name != "jsonl" and self.name not in BUILT_IN:
            raise field_error(not_one_of(self.name, (*BUILT_IN, "jsonl"), ", or module:Class of your own"), "name")
        if self.name == "jsonl" and self.file is None:
            raise field_error("is missing; the task jsonl reads one", "file")
        for field in ("file", "prompt", "answer", "chat", "system", "reward"):
            if self.name != "jsonl" and getattr(self, field) != type(self).model_fields[field].default:
                raise field_error(f"goes with the task jsonl, not with {describe(self.name)}", field)
        if ":" not in self.name and self.options:
            raise field_error(f"go with a task of one's own, not with {describe(self.name)}", "options")
        return self

    @property
    def is_cheap(self) -> bool:
        """Whether rewards take microseconds of known code; others are computed in separate processes."""
        return self.name in BUILT_IN or (self.name == "jsonl" and (self.reward is None or self.reward in CHEAP))


class Algorithm(FileModel):
    """Settings of GRPO."""

    prompts_per_iteration: Count = 8
    """Number of prompts per iteration."""
    group_size: Annotated[Count, Field(ge=2)] = 8
    """Number of responses per prompt."""
    max_prompt_tokens: Count = 256
    """Longest prompt, tokens. Longer ones of `jsonl` are left out, others are an error."""
    max_tokens: Count = 64
    """Longest response, tokens, including its end token."""
    temperature: Annotated[float, Field(ge=COLDEST, le=HOTTEST)] = 1.0
    """Temperature of sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability of the smallest set of tokens that is sampled from."""
    learning_rate: Positive | None = None
    """Learning rate of AdamW; by default 1e-3 for `tiny` and 1e-6 for other models."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate to 0 at the last iteration; `constant` means none."""
    warmup_steps: Index = 0
    """Number of optimizer steps in which the learning rate rises from 0."""
    weight_decay: NonNegative = 0.0
    """Weight decay of AdamW."""
    minibatches: Count = 2
    """Number of optimizer steps per iteration; a divisor of `prompts_per_iteration`."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Largest deviation from 1 of the ratio of new to old probabilities."""
    kl: NonNegative = 0.0
    """Weight of the KL divergence from the initial model."""
    importance_cap: AtLeastOne = 2.0
    """Largest importance weight."""
    max_grad_norm: Positive = 1.0
    """Norm to which larger gradients are clipped."""
    micro_batch_tokens: Count = 16384
    """Largest number of tokens in a forward pass of a rank, with prompts and padding."""

    @model_validator(mode="after")
    def _fits(self) -> Algorithm:
        if self.prompts_per_iteration % self.minibatches:
            problem = f"must divide prompts_per_iteration, which is {self.prompts_per_iteration}, not {self.minibatches}"
            raise field_error(problem, "minibatches")
        return self


def _limit(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if number or value in ("adaptive", "none"):
        return value
    raise ValueError(f"must be seconds above 0, 'adaptive' or 'none', not {describe(value)}")


class RewardsSpec(FileModel):
    """Computation of rewards: in separate processes, beside each engine or in workers, unless they are built in and cheap."""

    timeout: Annotated[float | Literal["adaptive", "none"], BeforeValidator(_limit)] = 60.0
    """Seconds after which a reward is stopped and counts as 0; `adaptive` is RollPacker's timeout."""
    processes: Count = 1
    """Number of rewards that are computed at once per engine."""
    workers: Annotated[Count | None, Field(le=1024, exclude_if=lambda value: value is None)] = None
    """Number of workers for the rewards of all engines; null: processes beside each engine."""
    correct: float = 1.0
    """For `adaptive`: smallest reward of a correct response."""

    @model_validator(mode="after")
    def _goes_with_a_timeout(self) -> RewardsSpec:
        if self.timeout != "adaptive" and "correct" in self.model_fields_set:
            raise field_error("goes with the timeout adaptive", "correct")
        if self.workers is not None and "processes" in self.model_fields_set:
            raise field_error("are beside each engine; with workers there are none", "processes")
        return self


class EvaluationSpec(FileModel):
    """Periodic evaluation: the mean reward of one greedy response to each held-out prompt."""

    file: str
    """Path of a file like the task's."""
    every: Count = 10
    """Number of iterations between evaluations; the first and the last always have one."""
    prompts: Count = 100
    """Number of prompts: the first ones that are not too long, or all."""

    def is_due(self, iteration: int, iterations: int) -> bool:
        """Return whether an iteration has an evaluation.

        Args:
            iteration: Number of the iteration, from 0.
            iterations: Number of iterations of the job.
        """
        return iteration % self.every == 0 or iteration == iterations - 1


class SyncSpec(FileModel):
    """The transfer of new weights from the training nodes to the rollout nodes."""

    topology: Topology = "aware"
    """Way of the weights: `aware` sends one copy to the rollout pool, `flat` one to each node."""
