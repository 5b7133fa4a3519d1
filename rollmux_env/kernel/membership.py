"""Joining and leaving a group: the only code that writes the job and group tables.

A group's columns are recomputed from its members at every change, so they never drift and do not depend on the path taken.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.period import PHASES, add_warm_starts, exact_period, load_bound, own_period, period_bound
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Floats, Ints, Limits, Records


@compiled(arrays=False)
def shape_row(record: Records, job: int, shape: int) -> int:
    """Return the row of a shape of the job in row `job`, whose record is given too."""
    return int(job if record.more_shapes == 0 else record.first_shape + shape)


@compiled(arrays=False)
def keeps_alone(job: Records) -> bool:
    """Return whether a job, a record, may run alone in a new group: always in shape 0, in another shape if its promise is kept."""
    limit = min(job.limit_s, job.enters_limit_s - job.enters_per_cold * job.cold_s)
    return bool(job.of_shape == 0 or job.alone_s <= limit * (1.0 + TOLERANCE))


@compiled(arrays=False)
def cycle_s(job: Records, rollout_s: float, training_s: float, sync_s: float) -> float:
    """Return the seconds of an iteration of a job, a record, alone on its nodes with these phases."""
    return float(own_period(rollout_s, training_s, sync_s, job.staleness))


@compiled(arrays=False)
def one_after_the_other(job: Records) -> bool:
    """Return whether a job, a record, is on-policy: it runs one phase at a time."""
    return bool(job.staleness == 0.0)


@compiled(arrays=False)
def training_seconds(jobs: Records, job: int, nodes: int) -> float:
    """Return the worst-case training seconds of a job row on a pool of `nodes` training nodes."""
    j = jobs[job]
    seconds = j.training_s
    for k in range(len(j.rescale_nodes)):
        if j.rescale_nodes[k] > nodes:
            break
        seconds = j.rescale_s[k]
    return float(seconds)


@compiled(arrays=False)
def node_positions(jobs: Records, groups: Records, job: int, group: int, pinned: Ints) -> None:
    """Write into `pinned` (>= N,) 1 at the positions of the group's rollout nodes that the job is pinned to, else 0."""
    j, g = jobs[job], groups[group]
    at = 0
    for v in range(g.n_nodes):
        pinned[v] = 0
        if at < j.n_pins and j.pins[at] == g.node_number[v]:
            pinned[v] = 1
            at += 1


@compiled(arrays=False)
def training_memory_fits(group: Records, job: Records, limits: Limits) -> bool:
    """Return whether the training nodes of a group have memory for one more job; both are records."""
    pool = limits.pools[group.training_pool]
    fits = group.training_gb + job.training_gb <= pool.node_gb * (1.0 + TOLERANCE)
    return bool(fits and group.training_device_gb + job.training_device_gb <= pool.device_gb * (1.0 + TOLERANCE))


@compiled(arrays=False)
def rollout_memory_fits(group: Records, node: int, job: Records, limits: Limits) -> bool:
    """Return whether the rollout node at a position of a group has memory for one more job."""
    pool = limits.pools[group.rollout_pool]
    fits = group.node_gb[node] + job.rollout_gb <= pool.node_gb * (1.0 + TOLERANCE)
    return bool(fits and group.node_device_gb[node] + job.rollout_device_gb <= pool.device_gb * (1.0 + TOLERANCE))


@compiled(arrays=False)
def memory_kept(group: Records, limits: Limits) -> bool:
    """Return whether every node of a group has enough memory for its members."""
    rollout, training = limits.pools[group.rollout_pool], limits.pools[group.training_pool]
    fits = group.training_gb <= training.node_gb * (1.0 + TOLERANCE)
    fits = fits and group.training_device_gb <= training.device_gb * (1.0 + TOLERANCE)
    for v in range(group.n_nodes):
        fits = fits and group.node_gb[v] <= rollout.node_gb * (1.0 + TOLERANCE)
        fits = fits and group.node_device_gb[v] <= rollout.device_gb * (1.0 + TOLERANCE)
    return bool(fits)


@compiled(arrays=False)
def leaves_group_s(job: Records, group: Records) -> float:
    """Return the time at which a running job leaves at the present period of a group; both are records."""
    runs_from = max(group.settled_s, job.paused_until_s)
    return float(min(job.leaves_s, runs_from + (job.iterations - job.done) * group.period_s))


@compiled(arrays=False)
def departure_s(jobs: Records, groups: Records, job: int) -> float:
    """Return the time at which a running job leaves at its group's present period."""
    j = jobs[job]
    return float(leaves_group_s(j, groups[j.group]))


@compiled(arrays=False)
def may_pause(stayed_s: float, pause_s: float, limit_s: float, done: float) -> bool:
    """Return whether a running job would still meet its SLO on average if it left when the pause of a move ends.

    Args:
        stayed_s: Time since its admission, seconds.
        pause_s: Pause of the move, seconds.
        limit_s: Longest period that keeps its SLO, seconds.
        done: Iterations done, with fractions.
    """
    return bool(stayed_s + pause_s <= limit_s * done * (1.0 + TOLERANCE))


@compiled(arrays=False)
def _load_nodes(jobs: Records, groups: Records, group: int) -> None:
    """Sum rollout seconds and memory on a group's rollout nodes over its members."""
    g = groups[group]
    n_nodes = g.n_nodes
    for v in range(n_nodes):
        g.node_load_s[v] = 0.0
        g.node_gb[v] = 0.0
        g.node_device_gb[v] = 0.0
    for i in range(g.n_members):
        job = g.members[i]
        j = jobs[job]
        at = 0
        for v in range(n_nodes):
            if at < j.n_pins and j.pins[at] == g.node_number[v]:
                at += 1
                g.node_load_s[v] += j.placed_rollout_s
                g.node_gb[v] += j.rollout_gb
                g.node_device_gb[v] += j.rollout_device_gb


@compiled(arrays=False)
def promised_limit(member: Records, cold_s: float) -> float:
    """Return the longest period of its group that keeps a member's promise, with `cold_s` seconds of cold starts ahead."""
    if member.is_tentative != 0:
        return float(min(member.limit_s, member.enters_limit_s - member.enters_per_cold * cold_s))
    return float(min(member.limit_s, member.stays_limit_s - member.stays_per_cold * cold_s))


@compiled(arrays=False, inline=True)
def entry_limit(jobs: Records, job: Records, group: Records, new_nodes: int) -> float:
    """Return the longest period of a group after a job has entered it, at which it and the members keep their promises, or 0.

    Args:
        jobs: (J,) job table.
        job: Record of the job.
        group: Record of the group.
        new_nodes: Rollout nodes that are added for the job; it has no state on these, so it cannot enter warm.
    """
    cold = 0.0 if new_nodes == 0 and job.warm_group == group.id else job.cold_s
    coming = group.coming_cold_s + cold
    limit = min(group.joined_limit_s, min(job.limit_s, job.enters_limit_s - job.enters_per_cold * coming))
    if cold > 0.0 and group.joined_per_cold > 0.0:
        for i in range(group.n_members):
            limit = min(limit, promised_limit(jobs[group.members[i]], coming))
    return float(max(0.0, limit))


@compiled(arrays=False)
def refresh_promises(jobs: Records, group: Records) -> None:
    """Recompute the limits for entering a group, a record; see `rollmux_env.kernel.promises`."""
    tentative_members = 0
    cold = 0.0
    for i in range(group.n_members):
        j = jobs[group.members[i]]
        tentative_members += j.is_tentative
        cold += j.cold_s if j.is_tentative != 0 else j.coming_cold_s
    limit = np.inf
    per_cold = 0.0
    for i in range(group.n_members):
        j = jobs[group.members[i]]
        limit = min(limit, promised_limit(j, cold))
        per_cold = max(per_cold, j.enters_per_cold if j.is_tentative != 0 else j.stays_per_cold)
    group.tentative_members = tentative_members
    group.coming_cold_s = cold
    group.joined_limit_s = limit
    group.joined_per_cold = per_cold


@compiled(arrays=False)
def refresh(jobs: Records, groups: Records, group: int) -> None:
    """Recompute every derived column of a group row from its members and rollout nodes."""
    g = groups[group]
    n = g.n_members
    n_nodes = g.n_nodes
    _load_nodes(jobs, groups, group)
    training_load = 0.0
    training_gb = 0.0
    training_device_gb = 0.0
    cycle = 0.0
    placed_cycle = 0.0
    limit = np.inf
    warm = 0.0
    general = 0
    for i in range(n):
        job = g.members[i]
        j = jobs[job]
        training_load += j.placed_training_s
        training_gb += j.training_gb
        training_device_gb += j.training_device_gb
        cycle = max(cycle, j.alone_s)
        placed_cycle = max(placed_cycle, cycle_s(j, j.placed_rollout_s, j.placed_training_s, j.placed_sync_s))
        limit = min(limit, j.limit_s)
        warm = max(warm, max(j.rollout_warm_s, j.training_warm_s))
        if j.n_pins > 1 or j.placed_sync_s > 0.0:
            general = 1
    load = training_load
    for v in range(n_nodes):
        load = max(load, g.node_load_s[v])
        g.node_before[v] = -1
    g.training_load_s = training_load
    g.training_gb = training_gb
    g.training_device_gb = training_device_gb
    g.cycle_s = cycle
    g.load_s = load
    g.limit_s = limit
    g.warm_s = warm
    refresh_promises(jobs, g)
    g.general = general
    g.period_s = max(placed_cycle, load)
    if general or warm > 0.0:  # else no two nodes have the same pinned members, and the period is the larger of cycles and loads
        _refresh_pins(jobs, groups, group)
    g.departs_s = np.inf
    g.work_rate = 0.0
    for i in range(n):
        g.departs_s = min(g.departs_s, leaves_group_s(jobs[g.members[i]], g))  # of a copy, it is at another row than the job says
        g.work_rate += jobs[g.members[i]].solo_s / g.period_s


@compiled(arrays=False)
def write_phases(job: Records, rollout_s: float, training_s: float, sync_s: float, phases: Floats, i: int) -> None:
    """Write such phases of a job, a record, into column `i`, as `rollmux_env.kernel.period` has them."""
    phases[0, i], phases[1, i], phases[2, i] = rollout_s, training_s, sync_s
    phases[3, i], phases[4, i], phases[5, i] = job.staleness, job.rollout_warm_s, job.training_warm_s


@compiled(arrays=False)
def write_member(jobs: Records, groups: Records, group: int, i: int, phases: Floats, pinned: Ints) -> None:
    """Write the phases and the pins of a group's member in its place."""
    row = groups[group].members[i]
    j = jobs[row]
    write_phases(j, j.placed_rollout_s, j.placed_training_s, j.placed_sync_s, phases, i)
    node_positions(jobs, groups, row, group, pinned[i])


@compiled
def _refresh_pins(jobs: Records, groups: Records, group: int) -> None:
    """Recompute what depends on who shares which node: `node_before`, and the period."""
    g = groups[group]
    n = g.n_members
    n_nodes = g.n_nodes
    pinned = np.zeros((n, n_nodes), np.int64)
    phases = np.empty((PHASES, n))
    for i in range(n):
        write_member(jobs, groups, group, i, phases, pinned)
    for v in range(n_nodes):
        for w in range(v - 1, -1, -1):
            same = True
            for i in range(n):
                if pinned[i, v] != pinned[i, w]:
                    same = False
                    break
            if same:
                g.node_before[v] = w
                break
    if g.warm_s > 0.0:
        add_warm_starts(phases, pinned, n, n_nodes)
        g.load_s = load_bound(phases, pinned, n, n_nodes)
        g.period_s = period_bound(phases, pinned, n, n_nodes)
    g.period_s = exact_period(phases, pinned, n, n_nodes, g.period_s)


@compiled(arrays=False)
def settle(jobs: Records, groups: Records, group: int, now_s: float) -> None:
    """Update `done` of a group's members to `now_s` at the present period; a paused member makes no progress."""
    g = groups[group]
    period = g.period_s
    since = g.settled_s
    for i in range(g.n_members):
        job = g.members[i]
        j = jobs[job]
        ran = now_s - max(since, j.paused_until_s)
        if ran > 0.0:
            iterations = ran / period
            j.done += iterations
            busy = iterations * j.placed_training_s
            if g.exclusive != 0:
                busy += iterations * j.placed_rollout_s
            j.training_busy_s += busy * g.training_nodes
            j.rollout_busy_s += iterations * j.placed_rollout_s * j.n_pins
    g.settled_s = now_s


@compiled(arrays=False)
def set_shape(jobs: Records, job: int, shape: int) -> None:
    """Write the figures of a shape into the row of a job without a place."""
    j = jobs[job]
    if j.more_shapes <= 0:
        return
    other = jobs[j.first_shape + shape]
    j.rollout_s, j.training_s, j.sync_s, j.alone_s = other.rollout_s, other.training_s, other.sync_s, other.alone_s
    j.rollout_warm_s, j.training_warm_s, j.cold_s = other.rollout_warm_s, other.training_warm_s, other.cold_s
    j.rollout_gb, j.training_gb = other.rollout_gb, other.training_gb
    j.rollout_device_gb, j.training_device_gb = other.rollout_device_gb, other.training_device_gb
    j.rollout_pool, j.training_pool = other.rollout_pool, other.training_pool
    j.rollout_nodes, j.training_nodes = other.rollout_nodes, other.training_nodes
    for k in range(len(j.rescale_nodes)):
        j.rescale_nodes[k] = other.rescale_nodes[k]
        j.rescale_s[k] = other.rescale_s[k]
    j.of_shape = shape


@compiled(arrays=False)
def open_group(groups: Records, group: int, number: int, first: Records, training_nodes: int, now_s: float) -> None:
    """Make an empty group of a free row, on the pools of the record of its future first member."""
    g = groups[group]
    g.rollout_pool = first.rollout_pool
    g.training_pool = first.training_pool
    g.id = number
    g.n_members = 0
    g.n_nodes = 0
    g.next_number = 0
    g.training_nodes = training_nodes
    g.exclusive = 0
    g.settled_s = now_s


@compiled(arrays=False)
def attach(jobs: Records, groups: Records, job: int, group: int, kept_nodes: int, new_nodes: int) -> None:
    """Make a job the last member of a settled group.

    Args:
        jobs: (J,) job table.
        groups: (G,) group table.
        job: Row of the job.
        group: Row of the group.
        kept_nodes: Number of the group's rollout nodes that it is pinned to; their numbers come first in its `pins`, ascending.
        new_nodes: Rollout nodes that are added for it.
    """
    j = jobs[job]
    g = groups[group]
    for k in range(new_nodes):
        number = g.next_number
        g.next_number += 1
        g.node_number[g.n_nodes] = number
        g.n_nodes += 1
        j.pins[kept_nodes + k] = number
    j.n_pins = kept_nodes + new_nodes
    j.group = group
    g.members[g.n_members] = job
    g.n_members += 1
    replan(jobs, groups, job)


@compiled(arrays=False)
def place_tentatively(jobs: Records, groups: Records, job: int, group: int, shape: int, nodes: Ints, new_nodes: int) -> None:
    """Place a job that is in no group as a plan in progress proposes it; the job has not entered the place yet.

    Args:
        jobs: (J,) job table.
        groups: (G,) group table.
        job: Row of the job.
        group: Row of the group.
        shape: Number of the job's shape there.
        nodes: Numbers of the group's rollout nodes that it is pinned to, ascending; later entries are ignored.
        new_nodes: Rollout nodes that are added for it.
    """
    set_shape(jobs, job, shape)
    j = jobs[job]
    kept_nodes = j.rollout_nodes - new_nodes
    for k in range(kept_nodes):
        j.pins[k] = nodes[k]
    j.is_tentative = 1
    attach(jobs, groups, job, group, kept_nodes, new_nodes)


@compiled(arrays=False)
def replan(jobs: Records, groups: Records, job: int) -> None:
    """Set the phases of a member in its settled group to those of its row."""
    j = jobs[job]
    group = j.group
    j.placed_rollout_s = j.rollout_s
    j.placed_training_s = training_seconds(jobs, job, groups[group].training_nodes)
    j.placed_sync_s = j.sync_s
    refresh(jobs, groups, group)


@compiled(arrays=False)
def attach_colocated(jobs: Records, groups: Records, job: int, group: int, rollout_s: float, training_s: float) -> None:
    """Give an empty group's training nodes to one job, which runs both phases there, one after the other, without sync."""
    j = jobs[job]
    g = groups[group]
    g.exclusive = 1
    g.members[0] = job
    g.n_members = 1
    j.group = group
    j.n_pins = 0
    j.placed_rollout_s = rollout_s
    j.placed_training_s = training_s
    j.placed_sync_s = 0.0
    refresh(jobs, groups, group)


@compiled(arrays=False)
def detach(jobs: Records, groups: Records, job: int) -> int:
    """Take a job out of its settled group, drop the rollout nodes that no member is pinned to, and return their number."""
    return int(detach_for(jobs, groups, job, 0))


@compiled(arrays=False)
def detach_for(jobs: Records, groups: Records, job: int, staying: int) -> int:
    """Take a job out of its settled group, to which it will return in another shape, and keep some of its nodes.

    Args:
        jobs: (J,) job table.
        groups: (G,) group table.
        job: Row of the job.
        staying: Number of nodes that stay; their numbers are the first ones in its `pins`, ascending.

    Returns:
        The number of rollout nodes that were dropped.
    """
    j = jobs[job]
    group = j.group
    j.group = NOWHERE
    j.n_pins = 0
    return remove_member(jobs, groups, group, job, staying)


@compiled(arrays=False)
def remove_member(jobs: Records, groups: Records, group: int, job: int, staying: int) -> int:
    """Remove a member from a group, and leave the row of the job as it is; arguments and result as in `detach_for`."""
    g, pins = groups[group], jobs[job].pins
    count = 0
    for i in range(g.n_members):
        if g.members[i] != job:
            g.members[count] = g.members[i]
            count += 1
    g.n_members = count
    n_nodes = g.n_nodes
    _load_nodes(jobs, groups, group)
    left = 0
    at = 0
    for v in range(n_nodes):
        stays = g.node_load_s[v] > 0.0
        if at < staying and pins[at] == g.node_number[v]:
            at += 1
            stays = True
        if stays:
            g.node_number[left] = g.node_number[v]
            left += 1
    g.n_nodes = left
    if count > 0:
        refresh(jobs, groups, group)
    return int(n_nodes - left)
