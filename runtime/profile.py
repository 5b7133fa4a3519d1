"""The measurement of `rollmux profile`: a job's model in its engine on this machine, compared with the phase-time model."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.errors import InputError
from rollmux_env.report.tables import heading, make_table
from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.models import read_shape
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.validation_errors import describe
from runtime.calibration import Grid, MeasuredRollout, Measurer, Prompts, as_hardware, clock, fit, measure
from runtime.engines.interface import Engine
from runtime.engines.memory import USUAL
from runtime.jobs.grpo_spec import Algorithm, ModelSpec, TaskSpec
from runtime.jobs.spec import TaskJob
from runtime.memory import memory
from runtime.residency.choice import OffloadLevel, cheapest

MOST_SEQUENCES = 64  # largest measured batch, for which vLLM on a CPU has room at full length
_HOST_SHARE = 0.9  # share of a CPU's memory for weights and KV cache
_SEED = 0
_WAITING = {"stay": "stay resident", "keep": "keep weights in host memory", "drop": "drop weights for staged ones"}


@dataclass(frozen=True)
class EngineSwitches:
    """Measured switches of an engine.

    Attributes:
        cold_s: Seconds to make the engine.
        warm_s: Seconds of an offload and a restore together.
        sync_s: Seconds to take new weights.
        host_gb: Memory offloaded to the host, in GB.
        levels: Ways to wait between phases, with their costs.
        cheapest: Name of the cheapest level beside a job of the same size, or None if none fits.
    """

    cold_s: float
    warm_s: float
    sync_s: float
    host_gb: float
    levels: tuple[OffloadLevel, ...]
    cheapest: str | None


@dataclass(frozen=True)
class ProfileCheck:
    """Rollouts of one batch size and cap over all rounds, which the fit does not use.

    Attributes:
        responses: Number of responses.
        cap: Longest response, in tokens.
        mean_tokens: Mean response, in tokens.
        predicted_s: Median prediction, in seconds.
        measured_s: Median measurement, in seconds.
    """

    responses: int
    cap: int
    mean_tokens: float
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class EngineProfile:
    """Result of a profile.

    Attributes:
        job: Id of the job.
        engine: Class of the engine.
        timing: Fitted timing of a replica.
        checks: Comparisons of prediction and rollouts.
        switches: Measured switches.
        hardware: Rates of the device.
    """

    job: str
    engine: str
    timing: ReplicaTiming
    checks: tuple[ProfileCheck, ...]
    switches: EngineSwitches
    hardware: Hardware

    def as_report(self) -> dict[str, Any]:
        """Return the profile as a JSON value, for `--format json`."""
        checks = [{**asdict(check), "error": check.error} for check in self.checks]
        return {**asdict(self), "checks": checks}


def subject(target: str, job_id: str | None) -> TaskJob:
    """Return a job of a file, or a job that samples long-tailed responses from a model.

    Args:
        target: Job file, `tiny`, or the folder of a Hugging Face model.
        job_id: Id of a job in the file, or None for the first one with a task.

    Raises:
        InputError: If the target is none of these, or there is no such job; one line.
    """
    from runtime.jobs.file import load_jobs
    from runtime.jobs.grpo_spec import TINY
    from runtime.jobs.spec import TaskJob

    path = Path(target)
    if target == TINY or path.is_dir():
        if job_id is not None:
            raise InputError(f"--job {job_id}: goes with a job file, not with a model")
        algorithm = Algorithm(prompts_per_iteration=16, group_size=2, max_prompt_tokens=32, max_tokens=256)
        model, task = ModelSpec(name=target), TaskSpec(name="long-tail")
        return TaskJob(id=path.name, iterations=1, slo=1.0, model=model, task=task, algorithm=algorithm, folder=str(Path.cwd()))
    jobs = [job for job in load_jobs(target).jobs if isinstance(job, TaskJob) and job_id in (None, job.id)]
    if not jobs:
        raise InputError(f"{target}: no job with a task" + (f" is called {describe(job_id)}" if job_id is not None else ""))
    return jobs[0]


def profile(spec: TaskJob, rounds: int, size: int | None = None) -> EngineProfile:
    """Measure a job's engine, and fit the model to it.

    Args:
        spec: The job.
        rounds: Number of rounds of measurements.
        size: GPUs of the engine, or cores on a machine without GPUs. None is the job's `tensor_parallel`, or one core.

    Raises:
        InputError: If the model, engine or task cannot be used; one line.
    """
    import torch

    from runtime.engines import make_engine, why_torch
    from runtime.engines.model_files import read_model_files
    from runtime.jobs.models import model_directory

    directory = model_directory(spec.model, spec.seed, Path(spec.folder))
    files, shape = read_model_files(directory), read_shape(directory / "config.json")
    gpu, threads, parallel = torch.cuda.is_available(), 1, spec.rollout.tensor_parallel
    if size is not None:
        threads, parallel = (1, size) if gpu else (size, 1)
        _check_size(size, spec.rollout.engine == "torch" or bool(why_torch(spec.rollout.engine, gpu, files.head)))
    settings, now = spec.algorithm, clock(threads)
    batch = min(MOST_SEQUENCES, settings.prompts_per_iteration * settings.group_size)
    checks = list(_checks(spec, directory, batch))
    begin = now()
    engine = make_engine(
        spec.rollout.engine,
        directory,
        max_length=settings.max_prompt_tokens + settings.max_tokens,
        seed=spec.seed,
        threads=threads,
        tensor_parallel=parallel,
        options=spec.rollout.engine_options.values_set(),
    )
    cold_s = now() - begin
    try:
        measurer = Measurer(engine, files.vocabulary, _SEED, now)
        prompt = max(len(ids) for prompts, _ in checks for ids in prompts)
        figures = measure(measurer, Grid.up_to(batch, prompt, settings.max_tokens), rounds, checks)
        device_gb = torch.cuda.mem_get_info()[1] / 1e9 if gpu else memory().total_gb
        switches = _switches(engine, measurer, dict(files.tensors()), cold_s, rounds, device_gb)
    finally:
        engine.close()
    share = spec.rollout.engine_options.gpu_memory or USUAL
    number_bytes, memory_gb = (2.0, share * device_gb * parallel) if gpu else (4.0, _HOST_SHARE * device_gb)
    weights_gb = shape.parameters * number_bytes / 1e9
    kv_tokens = int((memory_gb - weights_gb) * 1e9 / (shape.cached * number_bytes))
    timing = fit(figures, kv_tokens)
    several = f"{max(threads, parallel)} x " if max(threads, parallel) > 1 else ""
    name = f"{several}{torch.cuda.get_device_name(0) if gpu else platform.machine()} {type(engine).__name__} {spec.id}"
    return EngineProfile(
        job=spec.id,
        engine=type(engine).__name__,
        timing=timing,
        checks=tuple(_compared(timing, figures.rollouts[place :: len(checks)], cap) for place, (_, cap) in enumerate(checks)),
        switches=switches,
        hardware=as_hardware(name, shape, timing, number_bytes, memory_gb, switches.sync_s),
    )


def with_engine(spec: TaskJob, engine: Literal["vllm", "torch"] | None) -> TaskJob:
    """Return the job with another engine, or unchanged if `engine` is None."""
    if engine is None:
        return spec
    return spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"engine": engine})})


def check_cores(size: int) -> None:
    """Raise an InputError if this process may not use `size` cores."""
    if size > (cores := len(os.sched_getaffinity(0))):
        raise InputError(f"--size {size}: this process may use {cores} cores")


def _check_size(size: int, with_torch: bool) -> None:
    """Raise an InputError if the engine cannot have `size` GPUs, or cores on a machine without GPUs."""
    import torch

    if not torch.cuda.is_available():
        check_cores(size)
    elif size > (gpus := torch.cuda.device_count()):
        raise InputError(f"--size {size}: {gpus} {'GPU is' if gpus == 1 else 'GPUs are'} here")
    elif size > 1 and with_torch:
        raise InputError(f"--size {size}: the torch engine takes one GPU")


def _checks(spec: TaskJob, directory: Path, batch: int) -> Iterator[tuple[Prompts, int]]:
    """Yield prompts of the job's own task with a cap on responses: the job's batch and cap, and half of both."""
    from runtime.engines.pretrained import load_tokenizer
    from runtime.jobs.making import make_task
    from runtime.jobs.models import prompt_tokens

    task, tokenizer = make_task(spec.task, spec.seed, spec.folder), load_tokenizer(directory)
    for position, (count, cap) in enumerate(
        ((batch, spec.algorithm.max_tokens), (-(-batch // 2), -(-spec.algorithm.max_tokens // 2)))
    ):
        examples = task.prompts(count, position * batch)
        yield [[*prompt_tokens(tokenizer, example)][-spec.algorithm.max_prompt_tokens :] for example in examples], cap


def _compared(timing: ReplicaTiming, rollouts: tuple[MeasuredRollout, ...], cap: int) -> ProfileCheck:
    return ProfileCheck(
        responses=len(rollouts[0].lengths),
        cap=cap,
        mean_tokens=fmean(tokens for rollout in rollouts for tokens in rollout.lengths),
        predicted_s=median(rollout.predicted_s(timing) for rollout in rollouts),
        measured_s=median(rollout.seconds for rollout in rollouts),
    )


def _switches(
    engine: Engine, measurer: Measurer, weights: dict[str, Any], cold_s: float, rounds: int, device_gb: float
) -> EngineSwitches:
    stay, keep, drop, sync = [], [], [], []
    awake = engine.restore()
    for number in range(rounds):

        def switch(version: int = 2 * number + 1) -> None:
            engine.offload(drop=True)
            engine.restore(weights, version)

        sync.append(measurer.seconds(lambda version=2 * number + 2: engine.update_weights(weights, version)))  # type: ignore[misc]
        stay.append(measurer.seconds(lambda: (engine.stay(), engine.restore())))
        keep.append(measurer.seconds(lambda: (engine.offload(), engine.restore())))
        drop.append(measurer.seconds(switch))
    asleep = engine.offload()
    engine.restore()
    levels = (
        OffloadLevel("stay", median(stay), awake.device / 1e9),
        OffloadLevel("keep", median(keep), asleep.device / 1e9, asleep.host / 1e9),
        OffloadLevel("drop", median(drop) - median(sync), asleep.device / 1e9),  # a sync follows in any case
    )
    best = cheapest(levels, device_gb, awake.device / 1e9)
    return EngineSwitches(cold_s, median(keep), median(sync), asleep.host / 1e9, levels, best.name if best else None)


def profile_tables(profile: EngineProfile) -> RenderableType:
    """Return the tables of `rollmux profile`."""
    parts, timing = make_table("part of the model", "fitted"), profile.timing
    for name, value in (
        ("decode step, fixed", f"{1e3 * timing.step_s:.3f} ms"),
        ("weights, a step", f"{1e3 * timing.weights_s:.3f} ms"),
        ("cached token, a step", f"{1e6 * timing.kv_s_per_token:.3f} us"),
        ("arithmetic of a sequence, a step", f"{1e3 * timing.sequence_s:.3f} ms"),
        ("prefill of a prompt, fixed", f"{1e3 * timing.prefill_s:.3f} ms"),
        ("prefill of a token", f"{1e6 * timing.prefill_s_per_token:.3f} us"),
        ("attention of a prompt of n tokens", f"{1e9 * timing.prefill_s_per_token2:.3f} ns n^2"),
    ):
        parts.add_row(name, value)
    checks = make_table("rollout", "mean tokens", "predicted", "measured", "error")
    for check in profile.checks:
        name = f"{check.responses} responses of at most {check.cap}"
        figures = (f"{check.mean_tokens:.1f}", f"{check.predicted_s:.3f} s", f"{check.measured_s:.3f} s")
        checks.add_row(name, *figures, f"{100 * check.error:+.1f}%")
    others, switches = make_table("", "seconds"), profile.switches
    others.add_row("cold start: engine and weights", f"{switches.cold_s:.3f}")
    others.add_row(f"warm switch: offload ({switches.host_gb:.3f} GB) and restore", f"{switches.warm_s:.3f}")
    others.add_row("sync: new weights into the engine", f"{switches.sync_s:.3f}")
    for level in switches.levels:
        best = ", the cheapest beside a job of this size" if level.name == switches.cheapest else ""
        others.add_row(f"{_WAITING[level.name]}: {level.device_gb:.3f} GB of the device{best}", f"{level.seconds:.3f}")
    clocks = "Seconds of computing time on one core, of the clock on several and on a GPU"
    note = f"responses end by themselves; the fit saw none of them. {clocks}"
    title = f"{profile.job} in {profile.engine}: {profile.hardware.name}"
    return Group(heading(title), parts, heading("Prediction against rollouts"), checks, Text(note, style="dim"), others)
