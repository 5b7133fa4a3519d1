"""Invariants of a replay, asserted after every instant with `--check`.

An error message begins with the name of the broken invariant:

R1  no job is lost or doubled: every job that arrived waits, runs in exactly one group, or has departed; no group is too large
R2  the clock never runs back
R3  no node has more than a period's worth of phases in a period
R4  no node's residency is exceeded
R5  the nodes counted are the nodes of the groups and those held for moves
R6  every SLO is kept (policies with `keeps_slo`)
R7  no sample is older than its job's staleness when it is trained
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rollmux_env.cluster.demand import demand_of
from rollmux_env.cluster.group import Group
from rollmux_env.cluster.state import State
from rollmux_env.errors import InvariantError
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training


def check_state(state: State, arrived: int, keeps_slo: bool) -> None:
    """Assert R1 and R3 to R6.

    Args:
        state: State to check.
        arrived: Number of jobs that have arrived.
        keeps_slo: Whether R6 must hold.

    Raises:
        InvariantError: If an invariant is broken.
    """
    groups = state.group_list()
    running = [job_id for group in groups for job_id in group.jobs]
    present = running + state.waiting
    _require(len(set(present)) == len(present), "R1: a job is in two places")
    _require(len(present) + state.departed == arrived, f"R1: {len(present)} present + {state.departed} gone, {arrived} came")
    _check_pools(state, groups)
    for group in groups:
        jobs = [state.job(job_id) for job_id in group.jobs]
        _require(len(jobs) <= state.limits.group_size_max, f"R1: group {group.id} is too large")
        for job in jobs:
            own = demand_of(job, state.cluster, state.shape(job.id))
            same_pools = (own.rollout_pool, own.training_pool) == (group.rollout_pool, group.training_pool)
            _require(same_pools, f"R1: job {job.id} is in group {group.id}, on other pools")
        if not group.rollout_nodes and not state.cluster.one_device:
            continue  # co-located: both phases run in turn on the job's training nodes
        _check_training_nodes(state, group)
        for node in group.rollout_nodes:
            pinned = [state.phases(job.id).rollout for job in jobs if node in state.pins(job.id)]
            _require(bool(pinned), f"R5: no job is pinned to rollout node {node} of group {group.id}")
            _check_node(state, group, group.rollout_pool, sum(rollout.worst_case_s for rollout in pinned), pinned)
        for job in jobs:
            in_time = group.period_s <= job.slo * job.solo_s * (1 + 1e-9)
            _require(in_time or not keeps_slo, f"R6: job {job.id} breaks its SLO in group {group.id}")


def _check_pools(state: State, groups: Sequence[Group]) -> None:
    """Assert R5."""
    reserved = state.pauses.held_nodes().sum(axis=1).tolist()
    for number, (name, in_use) in enumerate(zip(state.cluster.pools, state.nodes.sum(axis=1).tolist(), strict=True)):
        count = sum(len(group.rollout_nodes) for group in groups if group.rollout_pool == name)
        count += sum(group.training_nodes for group in groups if group.training_pool == name) + reserved[number]
        _require(count == in_use, f"R5: {name} nodes lost or doubled")
        _require(count <= state.limits.pools["nodes_max"][number], f"R5: too many {name} nodes")


def _check_training_nodes(state: State, group: Group) -> None:
    """Assert R3 and R4 for training nodes. On one device they run both phases."""
    phases: list[Phase | Training] = [state.phases(job_id).training for job_id in group.jobs]
    load_s = sum(state.phases(job_id).training.seconds_on(group.training_nodes) for job_id in group.jobs)
    if state.cluster.one_device:
        phases += [state.phases(job_id).rollout for job_id in group.jobs]
        load_s = sum(sum(state.planned_s(job_id)[:2]) for job_id in group.jobs)
    _check_node(state, group, group.training_pool, load_s, phases)


def _check_node(state: State, group: Group, pool: str, load_s: float, phases: Sequence[Phase | Training]) -> None:
    """Assert R3 and R4 for one node with the phases that it runs in a period."""
    limits = state.limits.pools[[*state.cluster.pools].index(pool)]
    memory_gb, device_gb = sum(phase.host_memory_gb for phase in phases), sum(phase.device_gb for phase in phases)
    _require(load_s <= group.period_s * (1 + 1e-9), f"R3: group {group.id} asks too much of a node")
    _require(memory_gb <= limits["node_gb"] * (1 + 1e-9), f"R4: a node of group {group.id} holds {memory_gb:g} GB")
    _require(device_gb <= limits["device_gb"] * (1 + 1e-9), f"R4: a GPU of group {group.id} keeps {device_gb:g} GB")


def check_sample(job: Job, trained: int, sampled: int) -> None:
    """Assert R7.

    Args:
        job: Job whose training begins.
        trained: Version of the weights when the training begins.
        sampled: Version of the weights when its rollout began.

    Raises:
        InvariantError: If the sample is older than the job's staleness, or newer than the weights to be trained.
    """
    if not 0 <= trained - sampled <= job.staleness:
        raise InvariantError(f"R7: job {job.id} trains version {trained} on samples of {sampled}")


def check_clock(times_s: list[float]) -> None:
    """Assert R2.

    Args:
        times_s: Consecutive times, in seconds.

    Raises:
        InvariantError: If a time is before the preceding one.
    """
    for before, after in itertools.pairwise(times_s):
        _require(before <= after, f"R2: the clock ran back from {before} to {after}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
