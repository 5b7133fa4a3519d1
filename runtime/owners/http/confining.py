"""Attached jobs that may only have some nodes: their owners have started them there, or are on a host of which these are."""

from __future__ import annotations

from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.state import apply
from rollmux_env.scheduler.confined import confined_problem
from runtime.execution.nodes import POOLS
from runtime.execution.profiles import job_as_stated
from runtime.execution.run_state import RunState
from runtime.jobs.spec import JobSpec
from runtime.machine import Node
from runtime.refusals import Unprocessable


def problem_of_names(run: RunState, spec: JobSpec) -> str | None:
    """Why a job cannot be on the nodes that its entry names; None: it can, or names none. One line."""
    there = {node.name: node for pool in POOLS for node in run.nodes.nodes(pool)}
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


def nodes_of_host(run: RunState, spec: JobSpec, host: str) -> frozenset[str] | None:
    """The nodes that a job may have whose owner is on a host; None: any.

    Where a cluster has one host alone, or none of this name, an owner reaches its nodes by a launcher of its own.

    Raises:
        Unprocessable: the host has fewer nodes than the job asks for; one line.
    """
    every: list[Node] = [node for pool in POOLS for node in run.nodes.nodes(pool)]  # type: ignore[misc]
    hosts = {node.host for node in every}
    if spec.nodes is not None or host not in hosts or len(hosts) < 2:
        return None
    own = [node for node in every if node.host == host]
    for pool in run.plan.cluster.sides:
        there, asks = sum(node.pool == pool for node in own), getattr(spec, pool).nodes
        if there < asks:
            raise Unprocessable(f"job {spec.id}: {pool}.nodes: asks for {asks} nodes; {host} has {there} of this pool")
    return frozenset(node.name for node in own)
