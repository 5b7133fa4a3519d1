"""Keys of job files that belong to the built-in kind of job: GRPO on a model and a task. docs/reference/jobs.md explains them."""

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
    """The language model: `tiny`, made on the spot, or a Hugging Face directory. Its sizes are those of `tiny` alone."""

    name: Annotated[str, Field(min_length=1)] = TINY
    """`tiny`, or the folder of a model."""
    hidden_size: Annotated[Count, Field(ge=64, le=1024)] = 128
    """Width of `tiny`; a multiple of 32."""
    layers: Annotated[Count, Field(le=64)] = 3
    """Layers of `tiny`."""

    @model_validator(mode="after")
    def _sizes(self) -> ModelSpec:
        if self.hidden_size % 32:
            raise field_error(f"must be a multiple of 32, not {self.hidden_size}", "hidden_size")
        for field in ("hidden_size", "layers"):
            if self.name != TINY and field in self.model_fields_set:
                raise field_error(f"is a size of the model tiny; {describe(self.name)} has its own", field)
        return self


class TaskSpec(FileModel):
    """Where prompts come from, and what a response is worth."""

    name: Annotated[str, Field(min_length=1)]
    """A built-in task, `jsonl`, or module:Class of one's own."""
    file: str | None = None
    """`jsonl`: the file, an object a line."""
    prompt: Annotated[str, Field(min_length=1)] = "prompt"
    """`jsonl`: the field of a line that holds the prompt: text, or a list of messages with `role` and `content`."""
    answer: Annotated[str, Field(min_length=1)] = "answer"
    """`jsonl`: the field that holds the answer."""
    chat: bool = False
    """`jsonl`: a prompt that is text is the message of a user, for the model's chat template; messages are in any case."""
    system: str | None = None
    """`jsonl`: a system message in front of the prompt, which makes it a message too."""
    reward: Annotated[str, AfterValidator(_verifier)] | None = None
    """`jsonl`: `number`, or module:function(line, response) -> number; else a response is right that is the line's answer."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of a task of one's own."""

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
        """Whether its rewards take microseconds of code that we know; others have processes of their own."""
        return self.name in BUILT_IN or (self.name == "jsonl" and (self.reward is None or self.reward in CHEAP))


class Algorithm(FileModel):
    """Settings of GRPO."""

    prompts_per_iteration: Count = 8
    """Prompts of an iteration."""
    group_size: Annotated[Count, Field(ge=2)] = 8
    """Responses to each prompt; their rewards are compared with each other."""
    max_prompt_tokens: Count = 256
    """Longest prompt; a longer one is an error."""
    max_tokens: Count = 64
    """Longest response, its end token included."""
    temperature: Annotated[float, Field(ge=COLDEST, le=HOTTEST)] = 1.0
    """Of sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The smallest set of tokens of so much probability is sampled from."""
    learning_rate: Positive | None = None
    """Of AdamW; else 1e-3 for the model `tiny`, and 1e-6 for others."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How it goes down to 0 until the last iteration; `constant`: it does not."""
    warmup_steps: Index = 0
    """Optimizer steps in which it goes up from 0."""
    weight_decay: NonNegative = 0.0
    """Of AdamW."""
    minibatches: Count = 2
    """Optimizer steps of an iteration, each on its share of the prompts."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far from 1 the ratio of new to old probabilities counts."""
    kl: NonNegative = 0.0
    """Weight of the divergence from the model that the job began with; 0 keeps no copy of it."""
    importance_cap: AtLeastOne = 2.0
    """Largest weight that corrects for the sampler's probabilities being others than the trainer's."""
    max_grad_norm: Positive = 1.0
    """Longer gradients are cut to this."""
    micro_batch_tokens: Count = 16384
    """Most tokens in one forward pass of a rank, prompts and padding included; gradients of several passes are accumulated."""

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
    """How rewards are computed: in processes of their own, beside each engine or apart, unless they are built in and cheap."""

    timeout: Annotated[float | Literal["adaptive", "none"], BeforeValidator(_limit)] = 60.0
    """Seconds that one may take before it is stopped and counts as 0; adaptive: RollPacker's timeout; none: as long as it likes."""
    processes: Count = 1
    """Rewards that are computed at once, beside each engine."""
    workers: Annotated[Count | None, Field(le=1024, exclude_if=lambda value: value is None)] = None
    """Workers of the job that compute them for all engines, one at a time each; then no engine waits for a reward."""
    correct: float = 1.0
    """adaptive: a response is correct that earns so much; how long its reward took is what the timeout goes by."""

    @model_validator(mode="after")
    def _goes_with_a_timeout(self) -> RewardsSpec:
        if self.timeout != "adaptive" and "correct" in self.model_fields_set:
            raise field_error("goes with the timeout adaptive", "correct")
        if self.workers is not None and "processes" in self.model_fields_set:
            raise field_error("are beside each engine; with workers there are none", "processes")
        return self


class EvaluationSpec(FileModel):
    """Greedy responses to held-out prompts, one each, now and then: their mean reward says how good the model is."""

    file: str
    """Lines with the same fields as those of the task's file, which the same reward is for."""
    every: Count = 10
    """Iterations from one evaluation to the next; the first iteration and the last one have one in any case."""
    prompts: Count = 100
    """The first so many lines of the file, of those that are not too long; all where it has fewer."""

    def is_due(self, iteration: int, iterations: int) -> bool:
        """Whether an iteration, from 0, of so many has one."""
        return iteration % self.every == 0 or iteration == iterations - 1


class SyncSpec(FileModel):
    """How new weights get from the training nodes to the rollout nodes."""

    topology: Topology = "aware"
    """`aware`: one copy crosses to the rollout pool, in parallel streams; `flat`: one for every rollout node, all from rank 0."""
