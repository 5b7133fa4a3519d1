"""Joining and leaving a group: the only code that writes the job and group tables.

A group's columns are recomputed from its members at every change, so they never drift and do not depend on the path taken.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.period import exact_period
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, GroupTable, Ints, JobTable


@uncounted
def training_seconds(jobs: JobTable, job: int, nodes: int) -> float:
    """Worst-case training seconds of a job row on a pool of `nodes` training nodes."""
    seconds = jobs.training_s[job]
    for k in range(jobs.rescale_nodes.shape[1]):
        if jobs.rescale_nodes[job, k] > nodes:
            break
        seconds = jobs.rescale_s[job, k]
    return float(seconds)


@uncounted
def node_positions(jobs: JobTable, groups: GroupTable, job: int, group: int, pinned: Ints) -> None:
    """Write into `pinned` (>= N,) 1 at the positions of the group's rollout nodes that the job is pinned to, else 0."""
    at = 0
    for v in range(groups.n_nodes[group]):
        pinned[v] = 0
        if at < jobs.n_pins[job] and jobs.pins[job, at] == groups.node_number[group, v]:
            pinned[v] = 1
            at += 1


@uncounted
def departure_s(jobs: JobTable, groups: GroupTable, job: int) -> float:
    """When a running job leaves at its group's present period."""
    group = jobs.group[job]
    runs_from = max(groups.since_s[group], jobs.paused_until_s[job])
    return float(min(jobs.leaves_s[job], runs_from + (jobs.iterations[job] - jobs.done[job]) * groups.period_s[group]))


@uncounted
def may_pause(stayed_s: float, pause_s: float, limit_s: float, done: float) -> bool:
    """Whether a running job would still meet its SLO on average if it left when the pause of a move ends.

    Args:
        stayed_s: since its admission, seconds. limit_s: longest period that keeps its SLO. done: iterations, with fractions.
    """
    return bool(stayed_s + pause_s <= limit_s * done * (1.0 + TOLERANCE))


@uncounted
def _load_nodes(jobs: JobTable, groups: GroupTable, group: int) -> None:
    """Sum rollout seconds and memory on a group's rollout nodes over its members."""
    n_nodes = groups.n_nodes[group]
    for v in range(n_nodes):
        groups.node_load_s[group, v] = 0.0
        groups.node_gb[group, v] = 0.0
    for i in range(groups.n_members[group]):
        job = groups.members[group, i]
        at = 0
        for v in range(n_nodes):
            if at < jobs.n_pins[job] and jobs.pins[job, at] == groups.node_number[group, v]:
                at += 1
                groups.node_load_s[group, v] += jobs.placed_rollout_s[job]
                groups.node_gb[group, v] += jobs.rollout_gb[job]


@uncounted
def refresh(jobs: JobTable, groups: GroupTable, group: int) -> None:
    """Recompute every derived column of a group row from its members and rollout nodes."""
    n = groups.n_members[group]
    n_nodes = groups.n_nodes[group]
    _load_nodes(jobs, groups, group)
    training_load = 0.0
    training_gb = 0.0
    cycle = 0.0
    placed_cycle = 0.0
    limit = np.inf
    general = 0
    for i in range(n):
        job = groups.members[group, i]
        training_load += jobs.placed_training_s[job]
        training_gb += jobs.training_gb[job]
        cycle = max(cycle, jobs.solo_s[job])
        placed_cycle = max(placed_cycle, jobs.placed_rollout_s[job] + jobs.placed_training_s[job] + jobs.placed_sync_s[job])
        limit = min(limit, jobs.limit_s[job])
        if jobs.n_pins[job] > 1 or jobs.placed_sync_s[job] > 0.0:
            general = 1
    load = training_load
    for v in range(n_nodes):
        load = max(load, groups.node_load_s[group, v])
        groups.node_before[group, v] = -1
    groups.training_load_s[group] = training_load
    groups.training_gb[group] = training_gb
    groups.cycle_s[group] = cycle
    groups.load_s[group] = load
    groups.limit_s[group] = limit
    groups.general[group] = general
    groups.period_s[group] = max(placed_cycle, load)
    if general:  # else no two nodes have the same pinned members, and the period is the larger of cycles and loads
        _refresh_pins(jobs, groups, group)
    groups.departs_s[group] = np.inf
    for i in range(n):
        groups.departs_s[group] = min(groups.departs_s[group], departure_s(jobs, groups, groups.members[group, i]))


@compiled
def _refresh_pins(jobs: JobTable, groups: GroupTable, group: int) -> None:
    """Recompute what depends on who shares which node: `node_before`, and the period."""
    n = groups.n_members[group]
    n_nodes = groups.n_nodes[group]
    pinned = np.zeros((n, n_nodes), np.int64)
    phases = np.empty((3, n))
    for i in range(n):
        job = groups.members[group, i]
        phases[0, i] = jobs.placed_rollout_s[job]
        phases[1, i] = jobs.placed_training_s[job]
        phases[2, i] = jobs.placed_sync_s[job]
        node_positions(jobs, groups, job, group, pinned[i])
    for v in range(n_nodes):
        for w in range(v - 1, -1, -1):
            same = True
            for i in range(n):
                if pinned[i, v] != pinned[i, w]:
                    same = False
                    break
            if same:
                groups.node_before[group, v] = w
                break
    groups.period_s[group] = exact_period(phases[0], phases[1], phases[2], pinned, n, n_nodes, groups.period_s[group])


@uncounted
def settle(jobs: JobTable, groups: GroupTable, group: int, now_s: float) -> None:
    """Bring `done` of a group's members up to `now_s` at the present period; a paused member makes no progress."""
    period = groups.period_s[group]
    since = groups.since_s[group]
    for i in range(groups.n_members[group]):
        job = groups.members[group, i]
        ran = now_s - max(since, jobs.paused_until_s[job])
        if ran > 0.0:
            iterations = ran / period
            jobs.done[job] += iterations
            busy = iterations * jobs.placed_training_s[job]
            if groups.exclusive[group] != 0:
                busy += iterations * jobs.placed_rollout_s[job]
            jobs.training_busy_s[job] += busy * groups.training_nodes[group]
            jobs.rollout_busy_s[job] += iterations * jobs.placed_rollout_s[job] * jobs.n_pins[job]
    groups.since_s[group] = now_s


@uncounted
def open_group(groups: GroupTable, group: int, number: int, training_nodes: int, now_s: float) -> None:
    """Make an empty group of a free row."""
    groups.id[group] = number
    groups.n_members[group] = 0
    groups.n_nodes[group] = 0
    groups.next_number[group] = 0
    groups.training_nodes[group] = training_nodes
    groups.exclusive[group] = 0
    groups.since_s[group] = now_s


@uncounted
def attach(jobs: JobTable, groups: GroupTable, job: int, group: int, numbers: Ints, new_nodes: int) -> None:
    """Make a job the last member of a settled group.

    Args:
        numbers: existing rollout nodes of the group that it is pinned to, ascending.
        new_nodes: rollout nodes that are added for it.
    """
    for k in range(numbers.shape[0]):
        jobs.pins[job, k] = numbers[k]
    for k in range(new_nodes):
        number = groups.next_number[group]
        groups.next_number[group] += 1
        groups.node_number[group, groups.n_nodes[group]] = number
        groups.n_nodes[group] += 1
        jobs.pins[job, numbers.shape[0] + k] = number
    jobs.n_pins[job] = numbers.shape[0] + new_nodes
    jobs.group[job] = group
    groups.members[group, groups.n_members[group]] = job
    groups.n_members[group] += 1
    replan(jobs, groups, job)


@uncounted
def replan(jobs: JobTable, groups: GroupTable, job: int) -> None:
    """Let a member's phases in its settled group take what its row says."""
    group = jobs.group[job]
    jobs.placed_rollout_s[job] = jobs.rollout_s[job]
    jobs.placed_training_s[job] = training_seconds(jobs, job, groups.training_nodes[group])
    jobs.placed_sync_s[job] = jobs.sync_s[job]
    refresh(jobs, groups, group)


@uncounted
def attach_colocated(jobs: JobTable, groups: GroupTable, job: int, group: int, rollout_s: float, training_s: float) -> None:
    """Give an empty group's training nodes to one job, which runs both phases there, one after the other, without sync."""
    groups.exclusive[group] = 1
    groups.members[group, 0] = job
    groups.n_members[group] = 1
    jobs.group[job] = group
    jobs.n_pins[job] = 0
    jobs.placed_rollout_s[job] = rollout_s
    jobs.placed_training_s[job] = training_s
    jobs.placed_sync_s[job] = 0.0
    refresh(jobs, groups, group)


@uncounted
def detach(jobs: JobTable, groups: GroupTable, job: int) -> int:
    """Take a job out of its settled group and drop the rollout nodes that no member is pinned to.

    Returns:
        How many rollout nodes were dropped.
    """
    group = jobs.group[job]
    kept = 0
    for i in range(groups.n_members[group]):
        if groups.members[group, i] != job:
            groups.members[group, kept] = groups.members[group, i]
            kept += 1
    groups.n_members[group] = kept
    jobs.group[job] = NOWHERE
    jobs.n_pins[job] = 0
    n_nodes = groups.n_nodes[group]
    _load_nodes(jobs, groups, group)
    left = 0
    for v in range(n_nodes):
        if groups.node_load_s[group, v] > 0.0:
            groups.node_number[group, left] = groups.node_number[group, v]
            left += 1
    groups.n_nodes[group] = left
    if kept > 0:
        refresh(jobs, groups, group)
    return int(n_nodes - left)
