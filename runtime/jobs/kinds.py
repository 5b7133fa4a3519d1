"""The kinds of jobs in a job file, by the key that only one of them has, and the keys that go with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollmux_env.validation_errors import describe, field_error
from runtime.jobs.tasks import is_cheap

if TYPE_CHECKING:
    from runtime.jobs.spec import JobSpec

_ELSEWHERE = ("profile", "sync_s", "eval_s")
KINDS: dict[str, tuple[str, ...]] = {
    "task": ("task", "model", "algorithm", "rewards", "evaluation", "sync", "checkpoint", "staleness", "shapes"),
    "class": ("class", "options", "checkpoint", "shapes"),
    "attach": ("attach", "nodes", "staleness", *_ELSEWHERE),
    "command": ("command", "staleness", *_ELSEWHERE),
}
"""Keys that belong to some kinds alone, by kind."""
_PHASES = ("rollout", "training")


def check_kind(job: JobSpec) -> None:
    """Make sure that a job is of one kind, and has no keys of another.

    Raises:
        ValidationError's own error, with the field.
    """
    flags = {"task": job.task is not None, "class": job.job_class is not None, "attach": job.attach}
    kinds = [kind for kind, is_one in (flags | {"command": job.command is not None}).items() if is_one]
    if len(kinds) != 1:
        which = "none is given" if not kinds else f"{' and '.join(kinds)} are given"
        raise field_error(f"needs exactly one of task, class, attach and command; {which}")
    if job.is_attached:
        _check_attached(job, kinds[0])
    else:
        _check_own(job)


def _check_attached(job: JobSpec, kind: str) -> None:
    """Of a job that asks for its permits over HTTP."""
    for key in ("model", "algorithm", "rewards", "evaluation", "sync", "options", "checkpoint"):
        if key in job.model_fields_set:
            raise field_error(f"does not go with {kind}", key)
    if job.nodes is not None and kind != "attach":
        raise field_error("goes with attach; a command is started where it is placed", "nodes")
    if job.nodes is not None and job.profile is not None:
        raise field_error("does not go with nodes, whose group has to be known at once", "profile")
    for name in _PHASES:
        phase = getattr(job, name)
        usual: Any = type(phase)()
        for key in type(phase).model_fields:
            if key not in ("nodes", "worst_case_s", "host_memory_gb", "device_gb") and getattr(phase, key) != getattr(usual, key):
                raise field_error(f"does not go with {kind}", name, key)
        if job.profile is None and phase.worst_case_s is None:
            raise field_error(f"is missing; a job with {kind} states it, or has a profile", name, "worst_case_s")
        if job.profile is not None and phase.worst_case_s is not None:
            raise field_error("is measured where there is a profile; give one of the two", name, "worst_case_s")
        if job.nodes is not None:
            names = getattr(job.nodes, name)
            if len(set(names)) != len(names):
                raise field_error("names a node twice", "nodes", name)
            if names and phase.nodes != len(names):
                raise field_error(f"is {phase.nodes}; nodes.{name} names {len(names)}", name, "nodes")
    if job.profile is not None and job.profile.iterations >= job.iterations:
        raise field_error(f"must be less than iterations, which is {job.iterations}", "profile", "iterations")


def _check_own(job: JobSpec) -> None:
    """Of a job that the runtime runs: with a task, or of a class."""
    for key in ("nodes", "profile", "eval_s"):
        if getattr(job, key) is not None:
            raise field_error("goes with attach" if key == "nodes" else "goes with attach and command", key)
    if job.sync_s:
        raise field_error("goes with attach and command; the sync of other jobs is measured", "sync_s")
    for name in _PHASES:
        for key in getattr(job, name).stated:
            raise field_error("goes with attach and command; other jobs are measured", name, key)
    longest, needed = job.rollout.engine_options.max_model_len, job.algorithm.max_prompt_tokens + job.algorithm.max_tokens
    if longest is not None and longest < needed and job.job_class is None:
        problem = f"is {longest}; max_prompt_tokens and max_tokens of the algorithm are {needed} together"
        raise field_error(problem, "rollout", "engine_options", "max_model_len")
    if job.job_class is not None and job.rollout.policy != "plain":
        raise field_error("is a key of jobs with a task", "rollout", "policy")
    if job.job_class is not None and job.rollout.sizes:
        raise field_error("is a key of jobs with a task", "rollout", "sizes")
    if job.rollout.sizes and job.staleness:
        problem = "do not go with a staleness: the engines of another size would go on with weights that have come meanwhile"
        raise field_error(problem, "rollout", "sizes")
    if job.job_class is not None and job.staleness:
        raise field_error("is a key of jobs with task, attach or command; a class trains on what it has just sampled", "staleness")
    if job.rollout.interruptible and not job.staleness:
        raise field_error(
            "goes with a staleness: on-policy no new weights come in the middle of a rollout", "rollout", "interruptible"
        )
    if job.job_class is not None and job.training.cpu_offload:
        raise field_error("is a key of jobs with a task", "training", "cpu_offload")
    if job.evaluation is not None and job.task is not None and job.task.name != "jsonl":
        raise field_error(f"goes with the task jsonl, not with {describe(job.task.name)}", "evaluation")
    if job.rewards.workers is not None and job.task is not None and is_cheap(job.task):
        problem = f"are of no use to the task {describe(job.task.name)}, whose rewards take microseconds beside the engine"
        raise field_error(problem, "rewards", "workers")
    for key in ("model", "algorithm", "rewards", "evaluation", "sync"):
        if job.job_class is not None and key in job.model_fields_set:
            raise field_error("is a key of jobs with a task; a class gets its settings by options", key)
    if job.job_class is None and job.options:
        raise field_error("go with class; a task of one's own takes task.options", "options")
