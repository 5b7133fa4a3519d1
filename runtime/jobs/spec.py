"""Job files, version 1: the RL post-training jobs that `rollmux run` executes, as checked and frozen models.

A file is YAML (1.2 rules) or JSON; docs/reference/jobs.md explains every key. A job is of the built-in kind, GRPO on a model and a
task, or of a class of the user's own. `load_jobs` merges `defaults` under every job, as in scenario files.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import AtLeastOne, Count, FileModel, Index, JobId, NodeCount, NonNegative, Positive, Version, by_name, whole
from rollmux_env.reading import merge_defaults, only_in_defaults, read_mapping
from rollmux_env.scenario import Cluster
from rollmux_env.validation_errors import describe, field_error, field_of, format_error, not_one_of, one_line, problems
from runtime.engines.interface import COLDEST, HOTTEST
from runtime.jobs.named import located
from runtime.jobs.verifiers import VERIFIERS
from runtime.sync.plan import Topology

TINY = "tiny"
_RATE_OF_TINY, _RATE = 1e-3, 1e-6  # learning rates; the second as in TRL's GRPO
_OF_A_TASK = ("task", "model", "algorithm", "rewards", "evaluation", "sync")  # keys of the built-in kind of job alone
_OF_A_CLASS = ("class", "options")
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
        from runtime.jobs.tasks import BUILT_IN

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


class EngineOptions(FileModel):
    """Settings of vLLM; what is not set is RollMux's own choice."""

    gpu_memory: Annotated[float, Field(ge=0.05, le=0.95)] | None = None
    """Share of each GPU that the awake engine takes, its weights included; else 0.8, or what sleeping processes leave free."""
    enforce_eager: bool | None = None
    """On GPUs: no CUDA graphs, which take memory and time at the start and make decoding quicker."""
    max_num_seqs: Annotated[Count, Field(le=4096)] | None = None
    """Sequences that are sampled at a time; else 256."""
    max_model_len: Count | None = None
    """Tokens of the longest prompt and response together that vLLM makes room for; else what the job's algorithm needs."""

    def values_set(self) -> dict[str, Any]:
        """Those that are set, by name."""
        return self.model_dump(exclude_none=True)


class RolloutSpec(FileModel):
    """What a job asks of the rollout pool."""

    nodes: NodeCount = 1
    """Rollout nodes."""
    engine: Literal["auto", "vllm", "torch"] = "auto"
    """What samples; auto is vLLM where it is installed and works."""
    tensor_parallel: Count = 1
    """GPUs of one copy of the model."""
    engine_options: EngineOptions = EngineOptions()
    """Of vLLM."""
    policy: Literal["plain", "tail-batching"] = "plain"
    """Built-in kind: plain waits for every response; tail-batching launches more than it needs and puts off what takes long."""
    eta: Annotated[float, Field(gt=1, le=2)] = 1.25
    """tail-batching: how many times as many prompts and responses a short round launches."""

    @model_validator(mode="after")
    def _eta_goes_with_tail_batching(self) -> RolloutSpec:
        if self.policy == "plain" and "eta" in self.model_fields_set:
            raise field_error("goes with the policy tail-batching", "eta")
        return self

    @model_validator(mode="after")
    def _options_go_with_vllm(self) -> RolloutSpec:
        if self.engine == "torch":
            for field in self.engine_options.values_set():
                raise field_error("is an option of vLLM; the engine is torch", "engine_options", field)
        return self


class TrainingSpec(FileModel):
    """What a job asks of the training pool."""

    nodes: NodeCount = 1
    """Training nodes; in a larger group it trains on all of the group's."""
    cpu_offload: bool = False
    """Built-in kind: weights, gradients and Adam's moments stay in host memory, where Adam steps; on CPU nodes they always do."""


def _limit(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    if number or value in ("adaptive", "none"):
        return value
    raise ValueError(f"must be seconds above 0, 'adaptive' or 'none', not {describe(value)}")


class RewardsSpec(FileModel):
    """How rewards are computed, beside each engine: in processes of their own, unless they are built in and cheap."""

    timeout: Annotated[float | Literal["adaptive", "none"], BeforeValidator(_limit)] = 60.0
    """Seconds that one may take before it is stopped and counts as 0; adaptive: RollPacker's timeout; none: as long as it likes."""
    processes: Count = 1
    """Rewards that are computed at once, beside each engine."""
    correct: float = 1.0
    """adaptive: a response is correct that earns so much; how long its reward took is what the timeout goes by."""

    @model_validator(mode="after")
    def _goes_with_a_timeout(self) -> RewardsSpec:
        if self.timeout != "adaptive" and "correct" in self.model_fields_set:
            raise field_error("goes with the timeout adaptive", "correct")
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


def _no_checkpoints(value: Any) -> Any:
    return {"every": "none"} if value is None or value == "none" else value


def _interval(value: Any) -> Any:
    value = whole(value)
    if value in ("auto", "none") or (type(value) is int and 1 <= value <= 2**31):
        return value
    raise ValueError(f"must be a whole number of iterations from 1, auto or none, not {describe(value)}")


class CheckpointSpec(FileModel):
    """When a job's state is written to the disk, and how much of it stays there."""

    every: Annotated[Annotated[int, Field(ge=1, le=2**31)] | Literal["auto", "none"], BeforeValidator(_interval)] = "auto"
    """After so many iterations; auto: so that writing costs a twentieth of an iteration in the mean; none: never."""
    keep: Count = 2
    """The last ones that stay on the disk."""

    @property
    def is_wanted(self) -> bool:
        """Whether there are any."""
        return self.every != "none"


def _folder_name(value: str) -> str:
    if value in (".", ".."):
        raise ValueError(f"is the name of folders of the job, and cannot be {describe(value)}")
    return value


class JobSpec(FileModel):
    """A job of a job file."""

    id: Annotated[JobId, AfterValidator(_folder_name)]
    """Its name, unique in the file; quote one that reads as a number or a boolean."""
    arrival_s: NonNegative = 0.0
    """When it arrives, seconds from the start of the run."""
    iterations: Count
    """It is done after so many."""
    slo: AtLeastOne
    """Longest tolerated iteration time, as a multiple of the job's own solo time."""
    rollout: RolloutSpec = RolloutSpec()
    """What it asks of the rollout pool."""
    training: TrainingSpec = TrainingSpec()
    """What it asks of the training pool."""
    movable: bool = True
    """Whether a policy may move it to other nodes while it runs; one with workers and without checkpoints never is."""
    checkpoint: Annotated[CheckpointSpec, BeforeValidator(_no_checkpoints)] = CheckpointSpec()
    """When its state is written to the disk; `none` is short for `every: none`."""
    seed: Index = 0
    """Of the model `tiny`, of the data's order and of sampling."""
    model: Annotated[ModelSpec, BeforeValidator(by_name)] = ModelSpec()
    """Built-in kind: the language model."""
    task: Annotated[TaskSpec, BeforeValidator(by_name)] | None = None
    """Built-in kind: prompts and rewards."""
    algorithm: Algorithm = Algorithm()
    """Built-in kind: settings of GRPO."""
    rewards: RewardsSpec = RewardsSpec()
    """Built-in kind: how long a reward may take."""
    evaluation: EvaluationSpec | None = None
    """Built-in kind: how good the model is on held-out lines."""
    sync: SyncSpec = SyncSpec()
    """Built-in kind: the way of new weights."""
    job_class: Named | None = Field(default=None, alias="class")
    """A job of one's own instead: module:Class, whose methods are marked as phases."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of that class."""
    folder: str = ""
    """Where relative files, and modules that are not installed, are looked for; the job file's own folder."""

    @model_validator(mode="after")
    def _one_kind(self) -> JobSpec:
        if (self.task is None) == (self.job_class is None):
            raise field_error(f"needs exactly one of task and class; {'neither' if self.task is None else 'both'} is given")
        longest, needed = self.rollout.engine_options.max_model_len, self.algorithm.max_prompt_tokens + self.algorithm.max_tokens
        if longest is not None and longest < needed and self.job_class is None:
            problem = f"is {longest}; max_prompt_tokens and max_tokens of the algorithm are {needed} together"
            raise field_error(problem, "rollout", "engine_options", "max_model_len")
        if self.job_class is not None and self.rollout.policy != "plain":
            raise field_error("is a key of jobs with a task", "rollout", "policy")
        if self.job_class is not None and self.training.cpu_offload:
            raise field_error("is a key of jobs with a task", "training", "cpu_offload")
        if self.evaluation is not None and self.task is not None and self.task.name != "jsonl":
            raise field_error(f"goes with the task jsonl, not with {describe(self.task.name)}", "evaluation")
        for field in ("model", "algorithm", "rewards", "evaluation", "sync"):
            if self.job_class is not None and field in self.model_fields_set:
                raise field_error("is a key of jobs with a task; a class gets its settings by options", field)
        if self.job_class is None and self.options:
            raise field_error("go with class; a task of one's own takes task.options", "options")
        return self

    @property
    def settings(self) -> Algorithm:
        """`algorithm`, with the learning rate that its model has by default."""
        usual = _RATE_OF_TINY if self.model.name == TINY else _RATE
        return self.algorithm.model_copy(update={"learning_rate": self.algorithm.learning_rate or usual})

    def path(self, name: str) -> Path:
        """A file that the job names, seen from `folder`."""
        return located(self.folder, name)


class Jobs(FileModel):
    """A job file."""

    version: Version
    """Version of this file format: 1."""
    cluster: Cluster | None = None
    """The two pools, as in scenario files; without it what the runtime finds."""
    jobs: Annotated[tuple[JobSpec, ...], Field(strict=False, min_length=1)]
    """The jobs."""

    @model_validator(mode="after")
    def _consistent(self) -> Jobs:
        first: dict[str, int] = {}
        pools = self.cluster.pools if self.cluster else {}
        for k, job in enumerate(self.jobs):
            if job.id in first:
                raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
            first[job.id] = k
            for name, pool in pools.items():
                most, nodes = pool.max_nodes, getattr(job, name).nodes
                if most is not None and nodes > most:
                    raise field_error(f"asks for {nodes} nodes; the {name} pool has at most {most}", "jobs", k, name, "nodes")
        return self


def load_jobs(path: str | Path) -> Jobs:
    """Read a job file.

    Args:
        path: a `.json` file is read as JSON, any other as YAML 1.2.

    Raises:
        InputError: it cannot be read or is no job file, or a file or model that a job names is missing; one line.
    """
    from runtime.jobs.checks import check_names

    jobs = parse_jobs(read_mapping(Path(path)), str(path), Path(path).resolve().parent)
    for k, job in enumerate(jobs.jobs):
        check_names(job, f"{one_line(str(path), 4096)}: jobs[{k}]")
    return jobs


def load_cluster(path: str | Path) -> Cluster:
    """The `cluster` of a file, which may be a job file or hold nothing else.

    Raises:
        InputError: it cannot be read, or has none; one line.
    """
    name, data = one_line(str(path), 4096), read_mapping(Path(path))
    if "cluster" not in data:
        raise InputError(f"{name}: cluster: is missing")
    try:
        return Cluster.model_validate(data["cluster"])
    except ValidationError as error:
        raise InputError(f"{name}: {one_line(format_error(problems(error)[0], Cluster, 'cluster'))}") from None


def parse_jobs(data: dict[str, Any], source: str, folder: Path) -> Jobs:
    """Build jobs from the mapping that a file holds.

    Args:
        data: the file's mapping; `defaults`, if there, is merged under every job.
        source: the name that error messages begin with.
        folder: of jobs that name none.

    Raises:
        InputError: one line with the source, the path of the field and what is wrong with its value.
    """
    try:
        jobs = Jobs.model_validate(_merged(data))
        here = [job.model_copy(update={"folder": os.path.abspath(located(folder, job.folder))}) for job in jobs.jobs]
        return jobs.model_copy(update={"jobs": tuple(here)})
    except ValidationError as error:
        first = problems(error)[0]
        problem = format_error(first, Jobs) + (" (set by defaults)" if only_in_defaults(data, field_of(first)) else "")
    except InputError as error:
        problem = str(error)
    raise InputError(f"{one_line(source, 4096)}: {one_line(problem)}")


def _merged(data: dict[str, Any]) -> dict[str, Any]:
    """The file's mapping with `defaults` under every job, but for what belongs to the other kind of job."""
    defaults, jobs = data.get("defaults"), data.get("jobs")
    if not isinstance(defaults, dict) or not isinstance(jobs, list):
        return merge_defaults(data)
    merged = []
    for job in jobs:
        others = _OF_A_CLASS if isinstance(job, dict) and "task" in job else _OF_A_TASK
        both = not isinstance(job, dict) or ("task" in job) == ("class" in job)
        fitting = {key: value for key, value in defaults.items() if both or key not in others}
        merged += merge_defaults({"defaults": fitting, "jobs": [job]})["jobs"]
    return {key: value for key, value in data.items() if key != "defaults"} | {"jobs": merged}
