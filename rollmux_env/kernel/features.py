"""Features of a decision, as numbers between -1 and 1.

They are computed from the kernel's tables, so the environments see the same features as a policy that scores the candidate table
of a `rollmux_env.cluster.state.State`. A quantity without an upper end is given as x / (|x| + scale).

Columns of future dollars are from `rollmux_env.kernel.valuation`: until the members leave, discounted by exp(-t / horizon), with t
and the horizon in hours. Their `unit` is the price of the job's own nodes, $/h, if a job waits for a place. If jobs may be moved,
it is the mean of the running jobs, so that rows can be compared. If it is not known when jobs leave, they are expected to stay 24
h, and as long again as they have stayed. Rows of moves have the columns of places up to `stretch`, those of the first job, and
those of dollars and work; the others are 0. An environment without moves shows the columns of places alone.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.candidates import is_saturated
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import departure_s, entry_limit, shape_row, training_seconds
from rollmux_env.kernel.neighbourhood import table
from rollmux_env.kernel.pools import nodes_of, own_usd, provisioned_usd, rollout_usd
from rollmux_env.kernel.tables import ROLLOUT, TRAINING, Floats, Ints, Limits, Records, View
from rollmux_env.kernel.valuation import HORIZONS_H, N_HORIZONS

Out = NDArray[Any]  # of either float type

JOB_FEATURES = (
    "rollout_share",  # rollout seconds over T_solo
    "training_share",  # training seconds over T_solo
    "sync_share",  # sync seconds over T_solo; the three can come to more than 1
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
    "price",  # increase of the cluster's $/h, less the nodes freed by a move, over the price of the job's own nodes
    "new_nodes",  # rollout nodes to add over those asked for
    "new_group",  # 1 for a new group
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
    "before_1h",  # future cost of the affected groups without it, at that horizon, over `unit` times the horizon, scale 1
    "before_4h",
    "before_24h",
    "more_1h",  # increase of that cost with it, on the same scale; negative if a move saves
    "more_4h",
    "more_24h",
    "work_1h",  # increase of the worth of the work with it, at the present price of a work-hour, on the same scale
    "work_4h",
    "work_24h",
)
CANDIDATE_FEATURES = PLACE_FEATURES + VALUE_FEATURES
MOVE_FEATURES = (
    "gain",  # the order of the rows: saving at the shortest horizon, less the price of the move, over `unit`, scale 1
    "held",  # the price of the move: the nodes that are left, until the pauses end, over `unit`, scale 1
    "moved",  # jobs that move, over the most that a row moves
    "is_move",  # 1 for a single move, and so for the next two
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
SHAPE_FEATURES = (  # where jobs have shapes: (a - b) / (a + b) of the row's shape and of the job as it is written
    "shape_rollout_nodes",  # asked for
    "shape_training_nodes",  # asked for
    "shape_alone",  # seconds of an iteration alone
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


def _columns(names: tuple[str, ...], first: int = 0) -> Any:
    """Return the positions of columns by name, from `first` on: constants of compiled code."""
    return namedtuple("Columns", names)(*range(first, first + len(names)))


JOB, PLACE, CLUSTER = _columns(JOB_FEATURES), _columns(PLACE_FEATURES), _columns(CLUSTER_FEATURES)
VALUE, MOVE = _columns(VALUE_FEATURES, len(PLACE_FEATURES)), _columns(MOVE_FEATURES, len(CANDIDATE_FEATURES))
_SHAPES_FROM = len(CANDIDATE_FEATURES + MOVE_FEATURES)  # a row of moves has those of shapes from there on


@compiled(arrays=False)
def squash(x: float, scale: float) -> float:
    """Map [0, inf) to [0, 1): `scale` to one half."""
    return x / (x + scale)


@compiled(arrays=False)
def signed(x: float) -> float:
    """Map all numbers to (-1, 1), 1 to one half."""
    return x / (1.0 + abs(x))


@compiled(arrays=False)
def unit(x: float) -> float:
    """Cut a number off at -1 and 1."""
    return min(1.0, max(-1.0, x))


@compiled(arrays=False)
def share(part: float, whole: float) -> float:
    """Return part / whole, clipped to -1 and 1; 0 if the whole is 0 or infinite."""
    return unit(part / whole) if 0.0 < whole < np.inf else 0.0


@compiled(arrays=False)
def job_features(job: Records, limits: Limits, stay_s: float, out: Out) -> None:
    """Write `JOB_FEATURES` of a job, a record.

    Args:
        job: Record of the job.
        limits: Limits of the cluster.
        stay_s: Seconds that the job would stay alone; 0 if not known.
        out: Row of features; written.
    """
    solo = job.solo_s
    out[JOB.rollout_share] = job.rollout_s / solo
    out[JOB.training_share] = job.training_s / solo
    out[JOB.sync_share] = min(1.0, job.sync_s / solo)
    out[JOB.solo] = squash(solo, 600.0)
    out[JOB.tolerance] = 1.0 - solo / job.limit_s
    out[JOB.rollout_nodes] = squash(job.rollout_nodes, 4.0)
    out[JOB.training_nodes] = squash(job.training_nodes, 4.0)
    out[JOB.rollout_memory] = share(job.rollout_gb, limits.pools[job.rollout_pool].node_gb)
    out[JOB.training_memory] = share(job.training_gb, limits.pools[job.training_pool].node_gb)
    out[JOB.stay] = squash(stay_s / 3600.0, 24.0)


@compiled(arrays=False)
def shape_features(view: View, job: int, out: Out, at: int) -> None:
    """Write `SHAPE_FEATURES` of a row of the job table, from column `at` on."""
    shaped = view.jobs[job]
    written = shaped if shaped.more_shapes == 0 else view.jobs[shaped.first_shape]
    out[at] = _more(shaped.rollout_nodes, written.rollout_nodes)
    out[at + 1] = _more(shaped.training_nodes, written.training_nodes)
    out[at + 2] = _more(shaped.alone_s, written.alone_s)


@compiled(arrays=False)
def _more(a: float, b: float) -> float:
    return (a - b) / (a + b) if a + b > 0.0 else 0.0


@compiled(arrays=False)
def cluster_features(view: View, first_s: float, consolidate: bool, out: Out) -> None:
    """Write `CLUSTER_FEATURES`.

    Args:
        view: Tables of the cluster.
        first_s: Time of the first arrival, seconds.
        consolidate: Whether jobs may be moved; else a job waits for a place.
        out: Row of features; written.
    """
    limits, clock = view.limits, view.clock
    running = 0
    alone_usd = 0.0
    aged_s = 0.0
    rollout_load = 0.0
    training_load = 0.0
    for k in range(len(view.order)):
        group = view.groups[view.order[k]]
        for i in range(group.n_members):
            job = view.jobs[group.members[i]]
            alone_usd += own_usd(job, limits)
            aged_s += clock.now_s - job.admitted_s
        running += group.n_members
        load = 0.0
        for v in range(group.n_nodes):
            load += group.node_load_s[v]
        rollout_load += load / group.period_s
        training_load += group.training_load_s * group.training_nodes / group.period_s
    usd = provisioned_usd(clock.nodes, limits)
    rollout_nodes, training_nodes = nodes_of(clock.nodes, ROLLOUT), nodes_of(clock.nodes, TRAINING)
    out[CLUSTER.consolidate] = 1.0 if consolidate else 0.0
    out[CLUSTER.running] = squash(running, 16.0)
    out[CLUSTER.waiting] = squash(clock.waiting, 16.0)
    out[CLUSTER.groups] = squash(len(view.order), 16.0)
    out[CLUSTER.rollout_nodes] = _provisioned(clock.nodes, ROLLOUT, limits)
    out[CLUSTER.training_nodes] = _provisioned(clock.nodes, TRAINING, limits)
    out[CLUSTER.packing] = share(usd, alone_usd)
    out[CLUSTER.rollout_load] = share(rollout_load, rollout_nodes)
    out[CLUSTER.training_load] = share(training_load, training_nodes)
    out[CLUSTER.age] = squash(aged_s / 3600.0 / max(running, 1), 24.0)
    out[CLUSTER.hours] = squash((clock.now_s - first_s) / 3600.0, 168.0)


@compiled(arrays=False)
def _provisioned(nodes: Ints, side: int, limits: Limits) -> float:
    """Return the nodes on one side over the maximum of their pools."""
    count = 0
    most = 0.0
    for p in range(len(nodes)):
        if nodes[p, side] > 0:
            count += nodes[p, side]
            most += limits.pools[p].nodes_max
    return squash(count, 16.0) if most == np.inf else share(count, most)


_COLUMNS_OF_ALL = ("members", "saturated", "training_memory", "age", "longest", "shortest", "outlives")
SHARED = np.dtype(
    [
        ("group", "i8"),  # row of the group; row: of the job, or of its shape
        ("row", "i8"),
        ("stay_s", "f8"),  # seconds that the job would stay alone; 0 where that is not known
        ("per_limit", "f8"),  # 1 / s
        ("per_own_usd", "f8"),  # 1 / price of the job's own nodes
        ("per_members_usd", "f8"),  # 1 / price of the members' own nodes, with the job
        ("training_s", "f8"),  # of a meta-iteration, with the job
        ("rollout_s", "f8"),  # of a meta-iteration, over all nodes, with the job
        ("period_s", "f8"),  # without the job; 0 of a new group
        ("pool_usd", "f8"),  # price of the training pool, $/h
        *((name, "f8") for name in _COLUMNS_OF_ALL),  # as they are shown
    ]
)


@compiled(arrays=False)
def shared_features(view: View, known_stays: bool, job: int, group: int, shared: Records) -> None:
    """Compute what all candidates of a waiting job in one group and shape have in common.

    Args:
        view: Tables of the cluster.
        known_stays: Whether it is known when jobs leave.
        job: Row of the job, or of one of its shapes.
        group: Row of the group, negative for a new one.
        shared: Record of `SHARED` with its `stay_s`; the rest is written.
    """
    asks, limits, now_s = view.jobs[job], view.limits, view.clock.now_s
    written = asks if asks.more_shapes == 0 else view.jobs[asks.first_shape]
    alone_usd = own_usd(written, limits)
    remaining_h = shared.stay_s / 3600.0
    limit = asks.limit_s
    training_gb = asks.training_gb
    rollout_load = asks.rollout_nodes * asks.rollout_s
    members_usd = alone_usd
    members = 1
    age_h = longest_h = shortest_h = 0.0
    saturated = False
    if group < 0:
        pool = asks.training_nodes
        training_load = asks.training_s
        period = 0.0
    else:
        g = view.groups[group]
        pool = g.training_nodes
        training_load = g.training_load_s + training_seconds(view.jobs, job, pool)
        training_gb += g.training_gb
        limit = entry_limit(view.jobs, asks, g, 0)
        period = g.period_s
        saturated = is_saturated(g)
        for v in range(g.n_nodes):
            rollout_load += g.node_load_s[v]
        n = g.n_members
        members += n
        aged_s = 0.0
        shortest_h = np.inf if known_stays else 0.0
        for i in range(n):
            member = view.jobs[g.members[i]]
            members_usd += own_usd(member, limits)
            aged_s += now_s - member.admitted_s
            if known_stays:
                hours = max(0.0, departure_s(view.jobs, view.groups, g.members[i]) - now_s) / 3600.0
                longest_h = max(longest_h, hours)
                shortest_h = min(shortest_h, hours)
        age_h = aged_s / 3600.0 / n
    shared.group, shared.row = group, job
    shared.per_limit = 1.0 / limit
    shared.per_own_usd = 1.0 / alone_usd if alone_usd > 0.0 else 0.0
    shared.per_members_usd = 1.0 / members_usd if members_usd > 0.0 else 0.0
    shared.training_s = training_load
    shared.rollout_s = rollout_load
    shared.period_s = period
    shared.pool_usd = pool * limits.pools[asks.training_pool].usd
    shared.members = members / limits.group_size_max
    shared.saturated = 1.0 if saturated else 0.0
    shared.training_memory = share(training_gb, limits.pools[asks.training_pool].node_gb)
    shared.age = squash(age_h, 24.0)
    shared.longest = squash(longest_h, 24.0)
    shared.shortest = squash(shortest_h, 24.0)
    shared.outlives = share(remaining_h, remaining_h + longest_h)


@compiled(arrays=False)
def candidate_features(view: View, job: int, place: Records, shared: Records, out: Out) -> None:
    """Write `PLACE_FEATURES` of a waiting job's candidate.

    Args:
        view: Tables of the cluster.
        job: Row of the job, or of one of its shapes.
        place: Record of `rollmux_env.kernel.candidates.candidate_type`.
        shared: Result of `shared_features` for the job and the group.
        out: Row of features; written.
    """
    asks, limits, group = view.jobs[job], view.limits, place.group
    node_gb = asks.rollout_gb
    node_load = asks.rollout_s
    n_nodes = place.new_nodes
    if group >= 0:
        g = view.groups[group]
        n_nodes += g.n_nodes
        at = 0
        for v in range(g.n_nodes):
            if at < len(place.nodes) and place.nodes[at] == g.node_number[v]:
                at += 1
                node_gb = max(node_gb, g.node_gb[v] + asks.rollout_gb)
                node_load = max(node_load, g.node_load_s[v] + asks.rollout_s)
    new = group < 0
    per_period = 1.0 / place.period_s
    out[PLACE.is_row] = 1.0
    out[PLACE.price] = unit(place.usd * shared.per_own_usd)
    out[PLACE.new_nodes] = place.new_nodes / max(asks.rollout_nodes, 1)
    out[PLACE.new_group] = 1.0 if new else 0.0
    out[PLACE.stretch] = 1.0 - asks.solo_s * per_period
    out[PLACE.slack] = unit(1.0 - place.period_s * shared.per_limit)
    out[PLACE.harm] = 0.0 if new else 1.0 - shared.period_s * per_period
    out[PLACE.members] = shared.members
    out[PLACE.saturated] = shared.saturated
    out[PLACE.training_load] = shared.training_s * per_period
    out[PLACE.node_load] = node_load * per_period
    out[PLACE.rollout_load] = shared.rollout_s * per_period / max(n_nodes, 1)
    out[PLACE.rollout_memory] = share(node_gb, limits.pools[asks.rollout_pool].node_gb)
    out[PLACE.training_memory] = shared.training_memory
    out[PLACE.packing] = unit((n_nodes * rollout_usd(asks, limits) + shared.pool_usd) * shared.per_members_usd)
    out[PLACE.age] = shared.age
    out[PLACE.longest] = shared.longest
    out[PLACE.shortest] = shared.shortest
    out[PLACE.outlives] = shared.outlives


@compiled(arrays=False)
def value_features(before: Floats, more: Floats, unit_usd: float, work_usd: float, out: Out) -> None:
    """Write `VALUE_FEATURES` of a row.

    Args:
        before: (N_VALUES,) values of the affected groups without the change: `rollmux_env.kernel.valuation`.
        more: (N_VALUES,) changes of these values.
        unit_usd: Price that dollars are divided by, $/h.
        work_usd: Worth of a work-hour, $.
        out: Row of features; written.
    """
    for h in range(N_HORIZONS):
        per_unit = 1.0 / (unit_usd * HORIZONS_H[h]) if unit_usd > 0.0 else 0.0
        out[VALUE.before_1h + h] = signed(before[h] * per_unit)
        out[VALUE.more_1h + h] = signed(more[h] * per_unit)
        out[VALUE.work_1h + h] = signed(more[N_HORIZONS + h] * work_usd * per_unit)


@compiled(arrays=False)
def move_features(view: View, known_stays: bool, unit_usd: float, work_usd: float, choice: Records, out: Out) -> None:
    """Write `CANDIDATE_FEATURES` and `MOVE_FEATURES` of a row of moves, and `SHAPE_FEATURES` of the first move if there is room.

    Args:
        view: Tables of the cluster.
        known_stays: Whether it is known when jobs leave.
        unit_usd: Mean price of the running jobs' own nodes, $/h.
        work_usd: Worth of a work-hour, $.
        choice: Record of `rollmux_env.kernel.neighbourhood.table.choice_type`.
        out: Row of features; written.
    """
    for k in range(len(out)):
        out[k] = 0.0
    out[PLACE.is_row] = 1.0
    if choice.n_moves == 0:
        return
    per_unit = 1.0 / unit_usd if unit_usd > 0.0 else 0.0
    new = asked = 0
    for k in range(choice.n_moves):
        new += choice.new_nodes[k]
        moved = choice.job[k]
        asked += view.jobs[shape_row(view.jobs[moved], moved, choice.of_shape[k])].rollout_nodes
        if choice.group[k] == table.NEW_GROUP:
            out[PLACE.new_group] = 1.0
    row = choice.job[0]
    job = view.jobs[row]
    home = view.groups[job.group]
    solo = job.solo_s
    out[PLACE.price] = unit(choice.usd * per_unit)
    out[PLACE.new_nodes] = new / max(asked, 1)
    out[PLACE.stretch] = 1.0 - solo / choice.period_s
    value_features(choice.before, choice.more, unit_usd, work_usd, out)
    out[MOVE.gain] = signed(choice.gain * per_unit)
    out[MOVE.held] = signed(choice.price * per_unit)
    out[MOVE.moved] = choice.n_moves / table.MOVES_MOST
    out[MOVE.is_move] = 1.0 if choice.kind == table.MOVE else 0.0
    out[MOVE.is_exchange] = 1.0 if choice.kind == table.EXCHANGE else 0.0
    out[MOVE.is_merger] = 1.0 if choice.kind == table.MERGER else 0.0
    out[MOVE.leaves_members] = home.n_members / view.limits.group_size_max
    out[MOVE.now_stretch] = 1.0 - solo / home.period_s
    out[MOVE.solo] = squash(solo, 600.0)
    out[MOVE.rollout_share] = job.rollout_s / solo
    out[MOVE.tolerance] = 1.0 - solo / job.limit_s
    out[MOVE.rollout_nodes] = squash(job.rollout_nodes, 4.0)
    left_s = max(0.0, departure_s(view.jobs, view.groups, row) - view.clock.now_s)
    out[MOVE.remaining] = squash(left_s / 3600.0, 24.0) if known_stays else 0.0
    if len(out) > _SHAPES_FROM:
        shape_features(view, shape_row(job, row, choice.of_shape[0]), out, _SHAPES_FROM)
