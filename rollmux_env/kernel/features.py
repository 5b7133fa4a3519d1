"""What a learner sees of a decision, as numbers between -1 and 1.

They are read off the kernel's tables, so that the environments and a policy that scores the candidate table of a
`rollmux_env.cluster.state.State` see the same. A quantity without an upper end is given as x / (|x| + scale).

Columns of dollars from now on are of `rollmux_env.kernel.horizons`: until the members leave, discounted by exp(-t / horizon). Their
`unit` is the price of the job's own nodes, $/h, where one wants a place; where jobs may be moved, the mean of the running jobs, so
that rows compare. Where it is not known when jobs leave, they are expected to stay 24 h, and as long again as they have. Rows of
moves have the columns of places to `stretch`, the first job's, and those of dollars and work; the others are 0. An environment
without moves shows the columns of places alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.membership import departure_s, training_seconds
from rollmux_env.kernel.tables import TOLERANCE, Floats, GroupTable, Ints, JobTable, Limits

Out = NDArray[Any]  # of either float type

JOB_FEATURES = (
    "rollout_share",  # rollout seconds over T_solo
    "training_share",  # training seconds over T_solo
    "sync_share",  # sync seconds over T_solo
    "solo",  # T_solo, scale 600 s
    "tolerance",  # 1 - 1 / slo
    "rollout_nodes",  # asked for, scale 4
    "training_nodes",  # asked for, scale 4
    "rollout_memory",  # host memory over a rollout node's
    "training_memory",  # host memory over a training node's
    "stay",  # hours that it would stay alone, scale 24; known stays only
)
PLACE_FEATURES = (
    "is_row",  # 1; padding is 0 throughout
    "price",  # what it adds to the cluster's $/h, less what a move frees, over the price of the job's own nodes
    "new_nodes",  # rollout nodes to add over those asked for
    "new_group",  # 1 for a group of its own
    "stretch",  # 1 - T_solo / period: how much longer the job's iterations are than alone
    "slack",  # 1 - period / limit, over the members and the job; below 0 an SLO is broken
    "harm",  # 1 - period now / period then of the group
    "members",  # with the job, over max_group_size
    "saturated",  # 1 where T_load >= T_cycle without the job
    "training_load",  # training seconds of a meta-iteration over the period
    "node_load",  # rollout seconds on the fullest of the job's nodes over the period
    "rollout_load",  # rollout seconds over the period, mean of the group's nodes
    "rollout_memory",  # fullest of the job's nodes, over a node's memory
    "training_memory",  # over a node's memory
    "packing",  # the group's $/h over the price of its members' own nodes, with the job
    "age",  # hours since the members were admitted, mean, scale 24
    "longest",  # hours until the last member leaves at the present period, scale 24; known stays only
    "shortest",  # hours until the first one leaves, likewise
    "outlives",  # the job's remaining hours over the sum of them and `longest`; known stays only
)
VALUE_FEATURES = (
    "before_1h",  # what the groups concerned cost from now on without it, at that horizon, over `unit` times it, scale 1
    "before_4h",
    "before_24h",
    "more_1h",  # what they cost more with it, likewise; negative where a move saves
    "more_4h",
    "more_24h",
    "work_1h",  # what the work done is worth more with it, at the present price of a work-hour, likewise
    "work_4h",
    "work_24h",
)
CANDIDATE_FEATURES = PLACE_FEATURES + VALUE_FEATURES
MOVE_FEATURES = (
    "gain",  # the order of the rows: what is saved at the shortest horizon, less the price of the move, over `unit`, scale 1
    "held",  # the price of the move: the nodes that are left, until the pauses end, over `unit`, scale 1
    "moved",  # jobs that move, over the most that a row moves
    "is_move",  # 1 for a single move, and likewise
    "is_exchange",
    "is_merger",
    "leaves_members",  # members of the group that the first one leaves, over max_group_size
    "now_stretch",  # 1 - T_solo / period where the first one is
    "solo",  # of the first job that moves, as in the job's features
    "rollout_share",
    "tolerance",
    "rollout_nodes",
    "remaining",  # hours until it leaves at the present period, scale 24; known stays only
)
CLUSTER_FEATURES = (
    "consolidate",  # 1 where jobs may be moved, 0 where one wants a place
    "running",  # jobs, scale 16
    "waiting",  # jobs, scale 16
    "groups",  # scale 16
    "rollout_nodes",  # provisioned: over max_nodes; scale 16 without a limit
    "training_nodes",  # likewise
    "packing",  # $/h over the price of the running jobs' own nodes
    "rollout_load",  # node-seconds of rollouts over those provisioned, as planned
    "training_load",  # likewise
    "age",  # hours since the jobs were admitted, mean, scale 24
    "hours",  # since the first arrival, scale 168
)


@uncounted
def squash(x: float, scale: float) -> float:
    return x / (x + scale)


@uncounted
def signed(x: float) -> float:
    return x / (1.0 + abs(x))


@uncounted
def unit(x: float) -> float:
    return min(1.0, max(-1.0, x))


@uncounted
def share(part: float, whole: float) -> float:
    """part / whole between -1 and 1; 0 where the whole is nothing or without end."""
    return unit(part / whole) if 0.0 < whole < np.inf else 0.0


@uncounted
def own_usd(jobs: JobTable, limits: Limits, job: int) -> float:
    """Price of the nodes that a job asks for, $/h."""
    return float(jobs.rollout_nodes[job] * limits.rollout_usd + jobs.training_nodes[job] * limits.training_usd)


@uncounted
def job_features(jobs: JobTable, limits: Limits, job: int, stay_s: float, out: Out) -> None:
    """Write `JOB_FEATURES` of a job row.

    Args:
        stay_s: seconds that it would stay alone; 0 where that is not known.
    """
    solo = jobs.solo_s[job]
    out[0] = jobs.rollout_s[job] / solo
    out[1] = jobs.training_s[job] / solo
    out[2] = jobs.sync_s[job] / solo
    out[3] = squash(solo, 600.0)
    out[4] = 1.0 - solo / jobs.limit_s[job]
    out[5] = squash(jobs.rollout_nodes[job], 4.0)
    out[6] = squash(jobs.training_nodes[job], 4.0)
    out[7] = share(jobs.rollout_gb[job], limits.rollout_node_gb)
    out[8] = share(jobs.training_gb[job], limits.training_node_gb)
    out[9] = squash(stay_s / 3600.0, 24.0)


@uncounted
def cluster_features(
    jobs: JobTable,
    groups: GroupTable,
    order: Ints,
    limits: Limits,
    now_s: float,
    first_s: float,
    rollout_nodes: int,
    training_nodes: int,
    waiting: int,
    consolidate: bool,
    out: Out,
) -> None:
    """Write `CLUSTER_FEATURES`.

    Args:
        order: rows of the present groups. rollout_nodes, training_nodes: provisioned nodes. waiting: jobs in the queue.
        first_s: time of the first arrival.
    """
    running = 0
    alone_usd = 0.0
    aged_s = 0.0
    rollout_load = 0.0
    training_load = 0.0
    for k in range(order.shape[0]):
        group = order[k]
        period = groups.period_s[group]
        for i in range(groups.n_members[group]):
            job = groups.members[group, i]
            alone_usd += own_usd(jobs, limits, job)
            aged_s += now_s - jobs.admitted_s[job]
        running += groups.n_members[group]
        load = 0.0
        for v in range(groups.n_nodes[group]):
            load += groups.node_load_s[group, v]
        rollout_load += load / period
        training_load += groups.training_load_s[group] * groups.training_nodes[group] / period
    usd = rollout_nodes * limits.rollout_usd + training_nodes * limits.training_usd
    out[0] = 1.0 if consolidate else 0.0
    out[1] = squash(running, 16.0)
    out[2] = squash(waiting, 16.0)
    out[3] = squash(order.shape[0], 16.0)
    unlimited = limits.rollout_nodes_max == np.inf
    out[4] = squash(rollout_nodes, 16.0) if unlimited else share(rollout_nodes, limits.rollout_nodes_max)
    unlimited = limits.training_nodes_max == np.inf
    out[5] = squash(training_nodes, 16.0) if unlimited else share(training_nodes, limits.training_nodes_max)
    out[6] = share(usd, alone_usd)
    out[7] = share(rollout_load, rollout_nodes)
    out[8] = share(training_load, training_nodes)
    out[9] = squash(aged_s / 3600.0 / max(running, 1), 24.0)
    out[10] = squash((now_s - first_s) / 3600.0, 168.0)


N_PARTS = 14


@uncounted
def shared_features(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    now_s: float,
    known_stays: bool,
    stay_s: float,
    job: int,
    group: int,
    parts: Floats,
) -> None:
    """What all candidates of a waiting job in one group have in common.

    Args:
        known_stays: whether it is known when jobs leave. stay_s: seconds that the job would stay alone.
        group: row, negative for a new one.
        parts: (N_PARTS,) out: for `candidate_features`.
    """
    alone_usd = own_usd(jobs, limits, job)
    remaining_h = stay_s / 3600.0 if known_stays else 0.0
    limit = jobs.limit_s[job]
    training_gb = jobs.training_gb[job]
    rollout_load = jobs.rollout_nodes[job] * jobs.rollout_s[job]
    members_usd = alone_usd
    members = 1
    age_h = longest_h = shortest_h = 0.0
    saturated = False
    if group < 0:
        pool = jobs.training_nodes[job]
        training_load = jobs.training_s[job]
        period = 0.0
    else:
        pool = groups.training_nodes[group]
        training_load = groups.training_load_s[group] + training_seconds(jobs, job, pool)
        training_gb += groups.training_gb[group]
        limit = min(limit, groups.limit_s[group])
        period = groups.period_s[group]
        saturated = groups.load_s[group] >= groups.cycle_s[group] * (1.0 - TOLERANCE)
        for v in range(groups.n_nodes[group]):
            rollout_load += groups.node_load_s[group, v]
        n = groups.n_members[group]
        members += n
        aged_s = 0.0
        shortest_h = np.inf if known_stays else 0.0
        for i in range(n):
            member = groups.members[group, i]
            members_usd += own_usd(jobs, limits, member)
            aged_s += now_s - jobs.admitted_s[member]
            if known_stays:
                hours = max(0.0, departure_s(jobs, groups, member) - now_s) / 3600.0
                longest_h = max(longest_h, hours)
                shortest_h = min(shortest_h, hours)
        age_h = aged_s / 3600.0 / n
    parts[0] = 1.0 / limit
    parts[1] = 1.0 / alone_usd if alone_usd > 0.0 else 0.0
    parts[2] = 1.0 / members_usd if members_usd > 0.0 else 0.0
    parts[3] = training_load
    parts[4] = rollout_load
    parts[5] = period
    parts[6] = pool * limits.training_usd
    parts[7] = members / limits.group_size_max
    parts[8] = 1.0 if saturated else 0.0
    parts[9] = share(training_gb, limits.training_node_gb)
    parts[10] = squash(age_h, 24.0)
    parts[11] = squash(longest_h, 24.0)
    parts[12] = squash(shortest_h, 24.0)
    parts[13] = share(remaining_h, remaining_h + longest_h)


@uncounted
def candidate_features(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    job: int,
    group: int,
    new_nodes: int,
    nodes: Ints,
    usd: float,
    period: float,
    parts: Floats,
    out: Out,
) -> None:
    """Write `PLACE_FEATURES` of a waiting job's candidate.

    Args:
        group, new_nodes, nodes, period: the candidate's row, seconds. usd: what it adds, $/h.
        parts: what `shared_features` gives for the job and the group.
    """
    node_gb = jobs.rollout_gb[job]
    node_load = jobs.rollout_s[job]
    asked = jobs.rollout_nodes[job]
    n_nodes = new_nodes
    if group >= 0:
        present = groups.n_nodes[group]
        n_nodes += present
        at = 0
        for v in range(present):
            if at < nodes.shape[0] and nodes[at] == groups.node_number[group, v]:
                at += 1
                node_gb = max(node_gb, groups.node_gb[group, v] + jobs.rollout_gb[job])
                node_load = max(node_load, groups.node_load_s[group, v] + jobs.rollout_s[job])
    new = group < 0
    per_period = 1.0 / period
    out[0] = 1.0
    out[1] = unit(usd * parts[1])
    out[2] = new_nodes / asked
    out[3] = 1.0 if new else 0.0
    out[4] = 1.0 - jobs.solo_s[job] * per_period
    out[5] = unit(1.0 - period * parts[0])
    out[6] = 0.0 if new else 1.0 - parts[5] * per_period
    out[7] = parts[7]
    out[8] = parts[8]
    out[9] = parts[3] * per_period
    out[10] = node_load * per_period
    out[11] = parts[4] * per_period / n_nodes
    out[12] = share(node_gb, limits.rollout_node_gb)
    out[13] = parts[9]
    out[14] = unit((n_nodes * limits.rollout_usd + parts[6]) * parts[2])
    out[15] = parts[10]
    out[16] = parts[11]
    out[17] = parts[12]
    out[18] = parts[13]
