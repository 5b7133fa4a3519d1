"""What `rollmux run` does once its arguments are in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import typer

from rollmux_env.errors import InputError
from rollmux_env.files import private_folder
from rollmux_env.report.tables import show
from rollmux_env.scenario import Scenario
from runtime.commands.memory import foresee
from runtime.execution.nodes import POOLS
from runtime.execution.pools import check_pools, cluster_of, gpu_memory_gb, nodes_wanted
from runtime.execution.ray_session import RAY, end_all_left, execute, ray_session
from runtime.execution.run_plan import RunPlan
from runtime.execution.space import check_space
from runtime.facts import Node
from runtime.jobs.spec import Jobs, JobSpec
from runtime.journal import DRIVER_LOCK, read_run, take_lock
from runtime.record import RunRecord
from runtime.report.folder import write_report
from runtime.report.summary import summary


class Planning(NamedTuple):
    """What a new run plans with.

    Attributes:
        policy, dispatch: by name. seed: of policies that take one.
        cached: profiles that were measured before may be used.
    """

    policy: str
    dispatch: str
    seed: int
    cached: bool = True


def run_all(jobs: Jobs, planning: Planning, folder: Path, address: str | None, compare: bool, keep: bool) -> str:
    """Run jobs, alone afterwards if they are to be compared, and report.

    Args:
        keep: the folder stays, and so models are written into it.

    Returns:
        `done`, `stopped`, or `failed`: some jobs have.

    Raises:
        InputError: a node, a policy or a folder cannot be used, or its disk has no room for checkpoints; one line.
    """
    with take_lock(folder / DRIVER_LOCK):
        end_all_left(folder, typer.echo)
        check_space([spec for spec in jobs.jobs for _ in range(1 + compare)], folder, "--out")  # alone it writes them once more
        with ray_session(address, nodes_wanted(jobs.cluster, jobs.jobs), folder / RAY) as nodes:
            cluster = cluster_of(jobs.cluster, jobs.jobs, nodes, typer.echo, gpu_memory_gb(nodes, address is None))
            foresee(jobs.jobs, nodes, address is None, typer.echo)
            policy, dispatch, seed, cached = planning
            cached &= not compare
            plan = RunPlan(jobs.jobs, cluster, nodes, policy, dispatch, seed, str(folder), cached, bounds=compare, models=keep)
            outcome = execute(plan, typer.echo)
            if compare:
                outcome = _run_alone(plan, outcome)
    return _report(folder, outcome)


def resume_all(folder: Path, address: str | None, compare: bool) -> str:
    """Go on with the run in a folder, whatever has ended it, and report.

    Args:
        folder: of the run. compare: run each job alone afterwards, as far as that has not been done.

    Returns:
        As `run_all`.

    Raises:
        InputError: there is no run, it is over, or another process is at it; or as `run_all`; one line.
    """
    read_run(folder)  # is there one?
    with take_lock(folder / DRIVER_LOCK):
        end_all_left(folder, typer.echo)
        record = read_run(folder)
        specs = tuple(fact.spec for fact in record.submitted)
        if not specs:
            raise InputError(f"{folder}: the journal does not hold the jobs of its run, which an older RollMux began")
        over = record.ended is not None and record.ended.outcome == "done"
        if over and not compare:
            raise InputError(f"{folder}: this run is done; there is nothing to go on with")
        started = record.started
        if not over:
            ended = {fact.job_id for fact in record.failed} | {fact.job_id for fact in record.cancelled} | record.over_budget
            left = [spec for spec in specs if spec.id not in ended]
            check_space(left, folder, "--resume")
        with ray_session(address, nodes_wanted(started.cluster, specs), folder / RAY) as nodes:
            check_pools(started.cluster, nodes)
            if not over:
                foresee(left, nodes, address is None, typer.echo)
            plan = RunPlan(
                specs,
                started.cluster,
                nodes,
                started.policy,
                started.dispatch,
                started.seed,
                str(folder),
                not compare,
                resume=True,
                models=True,
            )
            outcome = "done" if over else execute(plan, typer.echo)
            if compare:
                outcome = _run_alone(plan, outcome)
    return _report(folder, outcome)


def _run_alone(plan: RunPlan, outcome: str) -> str:
    """Run each job of a run that is done on its own, or go on with that; how the last one ended."""
    record = read_run(Path(plan.folder))
    for spec in plan.specs:
        own, folder = nodes_of(record, spec, plan.nodes), Path(plan.folder) / "solo" / spec.id
        if outcome != "done" or not own:
            continue
        solo = record.solo.get(spec.id)
        if solo is None or solo.ended is None or solo.ended.outcome != "done":
            typer.echo(f"{spec.id} alone:")
            outcome = execute(replace(alone(plan, spec, own, folder), resume=solo is not None), typer.echo)
    return outcome


def _report(folder: Path, outcome: str) -> str:
    record = read_run(folder)
    files = write_report(folder, record)
    show(summary(files))
    return "failed" if outcome == "done" and record.failed else outcome


def run_dry(jobs: Jobs, planning: Planning, folder: Path, address: str | None) -> None:
    """Print what memory jobs will take, profile them, and print what the policy would do with them.

    Raises:
        InputError: a node, a policy or a folder cannot be used, or a job fails in its profile; one line.
    """
    from policies.registry import make_runnable
    from rollmux_env.replay.admission import admit_all
    from rollmux_env.report.job_shapes import placed_shapes
    from rollmux_env.report.tables import plan_tables

    policy, dispatch, seed, cached = planning
    with take_lock(folder / DRIVER_LOCK):
        end_all_left(folder, typer.echo)
        with ray_session(address, nodes_wanted(jobs.cluster, jobs.jobs), folder / RAY) as nodes:
            cluster = cluster_of(jobs.cluster, jobs.jobs, nodes, typer.echo, gpu_memory_gb(nodes, address is None))
            if needed := foresee(jobs.jobs, nodes, address is None, typer.echo):
                show(needed)
            plan = RunPlan(jobs.jobs, cluster, nodes, policy, dispatch, seed, str(folder), cached, only_profile=True)
            execute(plan, typer.echo)
    record = read_run(folder)
    for failed in record.failed:
        raise InputError(f"job {failed.job_id}: fails in its profile: {failed.problem}")
    profiled = [record.jobs[spec.id] for spec in jobs.jobs if spec.id in record.jobs]
    if len(profiled) == len(jobs.jobs):  # else the user has stopped it
        arriving = tuple(
            job.model_copy(update={"arrival_s": spec.arrival_s}) for job, spec in zip(profiled, jobs.jobs, strict=True)
        )
        scenario = Scenario(version=1, cluster=cluster, jobs=arriving)
        admission = admit_all(scenario, make_runnable(policy, seed))
        show(plan_tables(policy, admission), *placed_shapes(admission.decisions, arriving))


def nodes_of(record: RunRecord, spec: JobSpec, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Of some nodes as many as a job asks for, those that it ran on before others; none of a job that has run no iteration."""
    parts = [part for part in record.phases if part.job_id == spec.id and not part.profile and part.ok]
    used = {name for part in parts for name in part.nodes}
    first = sorted(nodes, key=lambda node: node.name not in used) if used else []
    return tuple(node for pool in POOLS for node in [node for node in first if node.pool == pool][: getattr(spec, pool).nodes])


def alone(plan: RunPlan, spec: JobSpec, nodes: tuple[Node, ...], folder: Path) -> RunPlan:
    """A run of one job alone."""
    private_folder(folder)
    return RunPlan(
        (spec.model_copy(update={"arrival_s": 0.0, "budget": None}),),
        plan.cluster,
        nodes,
        "solo",
        plan.dispatch,
        plan.seed,
        str(folder),
        False,
    )
