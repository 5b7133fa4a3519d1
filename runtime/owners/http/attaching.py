"""How an owner comes to the place of its job: it waits until there is one, on nodes that it can reach, which nobody else has."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.state import apply
from rollmux_env.errors import Conflict, NotFound, Unprocessable
from rollmux_env.scheduler.confined import confined_problem
from rollmux_env.validation_errors import one_line
from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.execution.profiles import job_as_stated
from runtime.execution.run_state import RunState
from runtime.jobs.spec import JobSpec
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.lease import Stay


async def find_place(
    iterations: Iterations, job_id: str, wait_s: float, host: str, pids: Collection[int]
) -> tuple[JobHandle, Stay | None]:
    """Wait until a job has a place that its owner can have a lease of.

    Args:
        iterations: of attached jobs. wait_s: for so long. host: on which the owner is, if it says so. pids: its processes there.

    Returns:
        The job as it is then, and its time in this place; None: it has none.

    Raises:
        NotFound, Conflict: as `runtime.owners.http.leases.Leases.attach`.
    """
    ledger, clock = iterations.ledger, asyncio.get_running_loop()
    run, until_s = ledger.run, clock.time() + wait_s
    while True:
        await run.written()
        handle = _handle_of(run, job_id)
        stay = ledger.stay(handle)
        if stay is not None and (lease := stay.living) is not None:
            if not lease.moves or lease.turns.open:
                raise Conflict(f"job {job_id}: another lease of it lives")
            iterations.leave(lease, "its owner has attached anew")
            continue
        if (suspected := ledger.suspected.get(job_id)) is not None:
            ledger.speak_for(suspected, pids)
        if handle.ending.why is None and not run.stopping:
            _bring_to(run, stay, host, handle)
            iterations.come(handle)
            stay = ledger.stay(handle)  # it may have got its place just now
            if stay is not None and not stay.over.done() and handle.ending.why is None and run.present(handle):
                return handle, stay
        if clock.time() >= until_s or run.stopping:
            return handle, None
        await handle.changed.wait(until_s - clock.time())


def reason(run: RunState, handle: JobHandle) -> tuple[str, int | None]:
    """Why a job has no place, in words, and its position in the queue, from 1; None: it is not there."""
    waiting = run.scheduler.state.waiting
    position = waiting.index(handle.id) + 1 if handle.id in waiting else None
    if handle.ending.why is not None:
        return f"what its last lease held may be in use: {handle.ending.why.problem}", position
    if run.stopping:
        return "the service is stopping", position
    return "has no place yet" if position is None else "waits for nodes", position


def problem_of_names(run: RunState, spec: JobSpec) -> str | None:
    """Why a job cannot be on the nodes that its entry names; None: it can, or names none. One line."""
    there = {node.name: node for node in run.all_nodes()}
    for pool, names in spec.nodes_named.items():
        for name in names:
            if name not in there or name in run.scheduler.missing:
                return f"nodes.{pool}: there is no node {name}"
            if there[name].pool != pool:
                return f"nodes.{pool}: {name} is a {there[name].pool} node"
    if spec.nodes is None:
        return None
    names_of_all = frozenset(name for names in spec.nodes_named.values() for name in names)
    if drained := sorted(names_of_all & run.nodes.drained):
        return f"nodes: {drained[0]} is drained"
    state, now_s = run.scheduler.state.copy(), run.log.now()
    state.now_s = now_s
    apply(state, Arrived(now_s, job_as_stated(spec, now_s)))
    problem = confined_problem(state, run.nodes, spec.id, names_of_all)
    return None if problem is None else f"nodes: {problem}"


def _bring_to(run: RunState, stay: Stay | None, host: str, handle: JobHandle) -> None:
    """See that a job gets nodes of its owner's host; it gives up a place elsewhere that nobody has attached to yet."""
    names = _nodes_of_host(run, handle.spec, host)
    if names is None or (stay is not None and stay.lease is not None):
        return
    if run.present(handle) and handle.names <= names:
        return
    run.confine(handle, names)
    if stay is not None and run.present(handle):
        stay.end(End("died", "step", f"its owner is on {one_line(host, 80)}"))


def _nodes_of_host(run: RunState, spec: JobSpec, host: str) -> frozenset[str] | None:
    """The nodes that a job may have whose owner is on a host; None: any.

    Where a cluster has one host alone, or none of this name, an owner reaches its nodes by a launcher of its own.

    Raises:
        Unprocessable: the host has fewer nodes than the job asks for; one line.
    """
    every = run.all_nodes()
    hosts = {node.host for node in every}
    if spec.nodes is not None or host not in hosts or len(hosts) < 2:
        return None
    own = [node for node in every if node.host == host]
    for pool in run.plan.cluster.sides:
        there, asks = sum(node.pool == pool for node in own), getattr(spec, pool).nodes
        if there < asks:
            raise Unprocessable(f"job {spec.id}: {pool}.nodes: asks for {asks} nodes; {host} has {there} of this pool")
    return frozenset(node.name for node in own)


def _handle_of(run: RunState, job_id: str) -> JobHandle:
    handle = run.handles.get(job_id)
    if handle is None:
        raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
    if not handle.spec.is_attached:
        raise Conflict(f"job {job_id}: is run by the service itself; nobody attaches to it")
    if handle.gone or (handle.ending.why is not None and not handle.ending.again):
        raise Conflict(f"job {job_id}: has ended")
    return handle
