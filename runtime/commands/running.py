"""What `rollmux run` does once its arguments are in order."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer

from rollmux_env.errors import InputError
from rollmux_env.report.tables import show
from rollmux_env.scenario import Scenario
from runtime.commands.memory import foresee
from runtime.execution.pools import check_pools, cluster_of, gpu_memory_gb, nodes_wanted
from runtime.execution.run_plan import RunPlan
from runtime.execution.space import check_space
from runtime.jobs.spec import Jobs
from runtime.journal.write import DRIVER_LOCK, read_run, take_lock
from runtime.report.folder import write_report
from runtime.report.summary import summary
from runtime.run.ray_session import RAY, end_all_left, execute, ray_session


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
    """Run jobs and report.

    Args:
        compare: behind its last iteration, measure each job alone. keep: the folder stays, and so models are written into it.

    Returns:
        `done`, `stopped`, or `failed`: some jobs have.

    Raises:
        InputError: a node, a policy or a folder cannot be used, or its disk has no room for checkpoints; one line.
    """
    with take_lock(folder / DRIVER_LOCK):
        end_all_left(folder, typer.echo)
        check_space(jobs.jobs, folder, "--out")
        with ray_session(address, nodes_wanted(jobs.cluster, jobs.jobs), folder / RAY) as nodes:
            cluster = cluster_of(jobs.cluster, jobs.jobs, nodes, typer.echo, gpu_memory_gb(nodes, address is None))
            foresee(jobs.jobs, nodes, address is None, typer.echo)
            policy, dispatch, seed, cached = planning
            cached &= not compare
            plan = RunPlan(jobs.jobs, cluster, nodes, policy, dispatch, seed, str(folder), cached, compare, models=keep)
            outcome = execute(plan, typer.echo)
    return _report(folder, outcome)


def resume_all(folder: Path, address: str | None, compare: bool) -> str:
    """Go on with the run in a folder, whatever has ended it, and report.

    Args:
        folder: of the run. compare: measure each job alone that is not done yet, behind its last iteration.

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
        if record.ended is not None and record.ended.outcome == "done":
            why = "the processes that --compare would measure have ended" if compare else "there is nothing to go on with"
            raise InputError(f"{folder}: this run is done; {why}")
        started = record.started
        ended = {fact.job_id for fact in record.failed} | {fact.job_id for fact in record.cancelled} | record.over_budget
        left = [spec for spec in specs if spec.id not in ended]
        check_space(left, folder, "--resume")
        with ray_session(address, nodes_wanted(started.cluster, specs), folder / RAY) as nodes:
            check_pools(started.cluster, nodes)
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
                compare=compare,
                resume=True,
                models=True,
            )
            outcome = execute(plan, typer.echo)
    return _report(folder, outcome)


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
