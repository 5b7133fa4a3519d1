"""Placements that owners can take a lease of: where a job is to wait for its owner, and why an owner waits for its job."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from math import inf

from rollmux_processes import same_host

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived
from rollmux_env.errors import Conflict, NotFound, Unprocessable
from rollmux_env.scheduler.confined import find_confined_problem
from rollmux_env.validation_errors import one_line
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiles import job_as_stated
from runtime.coordinator.profiling import confined
from runtime.coordinator.run_loop import RunLoop
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import CommandJob, JobSpec
from runtime.jobside.messages import JobEnd
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.ledger import AttachedPlacement


def check_from(handle: JobHandle, from_iteration: int | None) -> None:
    """Check that an owner does not have more iterations than the service has counted.

    Args:
        handle: The job.
        from_iteration: Number of iterations that the owner has, or None if it does not say.

    Raises:
        Unprocessable: If it has more; one line.
    """
    if from_iteration is not None and from_iteration > handle.iteration:
        counted = f"{handle.iteration} iterations of it are counted"
        raise Unprocessable(f"job {handle.id}: from_iteration: {counted}; its owner cannot continue after {from_iteration}")


async def find_place(
    iterations: Iterations, job_id: str, wait_s: float, host: str, pids: Collection[int]
) -> tuple[JobHandle, AttachedPlacement | None]:
    """Wait until a job has a placement of which its owner can take a lease.

    Args:
        iterations: Progress of the attached jobs.
        job_id: Identifier of the job.
        wait_s: Longest wait, in seconds.
        host: Name of the machine on which the owner runs, or an empty string.
        pids: Process ids of the owner there.

    Returns:
        The job's current handle, and its period in the placement, or None if it has got none.

    Raises:
        NotFound: If there is no such job; one line.
        Conflict: As `Leases.attach`; one line.
        Unprocessable: If the owner's host has fewer nodes than the job asks for; one line.
    """
    ledger, clock = iterations.ledger, asyncio.get_running_loop()
    run, until_s = ledger.run, clock.time() + wait_s
    while True:
        await run.written()
        handle = handle_of(run, job_id)
        placement = ledger.placement_of(handle)
        if _replace_last(iterations, handle, placement):
            continue
        suspected = ledger.suspected.get(job_id)
        left_s = ledger.free_for_attaching(suspected, pids) if suspected is not None else 0.0
        if not left_s and handle.ending.why is None and not run.stopping:
            _bring_to(run, placement, host, handle)
            run.apply(iterations.profiling.owner_came(handle, run.log.now()))
            if not run.errands.empty():  # a placement may be about to be started
                await run.errands.join()
                continue
            if _is_to_have(run, placement, handle):
                return handle, placement
        if clock.time() >= until_s or run.stopping:
            return handle, None
        await handle.changed.wait(min(until_s - clock.time(), left_s or inf))


def _replace_last(iterations: Iterations, handle: JobHandle, placement: AttachedPlacement | None) -> bool:
    """End the lease of a job's last owner, which another one replaces.

    Args:
        iterations: Progress of the attached jobs.
        handle: The job.
        placement: Period of the job in its current placement, or None.

    Returns:
        Whether the job has left its placement.

    Raises:
        Conflict: If the lease is active, and its owner need not move or is within a phase; one line.
    """
    ledger, again = iterations.ledger, "its owner has attached again"
    if placement is not None and (lease := placement.active_lease) is not None:
        if not lease.must_move or lease.turns.open:
            raise Conflict(f"job {handle.id}: another lease of it lives")
        iterations.leave(lease, again)
        return True
    last = ledger.last_of(handle.id)
    if last is not None and not last.is_over and last.placement is not placement:  # of lent nodes of the former coordinator
        ledger.end(last, again, None)
    if isinstance(handle.spec, CommandJob) and handle.permits.holds and handle.life.is_alive:
        raise Conflict(f"job {handle.id}: its command has given its lease back within a phase, and has to end first")
    return False


def _is_to_have(run: RunLoop, placement: AttachedPlacement | None, handle: JobHandle) -> bool:
    """Return whether a job has a placement and is not about to leave it."""
    return placement is not None and not placement.over.done() and handle.life.is_alive and run.has_seat(handle)


def reason(run: RunState, handle: JobHandle) -> tuple[str, int | None]:
    """Return why a job has no placement, in words, and its position in the queue from 1, or None if it is not queued."""
    queue = run.scheduler.planner.ranking.queue
    position = queue.index(handle.id) + 1 if handle.id in queue else None
    if run.stopping:
        return "the service is stopping", position
    if handle.ending.why is not None:
        return f"what its last lease held may be in use: {handle.ending.why.problem}", position
    if position is not None:
        return "waits for nodes", position
    return run.scheduler.guests.quota_reason(handle.id, run.scheduler.state) or "has no place yet", None


def problem_of_names(run: RunLoop, spec: JobSpec) -> str | None:
    """Return why a job cannot run on the nodes that its entry names, in one line, or None if it can or names none."""
    if not spec.nodes_named:
        return None
    there = {node.name: node for node in run.capacity.nodes()}
    for pool, names in spec.nodes_named.items():
        for name in names:
            if name not in there or name in run.nodes.missing:
                return f"nodes.{pool}: there is no node {name}"
            if there[name].pool != pool:
                return f"nodes.{pool}: {name} is a {there[name].pool} node"
    names_of_all = frozenset(name for names in spec.nodes_named.values() for name in names)
    if drained := sorted(names_of_all & run.nodes.drained):
        return f"nodes: {drained[0]} is drained"
    state, now_s = run.scheduler.state.copy(), run.log.now()
    state.now_s = now_s
    apply(state, Arrived(now_s, job_as_stated(spec, now_s)))
    problem = find_confined_problem(state, run.nodes, spec.id, names_of_all)
    return None if problem is None else f"nodes: {problem}"


def _bring_to(run: RunLoop, placement: AttachedPlacement | None, host: str, handle: JobHandle) -> None:
    """Restrict a job to its owner's host. The job gives up a placement elsewhere if no owner has attached to it yet."""
    names = _nodes_of_host(run, handle.spec, host)
    if names is None or (placement is not None and placement.lease is not None):
        return
    if run.has_seat(handle) and handle.place.names <= names:
        return
    run.apply(confined(run, handle, names))
    if placement is not None and run.has_seat(handle):
        placement.end(JobEnd("died", "step", f"its owner is on {one_line(host, 80)}"))


def _nodes_of_host(run: RunState, spec: JobSpec, host: str) -> frozenset[str] | None:
    """Return the names of the nodes to which a job is restricted whose owner is on a host, or None for no restriction.

    Names of hosts are compared by their first label, as `rollmux_processes.same_host` does. With a cluster of one host, or none
    of this name, the owner reaches the nodes with its own launcher.

    Raises:
        Unprocessable: If the host has fewer nodes than the job asks for, or the name may be that of two hosts; one line.
    """
    hosts = run.capacity.nodes_by_host()
    same = [other for other in hosts if same_host(other, host)]
    if spec.nodes_named or not same:
        return None
    if others := [other for other in same if not same_host(other, same[0])]:
        name = one_line(host, 80)
        raise Unprocessable(f"job {spec.id}: host {name} may be {same[0]} or {others[0]}: the owner has to give the whole name")
    if len(same) == len(hosts):
        return None
    own = [node for other in same for node in hosts[other]]
    for pool in run.plan.cluster.sides:
        there, asks = sum(node.pool == pool for node in own), getattr(spec, pool).nodes
        if there < asks:
            raise Unprocessable(f"job {spec.id}: {pool}.nodes: asks for {asks} nodes; {same[0]} has {there} of this pool")
    return frozenset(node.name for node in own)


def handle_of(run: RunState, job_id: str) -> JobHandle:
    """Return a job to which an owner may attach.

    Raises:
        NotFound: If there is no such job; one line.
        Conflict: If the service runs the job itself, or the job has ended; one line.
    """
    handle = run.handles.get(job_id)
    if handle is None:
        raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
    if not handle.spec.is_attached:
        raise Conflict(f"job {job_id}: is run by the service itself, and no owner can attach to it")
    if handle.ending.halted:
        return handle
    if handle.life.is_gone or (handle.ending.why is not None and not handle.ending.restarts):
        raise Conflict(f"job {job_id}: has ended")
    return handle
