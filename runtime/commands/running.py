"""The work of `rollmux run` after its arguments are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from policies.registry import make_runnable
from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster
from rollmux_env.replay.admission import admit_all
from rollmux_env.report.decision_tables import plan_tables
from rollmux_env.report.job_shapes import placed_shapes
from rollmux_env.report.tables import figure, heading, make_table, show
from rollmux_env.scenario import Scenario
from runtime.commands.run_options import RunOptions
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.file import JobFile
from runtime.jobs.spec import JobSpec
from runtime.journal.write import lock_driver, read_run
from runtime.machine import Node, Pool
from runtime.machines.forecast import MemoryForecast, MemoryLimits, check_memory, check_space, forecasts, limits
from runtime.machines.pools import check_pools, cluster_of, gpu_memory_gb, nodes_wanted
from runtime.report.folder import write_report
from runtime.report.summary import summary
from runtime.run.dependencies import check_unchanged, remember
from runtime.run.ray_session import RAY, end_all_left, execute, ray_session

_NOTE = (
    "predicted for responses as long as they may be, beside what a process and CUDA take for themselves; "
    "KV cache: of one response; vLLM takes a fixed share of the device"
)


def run_all(jobs: JobFile, options: RunOptions, folder: Path, file: Path) -> str:
    """Run jobs, and write and print the report.

    Args:
        jobs: Jobs of the file.
        options: Options of the command.
        folder: Folder of the run.
        file: Job file.

    Returns:
        Outcome: `done`, `stopped`, or `failed` if some jobs have failed.

    Raises:
        InputError: If a node, a policy or a folder cannot be used, or the disk is too small for checkpoints; one line.
    """
    with lock_driver(folder):
        end_all_left(folder, typer.echo)
        check_space(jobs.jobs, folder, "--out")
        if options.out is not None:
            remember(folder, jobs.jobs, file)
        compare = options.compare is not None
        cached = not (options.no_cache or compare)
        outcome, _ = _begin(
            jobs, options, folder, cached=cached, compare=compare, models=options.out is not None, leave=options.leave
        )
    return _report(folder, outcome)


def _begin(jobs: JobFile, options: RunOptions, folder: Path, **more: Any) -> tuple[str, Cluster]:
    """Carry out a new run, and return its outcome and its cluster.

    Args:
        jobs: Jobs of the file.
        options: Options of the command.
        folder: Folder of the run.
        **more: Further fields of the run's plan.
    """
    with ray_session(options.address, nodes_wanted(jobs.cluster, jobs.jobs), folder / RAY) as nodes:
        cluster = cluster_of(jobs.cluster, jobs.jobs, nodes, typer.echo, gpu_memory_gb(nodes))
        if (needed := forecast_memory(jobs.jobs, nodes, typer.echo)) and options.dry_run:
            show(needed)
        plan = RunPlan(
            jobs.jobs, cluster, nodes, options.placement_policy, options.dispatch_policy, options.seed, str(folder), **more
        )
        return execute(plan, typer.echo, options.make_logger), cluster


def resume_all(folder: Path, options: RunOptions) -> str:
    """Continue the run in a folder, however it ended, and write and print the report.

    Args:
        folder: Folder of the run.
        options: Options of the command.

    Returns:
        Outcome, as in `run_all`.

    Raises:
        InputError: If there is no run, it is done, or another process uses it; or as in `run_all`; one line.
    """
    read_run(folder)  # raises if there is no run
    compare = options.compare is not None
    with lock_driver(folder):
        end_all_left(folder, typer.echo)
        record = read_run(folder)
        specs = tuple(fact.spec for fact in record.submitted)
        if not specs:
            raise InputError(f"{folder}: the journal does not hold the jobs of its run, which an older RollMux began")
        if record.ended is not None and record.ended.outcome == "done":
            why = "the processes that --compare would measure have ended" if compare else "there is nothing to continue"
            raise InputError(f"{folder}: this run is done; {why}")
        ended = {fact.job_id for fact in record.failed} | {fact.job_id for fact in record.cancelled} | record.over_budget
        left = [spec for spec in specs if spec.id not in ended]
        check_space(left, folder, "--resume")
        check_unchanged(folder, options.accept_changes)
        start = record.started
        with ray_session(options.address, nodes_wanted(start.cluster, specs), folder / RAY) as nodes:
            check_pools(start.cluster, nodes)
            forecast_memory(left, nodes, typer.echo)
            remember(folder, specs)  # not before, since a run that cannot begin has accepted nothing
            plan = RunPlan(
                specs, start.cluster, nodes, start.policy, start.dispatch, start.seed, str(folder), not compare, compare,
                resume=True, models=True, leave=options.leave,
            )  # fmt: skip
            outcome = execute(plan, typer.echo, options.make_logger)
    return _report(folder, outcome)


def _report(folder: Path, outcome: str) -> str:
    record = read_run(folder)
    show(summary(write_report(folder, record)))
    return "failed" if outcome == "done" and record.failed else outcome


def run_dry(jobs: JobFile, options: RunOptions, folder: Path) -> None:
    """Print the memory that jobs will take, profile them, and print the placements that the policy chooses.

    Args:
        jobs: Jobs of the file.
        options: Options of the command.
        folder: Folder of the run.

    Raises:
        InputError: If a node, a policy or a folder cannot be used, or a job fails in its profile; one line.
    """
    with lock_driver(folder):
        end_all_left(folder, typer.echo)
        _, cluster = _begin(jobs, options, folder, cached=not options.no_cache, only_profile=True)
    record = read_run(folder)
    for failed in record.failed:
        raise InputError(f"job {failed.job_id}: fails in its profile: {failed.problem}")
    known = record.jobs
    if all(spec.id in known for spec in jobs.jobs):  # not if the user has stopped the profiling
        arriving = tuple(known[spec.id].model_copy(update={"arrival_s": spec.arrival_s}) for spec in jobs.jobs)
        admission = admit_all(
            Scenario(version=1, cluster=cluster, jobs=arriving), make_runnable(options.placement_policy, options.seed)
        )
        show(plan_tables(options.placement_policy, admission), *placed_shapes(admission.decisions, arriving))


def forecast_memory(specs: Sequence[JobSpec], nodes: Sequence[Node], say: Callable[[str], None]) -> RenderableType | None:
    """Return tables of the memory that jobs will take, or None if no job is of the built-in kind.

    Args:
        specs: The jobs.
        nodes: The nodes of the run.
        say: Callback for a line about memory that may not suffice.

    Raises:
        InputError: If memory cannot suffice, whatever the lengths of responses; one line.
    """
    expected = forecasts(specs, nodes)
    if not expected:
        return None
    there = limits(nodes, gpu_memory_gb(nodes))
    check_memory(expected, there, say)
    return memory_tables(expected, there)


def memory_tables(expected: Sequence[MemoryForecast], available: dict[Pool, MemoryLimits]) -> RenderableType:
    """Return a table for each pool of the memory that jobs will take, in GB.

    Args:
        expected: Forecasts of the jobs.
        available: Limits of devices and nodes, by pool.
    """
    update = ("state", "gathered", "activations", "they are", "log-probs", "peak", "of")
    training = make_table("job", "parameters", "ranks", "tokens", "in", *update, "waiting", "written", "loading", "of a node")
    rollouts = make_table("job", "engines", "in", "weights", "KV cache", "device", "of", "asleep", "staged", "of a node")
    for one in expected:
        peak, sampling = one.training, one.sampling
        training.add_row(
            one.spec.id,
            f"{one.size.parameters / 1e6:,.1f} M",
            str(one.ranks),
            f"{peak.tokens:,}",
            _number(one.on_gpu["training"]),
            *_gb(peak.state, peak.gathered, peak.activations),
            "recomputed" if peak.recomputed else "kept",
            *_gb(peak.logprobs, peak.device),
            figure(available["training"].device_gb, form=".1f"),
            *_gb(one.waiting, one.written, peak.loading),
            figure(available["training"].node_gb, form=".1f"),
        )
        rollouts.add_row(
            one.spec.id,
            str(one.engines * one.spec.rollout.nodes),
            _number(one.on_gpu["rollout"]),
            *_gb(sampling.weights, sampling.cache, sampling.device),
            figure(available["rollout"].device_gb, form=".1f"),
            *_gb(one.engines * sampling.asleep, sampling.staged),
            figure(available["rollout"].node_gb, form=".1f"),
        )
    titles = (
        "Memory of training: a rank at the peak of an update, and host memory, GB",
        "Memory of rollouts: an engine at least, GB",
    )
    return Group(heading(titles[0]), training, heading(titles[1]), rollouts, Text(_NOTE, style="dim"))


def _number(on_gpu: bool) -> str:
    return "bf16" if on_gpu else "float32"


def _gb(*sizes: int) -> list[str]:
    return [f"{size / 1e9:.2f}" for size in sizes]
