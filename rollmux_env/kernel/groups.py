"""Feasible groups of a set of jobs, enumerated.

Every subset of a feasible group is feasible on no more nodes and at no longer a period: without a member its arcs are replaced by
shorter ones, and the larger training pool may be kept. So the enumeration extends feasible groups only.

A job of several shapes has a row for each. A set of jobs is tried in every combination of their shapes. Of all combinations
together, the ways that no other beats are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import training_seconds, write_phases
from rollmux_env.kernel.packing import Packing, least_bound, least_period
from rollmux_env.kernel.pools import is_same, nodes_usd
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, UNUSED, Floats, Ints, Limits, Records


class Columns(NamedTuple):
    """Groups, a row each.

    Attributes:
        members: (rows, M) rows of the members' shapes, padded with -1.
        nodes: (rows, 2) rollout and training nodes.
        period_s: (rows,) periods, seconds.
    """

    members: Ints
    nodes: Ints
    period_s: Floats


class Criterion(NamedTuple):
    """Criterion for the ways to run a set of jobs that are kept.

    Attributes:
        kind: ON_NODES keeps those that no other beats on rollout and training nodes, each at its least period. PERIODS keeps those
            that none beats on nodes and period. CHEAPEST keeps the single cheapest one, and of several the one with the shortest
            period.
        alone_usd: (J,) for CHEAPEST, the least cost of each job alone in a group, $/h. A set is kept only if it is cheaper than
            its members apart.
        tries: Maximum number of combinations of shapes that are tried.
    """

    kind: int
    alone_usd: Floats
    tries: int


class Choices(NamedTuple):
    """The jobs that groups are made of, and their shapes.

    Attributes:
        rows: (V,) rows of their shapes, job by job.
        starts: (J + 1,) positions in `rows` at which each job's shapes begin; the first job is in all groups.
    """

    rows: Ints
    starts: Ints


ON_NODES, PERIODS, CHEAPEST = range(3)


@compiled(arrays=False)
def load_members(jobs: Records, members: Ints, n: int, training_nodes: int, p: Packing) -> None:
    """Write the phases of the first `n` rows in `members` into `p`, on a pool of that many training nodes."""
    for i in range(n):
        j, member = jobs[members[i]], p.members[i]
        write_phases(j, j.rollout_s, training_seconds(jobs, members[i], training_nodes), j.sync_s, p.phases, i)
        if n > 1:  # every rollout as if on a shared node: which are is not known yet
            p.phases[0, i] += p.phases[4, i]
            p.phases[1, i] += p.phases[5, i]
        member.gb, member.device_gb, member.nodes = j.rollout_gb, j.rollout_device_gb, j.rollout_nodes


class Way(NamedTuple):
    """A way to run a set of jobs: nodes, seconds, $/h, and which pools as numbers."""

    rollout_nodes: int
    training_nodes: int
    period_s: float
    usd: float
    rollout_pool: int
    training_pool: int


class Making(NamedTuple):
    """Tables of jobs and pools, room for packing a group, and the columns that are made."""

    jobs: Records
    limits: Limits
    packing: Packing
    columns: Columns


@compiled(arrays=False)
def _read_way(making: Making, k: int) -> Way:
    """Return column k as a way."""
    jobs, limits, columns = making.jobs, making.limits, making.columns
    lead, r, t = jobs[columns.members[k, 0]], columns.nodes[k, 0], columns.nodes[k, 1]
    return Way(r, t, columns.period_s[k], nodes_usd(lead, r, t, limits), lead.rollout_pool, lead.training_pool)


@compiled(arrays=False)
def _beats(kind: int, one: Way, other: Way) -> bool:
    """Return whether one way makes another one useless."""
    if kind == CHEAPEST:
        return bool(one.usd < other.usd or (one.usd == other.usd and one.period_s <= other.period_s))
    if one.rollout_pool != other.rollout_pool or one.training_pool != other.training_pool:
        return False
    r, t = other.rollout_nodes - one.rollout_nodes, other.training_nodes - one.training_nodes
    return bool(r >= 0 and t >= 0 and (one.period_s <= other.period_s or (kind == ON_NODES and (r > 0 or t > 0))))


@compiled(arrays=False)
def _is_beaten(making: Making, known: tuple[int, int], kind: int, way: Way) -> bool:
    """Return whether a column of a range makes a way useless. Columns that were counted but not written are skipped."""
    k, end = known[0], min(known[1], len(making.columns.period_s))
    while k < end and not _beats(kind, _read_way(making, k), way):
        k += 1
    return bool(k < end)


@compiled(arrays=False)
def _drop_beaten(making: Making, known: tuple[int, int], kind: int, way: Way) -> int:
    """Drop the columns of a range that a way beats, and return the new end of the range with room for the way."""
    columns, (at, end) = making.columns, known
    if end > len(columns.period_s):
        return end + 1
    left = at
    for k in range(at, end):
        if not _beats(kind, way, _read_way(making, k)):
            for i in range(columns.members.shape[1]):
                columns.members[left, i] = columns.members[k, i]
            columns.nodes[left, 0], columns.nodes[left, 1] = columns.nodes[k, 0], columns.nodes[k, 1]
            columns.period_s[left] = columns.period_s[k]
            left += 1
    return left + 1


@compiled(arrays=False)
def _write(columns: Columns, row: int, members: Ints, way: Way) -> None:
    """Write a column, if there is such a row."""
    if row >= len(columns.period_s):
        return
    columns.nodes[row, 0], columns.nodes[row, 1], columns.period_s[row] = way.rollout_nodes, way.training_nodes, way.period_s
    for i in range(columns.members.shape[1]):
        columns.members[row, i] = members[i] if i < len(members) else -1


class _Requirements(NamedTuple):
    """Joint requirements of the members of a group.

    `fits` is True if nothing is known against the group yet. The limit is in seconds; `least` and `most` are rollout nodes.
    """

    fits: bool
    limit_s: float
    least: int
    most: int
    training_nodes: int


@compiled(arrays=False)
def _requirements_of(jobs: Records, limits: Limits, members: Ints) -> _Requirements:
    """Return the joint requirements of the members' rows."""
    lead = jobs[members[0]]
    rollout, training = limits.pools[lead.rollout_pool], limits.pools[lead.training_pool]
    fits = True
    limit = np.inf
    training_gb = training_device_gb = load = load_gb = load_device_gb = 0.0
    least = most = t = 0
    for row in members:
        job = jobs[row]
        fits = fits and is_same(job, lead)
        limit = min(limit, job.limit_s)
        training_gb += job.training_gb
        training_device_gb += job.training_device_gb
        least = max(least, job.rollout_nodes)
        most += job.rollout_nodes
        load += job.rollout_nodes * job.rollout_s
        load_gb += job.rollout_nodes * job.rollout_gb
        load_device_gb += job.rollout_nodes * job.rollout_device_gb
        t = max(t, job.training_nodes)
    fits = fits and training_gb <= training.node_gb * (1.0 + TOLERANCE)
    fits = fits and training_device_gb <= training.device_gb * (1.0 + TOLERANCE)
    least = max(least, int(np.ceil(load / limit - 1e-6)))
    if load_gb > 0.0:
        least = max(least, int(np.ceil(load_gb / rollout.node_gb - 1e-6)))
    if load_device_gb > 0.0:
        least = max(least, int(np.ceil(load_device_gb / rollout.device_gb - 1e-6)))
    return _Requirements(fits, limit, least, most, t)


@compiled(arrays=False)
def _next_step(jobs: Records, members: Ints, t: int) -> int:
    """Return the next number of training nodes above `t` at which a member trains faster, or UNUSED."""
    larger = UNUSED
    for row in members:
        for nodes in jobs[row].rescale_nodes:
            if nodes > t:
                larger = min(larger, nodes)
                break
    return int(larger)


@compiled(arrays=False)
def group_columns(making: Making, members: Ints, criterion: tuple[int, float], at: int, end: int) -> tuple[int, bool]:
    """Add the ways to run a set of jobs as one group to the known ways of the same jobs, if they are wanted.

    Args:
        making: Tables and scratch of the enumeration.
        members: (n,) rows of the jobs in their shapes.
        criterion: Kind as in `Criterion`, and the price below which a way is wanted, $/h.
        at: First row of the known columns.
        end: Row after the last known column.

    Returns:
        The new end, and whether the group may be feasible. Rows beyond the arrays are counted and not written. A group that cannot
        give a wanted way is not examined.
    """
    jobs, limits = making.jobs, making.limits
    lead, needs = jobs[members[0]], _requirements_of(jobs, limits, members)
    possible = False
    fewest = needs.most + 1  # rollout nodes on which it was found feasible
    t = needs.training_nodes
    while needs.fits:
        beside = t if lead.rollout_pool == lead.training_pool else 0
        most = min(needs.most, limits.pools[lead.rollout_pool].nodes_max - beside)
        if criterion[0] != PERIODS:
            most = min(most, fewest - 1)
        load_members(jobs, members, len(members), t, making.packing)
        end, enough = _add_ways(making, members, criterion, (at, end), (needs.least, most, t), needs.limit_s)
        if enough != NOWHERE:
            possible = True
            fewest = min(fewest, enough)
        t = _next_step(jobs, members, t)
        if t == UNUSED or t > limits.pools[lead.training_pool].nodes_max:
            break
    return end, possible


@compiled(arrays=False)
def _add_ways(
    making: Making, members: Ints, criterion: tuple[int, float], known: tuple[int, int], nodes: tuple[int, float, int], limit: float
) -> tuple[int, int]:
    """Add the ways of members, whose packing is loaded, on given training nodes and a range of rollout nodes.

    Returns:
        The new end of the known rows, and the fewest rollout nodes on which the group was found feasible: UNUSED if it was not
        examined, NOWHERE if it is infeasible.
    """
    limits, p, columns = making.limits, making.packing, making.columns
    lead, floor = making.jobs[members[0]], least_bound(p, len(members))
    kind, (at, end), (r, most, t) = criterion[0], known, nodes
    enough = NOWHERE
    best = np.inf
    if floor > limit * (1.0 + TOLERANCE):
        return end, enough
    while r <= most:
        way = Way(r, t, floor, nodes_usd(lead, r, t, limits), lead.rollout_pool, lead.training_pool)
        if way.usd >= criterion[1] or _is_beaten(making, (at, end), kind, way):
            return end, UNUSED if enough == NOWHERE else enough
        period = least_period(p, len(members), r, limits.pools[lead.rollout_pool], limit)
        if period < best:
            best = period
            enough = r if enough == NOWHERE else enough
            way = Way(r, t, period, way.usd, lead.rollout_pool, lead.training_pool)
            if not _is_beaten(making, (at, end), kind, way):
                end = _drop_beaten(making, (at, end), kind, way)
                _write(columns, end - 1, members, way)
            if period <= floor or kind != PERIODS:
                break
        r += 1
    return end, enough


@compiled(arrays=False)
def _copy(source: Ints, target: Ints, n: int) -> None:
    for i in range(n):
        target[i] = source[i]


@compiled(arrays=False)
def _copy_rows(source: Ints, target: Ints) -> None:
    """Copy rows to an array with more of them. By hand: a check of shapes that may differ takes numba seconds to compile."""
    for row in range(len(source)):
        _copy(source[row], target[row], source.shape[1])


@compiled
def enumerate_groups(
    jobs: Records, limits: Limits, choices: Choices, size_max: int, criterion: Criterion, p: Packing, columns: Columns
) -> int:
    """Write the columns of every feasible group of one job with some of the others.

    Args:
        jobs: (J,) job table.
        limits: Limits of the cluster.
        choices: Jobs and their shapes.
        size_max: Maximum number of members.
        criterion: Criterion for the ways that are kept.
        p: Scratch for groups of that size.
        columns: Groups; written.

    Returns:
        The number of columns. If it exceeds the length of the arrays, the columns are incomplete, and it is only a lower bound. It
        is negative if there was more to try than `criterion` allows.
    """
    tries = 0
    making, rows = Making(jobs, limits, p, columns), len(columns.members)
    n_jobs = len(choices.starts) - 1
    following = np.zeros(size_max + 2, np.int64)  # next job to try after the first `size` members
    following[1] = 1
    alone_usd = np.zeros(size_max + 1)
    # Choices of shapes of the present set and of those that it extends, in each of which the group may be feasible.
    tuples = np.zeros((64, size_max), np.int64)
    begins = np.zeros(size_max + 2, np.int64)  # first combination of the sets of each size; after the last: the end
    begins[1], begins[2] = 1, 1  # the empty set has one combination, the first
    size = 1
    job = 0
    count = 0
    new = True
    while size > 0:
        if new:
            new = False
            end = count
            top = begins[size]
            alone_usd[size] = alone_usd[size - 1] + criterion.alone_usd[job]
            most_usd = alone_usd[size] if criterion.kind == CHEAPEST and size > 1 else np.inf
            for parent in range(begins[size - 1], begins[size]):
                for k in range(choices.starts[job], choices.starts[job + 1]):
                    if top == len(tuples):
                        smaller, tuples = tuples, np.zeros((2 * top, size_max), np.int64)
                        _copy_rows(smaller, tuples)
                    _copy(tuples[parent], tuples[top], size - 1)
                    tuples[top, size - 1] = choices.rows[k]
                    end, possible = group_columns(making, tuples[top, :size], (criterion.kind, most_usd), count, end)
                    tries += 1
                    if end > rows or tries > criterion.tries:
                        return end if end > rows else -1
                    if possible:
                        top += 1
            count = end
            begins[size + 1] = top
            if top == begins[size]:
                size -= 1
        elif size == size_max or following[size] == n_jobs:
            size -= 1
        else:
            job = following[size]
            following[size] += 1
            following[size + 1] = following[size]
            size += 1
            new = True
    return count
