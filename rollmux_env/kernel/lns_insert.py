"""Insertion of a job into the group where the dollars rise least, and the worth of a grouping until its members leave.

The dollars of a group are those of its nodes for as long as they are needed: a rollout node until the last job pinned to it has
left, the training nodes until the last member has left. The worth of the members' work is subtracted: cost rate minus lambda times
work rate, as in Dinkelbach's method for ratios, where lambda is the price of a work-hour. Both are discounted by exp(-t /
horizon), since groups will be changed again before a distant time.

Within one search most groups have not changed since a job was last compared with them. So every group has a version number, and
the best place of each job in each group is kept with the version for which it was found. Then a second look costs one comparison.
The kept result equals a recomputation, to the last bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import FEASIBLE, candidate_type, enumerate_candidates
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import (
    detach,
    entry_limit,
    keeps_alone,
    memory_kept,
    open_group,
    place_tentatively,
    replan,
    set_shape,
    shape_row,
    training_seconds,
)
from rollmux_env.kernel.pools import has_room, is_same, is_unlimited, nodes_of_pool, own_usd, rollout_usd
from rollmux_env.kernel.tables import NOWHERE, ROLLOUT, TOLERANCE, TRAINING, Clock, Floats, Ints, Limits, Records, View
from rollmux_env.kernel.trials import Trial, make_trial, save_group


def home_type(pins: int) -> np.dtype[Any]:
    """Return the record type of the facts about a job that is regrouped.

    It is at home where it runs now; any other place is a move.

    Fields:
        group: Row of the group where the job is at home, NOWHERE for a job that waits for a place.
        of_shape: Number of its shape there.
        rank: Its position among the members there.
        n_pins: Number of its rollout nodes there.
        free: 1 if it may get another place.
        stay_h: Hours that a job with a fixed stay still has; infinite for others.
        iterations: Iterations left for a job that leaves after a number of them; infinite for others.
        pause_h: Hours until it makes progress at home: the rest of an earlier pause.
        work_usd: Worth of a work-hour (T_solo / 3600 per iteration) of the job, $.
        pins: Its rollout nodes there, ascending.
    """
    ints = [(name, "i8") for name in ("group", "of_shape", "rank", "n_pins", "free")]
    floats = [(name, "f8") for name in ("stay_h", "iterations", "pause_h", "work_usd")]
    return np.dtype([*ints, ("pins", "i8", (pins,)), *floats])


class Regrouping(NamedTuple):
    """Facts about the jobs that are regrouped, and parameters of the comparison.

    Attributes:
        homes: (J,) records of `home_type`, by row of the job table; those of a job's shapes equal the job's.
        n_jobs: Number of rows of jobs; rows of their shapes follow.
        rollout_nodes: (G,) rollout nodes of the present groups, which are the first rows of the group table.
        training_nodes: (G,) training nodes of the present groups.
        horizon_h: Horizon of the discount, hours.
        migration_h: Pause of a move, hours.
        overlooked: Share of a job's shapes that are left out, at random, when the search puts it back.
        reserved: (P, 2) nodes of each pool that are held for earlier moves, for rollouts and for trainings.
    """

    homes: Records
    n_jobs: int
    rollout_nodes: Ints
    training_nodes: Ints
    horizon_h: float
    migration_h: float
    overlooked: float
    reserved: Ints


@compiled(arrays=False)
def discounted_h(hours: float, horizon_h: float) -> float:
    """Return the integral of exp(-t / horizon) from 0 to `hours`, in hours."""
    return float(horizon_h * -np.expm1(-hours / horizon_h))


@compiled(arrays=False)
def is_home(jobs: Records, facts: Regrouping, job: int, group: int) -> bool:
    """Return whether a job that is in a group, in the shape of its row, is at home."""
    return bool(facts.homes[job].group == group and facts.homes[job].of_shape == jobs[job].of_shape)


@compiled(arrays=False)
def job_worth(jobs: Records, facts: Regrouping, job: int, group: int, period_s: float) -> tuple[float, float]:
    """Return the discounted hours of a job's stay in a group, and the worth of its work until it leaves, $.

    A move adds its pause to a fixed stay, and no work is done in the pause. The row may be that of one of the job's shapes.
    """
    moved = facts.homes[job].group != NOWHERE and not is_home(jobs, facts, job, group)
    pause_h = facts.migration_h if moved else facts.homes[job].pause_h
    stay_h = facts.homes[job].stay_h + (facts.migration_h if moved else 0.0)
    stay_h = min(stay_h, pause_h + facts.homes[job].iterations * period_s / 3600.0)
    hours = discounted_h(stay_h, facts.horizon_h)
    running_h = hours - discounted_h(min(pause_h, stay_h), facts.horizon_h)
    return hours, float(facts.homes[job].work_usd * jobs[job].solo_s / period_s * running_h)


@compiled
def group_usd(view: View, facts: Regrouping, group: int, job: int, place: Records, period_s: float) -> float:
    """Return the discounted dollars of a group until its members have left, less the worth of their work.

    `rollmux_env.kernel.valuation.value_group` is the same sum with other rounding. It has three fixed horizons, and computes 1 -
    e^-x at two of them from powers of e^-x at the longest. This function has the horizon of a policy, which need not divide
    another, and -expm1(-x), which keeps the digits of short stays. The other one sums prices node by node, this one multiplies the
    sum of the nodes' hours. The other one has a single price of work, this one a price for each job. A search compares such sums
    down to 1e-9 $, so the two are not interchangeable: the choices would differ.

    Args:
        view: Tables of the cluster.
        facts: Facts about the jobs that are regrouped.
        group: Row of the group.
        job: Row of a job, or of one of its shapes, that is counted as one more member; NOWHERE for none.
        place: Place of that job, a record of `rollmux_env.kernel.candidates.candidate_type`.
        period_s: Period of the group with that job in it, seconds.

    Returns:
        Dollars, 0 for an empty group.
    """
    jobs, limits = view.jobs, view.limits
    g = view.groups[group]
    n, n_nodes = g.n_members, g.n_nodes
    needed_h = np.zeros(n_nodes)
    longest_h = 0.0
    usd = 0.0
    for i in range(n + 1):
        if i == n and job == NOWHERE:
            break
        member = g.members[i] if i < n else job
        n_pins = jobs[member].n_pins if i < n else jobs[job].rollout_nodes - place.new_nodes
        hours, worth = job_worth(jobs, facts, member, group, period_s)
        longest_h = max(longest_h, hours)
        usd -= worth
        at = 0
        for v in range(n_nodes):
            if at < n_pins and (jobs[member].pins[at] if i < n else place.nodes[at]) == g.node_number[v]:
                needed_h[v] = max(needed_h[v], hours)
                at += 1
        if i == n:
            usd += place.new_nodes * rollout_usd(jobs[job], limits) * hours
    pools, needed = limits.pools, needed_h.sum()
    usd += pools[g.rollout_pool].usd * needed + pools[g.training_pool].usd * g.training_nodes * longest_h
    return float(usd)


@compiled
def nodes_left(jobs: Records, groups: Records, facts: Regrouping, out: Ints) -> None:
    """Count the nodes that no job at home needs any more: they are held until the movers' pauses end.

    A rollout node of the present groups is kept if a member that has not moved is pinned to it, training nodes if there is any
    such member.

    Args:
        jobs: (J,) job table.
        groups: (G,) group table.
        facts: Facts about the jobs that are regrouped.
        out: (P, 2) counts of each pool and side; added to.
    """
    for group in range(len(facts.rollout_nodes)):
        rollout, training = groups[group].rollout_pool, groups[group].training_pool
        out[rollout, ROLLOUT] += facts.rollout_nodes[group]
        out[training, TRAINING] += facts.training_nodes[group]
        stays = False
        for i in range(groups[group].n_members):
            job = groups[group].members[i]
            if not is_home(jobs, facts, job, group):
                continue
            stays = True
            for k in range(facts.homes[job].n_pins):
                if not _is_home_node(jobs, groups, facts, group, i, facts.homes[job].pins[k]):
                    out[rollout, ROLLOUT] -= 1
        if stays:
            out[training, TRAINING] -= facts.training_nodes[group]


@compiled(arrays=False)
def _is_home_node(jobs: Records, groups: Records, facts: Regrouping, group: int, end: int, number: int) -> bool:
    """Return whether one of the group's first `end` members is at home on this rollout node."""
    for i in range(end):
        job = groups[group].members[i]
        if is_home(jobs, facts, job, group):
            for k in range(facts.homes[job].n_pins):
                if facts.homes[job].pins[k] == number:
                    return True
    return False


@compiled(arrays=False)
def nodes_in_use(jobs: Records, groups: Records, facts: Regrouping, out: Ints) -> None:
    """Write (P, 2) the nodes provisioned while the moves' pauses last: those of the groups, left ones, and held ones."""
    for p in range(len(out)):
        for side in range(out.shape[1]):
            out[p, side] = facts.reserved[p, side]
    nodes_left(jobs, groups, facts, out)
    for group in range(len(groups)):
        if groups[group].n_members > 0:
            out[groups[group].rollout_pool, ROLLOUT] += groups[group].n_nodes
            out[groups[group].training_pool, TRAINING] += groups[group].training_nodes


CANDIDATES = 1024  # of one job in one group; later ones are not examined
EMPTY = -1  # version of a group without members
_ALL_PINS = 2  # most rollout nodes of a job for which all pinnings are tried, else the cheapest of each group
_NOT_YET = -1
_TIE_USD = 1e-9


class Search(NamedTuple):
    """State of a search, and scratch. Shapes: J job rows, G group rows.

    Attributes:
        usd: (G,) `rollmux_env.kernel.lns_insert.group_usd` of every group row.
        version: (G,) version of every group, from 1 on, or EMPTY.
        last: (1,) the last version given.
        places: (J, G) records of `_place_type`: the best place of a job in a group. A place in its home is the return home. For a
            job of several shapes, rows of its shapes have the former and its own row the latter.
        rows: (R,) records of `rollmux_env.kernel.candidates.candidate_type`.
        trial: Rows that change.
        used: (P, 2) nodes of each pool that are in use, zeros if unlimited.
        order: (1,) the group that is examined.
    """

    usd: Floats
    version: Ints
    last: Ints
    places: Records
    rows: Records
    trial: Trial
    used: Ints
    order: Ints


def _place_type(nodes: int) -> np.dtype[Any]:
    """Return the record type of a job's best place in a group.

    Fields:
        version: Version of the group for which this was found, 0 for none.
        room: New rollout nodes that could be added then.
        joins: 0 if the group as a whole is excluded.
        looked: Number of candidates, negative if they were not enumerated.
        new_nodes: Rollout nodes to add, as in a candidate.
        usd: Increase of the group's cost with the job, infinite if there is no place.
        nodes: Numbers of the existing nodes, as in a candidate.
    """
    ints = [(name, "i8") for name in ("version", "room", "joins", "looked", "new_nodes")]
    return np.dtype([*ints, ("usd", "f8"), ("nodes", "i8", (nodes,))])


def make_search(view: View) -> Search:
    """Return room for a search over these tables, without results."""
    jobs, groups, nodes = len(view.jobs), len(view.groups), view.jobs.dtype["pins"].shape[0]
    return Search(
        np.zeros(groups),
        np.full(groups, EMPTY),
        np.zeros(1, dtype=np.int64),
        np.zeros((jobs, groups), dtype=_place_type(nodes)),
        np.zeros(CANDIDATES, dtype=candidate_type(nodes)),
        make_trial(view.jobs, view.groups, 2 * view.groups.dtype["members"].shape[0] + 2),
        np.zeros((len(view.limits.pools), 2), np.int64),
        np.zeros(1, np.int64),
    )


@compiled(arrays=False)
def refresh_group(view: View, facts: Regrouping, group: int, search: Search) -> None:
    """Update the version and the dollars of a group whose members or nodes have changed."""
    members = view.groups[group].n_members
    if members > 0:
        search.last[0] += 1
    search.version[group] = search.last[0] if members > 0 else EMPTY
    search.usd[group] = group_usd(view, facts, group, NOWHERE, search.rows[0], view.groups[group].period_s)


@compiled(arrays=False)
def _restore_home(jobs: Records, groups: Records, job: int, home: Records, rank: int) -> None:
    """Make a job a member of its home group again, with the shape and nodes of its record of `home_type`, at that rank."""
    set_shape(jobs, job, home.of_shape)
    group, pins, n_pins = home.group, home.pins, home.n_pins
    n = groups[group].n_members
    groups[group].rollout_pool, groups[group].training_pool = jobs[job].rollout_pool, jobs[job].training_pool
    for i in range(n, rank, -1):
        groups[group].members[i] = groups[group].members[i - 1]
    groups[group].members[rank] = job
    groups[group].n_members = n + 1
    numbers = groups[group].node_number
    for k in range(n_pins):
        jobs[job].pins[k] = pins[k]
        groups[group].next_number = max(groups[group].next_number, pins[k] + 1)
        v = groups[group].n_nodes
        while v > 0 and numbers[v - 1] > pins[k]:
            v -= 1
        if v > 0 and numbers[v - 1] == pins[k]:
            continue
        for w in range(groups[group].n_nodes, v, -1):
            numbers[w] = numbers[w - 1]
        numbers[v] = pins[k]
        groups[group].n_nodes += 1
    jobs[job].n_pins = n_pins
    jobs[job].group = group
    jobs[job].is_tentative = 0
    replan(jobs, groups, job)


@compiled(arrays=False)
def _return_home(view: View, facts: Regrouping, job: int) -> bool:
    """Return a job to its home place. If there is no longer room for it, change nothing and return False."""
    jobs, groups, limits, homes = view.jobs, view.groups, view.limits, facts.homes
    home = homes[job]
    group = home.group
    if groups[group].n_members >= limits.group_size_max:
        return False
    g = groups[group]
    rank = 0  # among those that are there
    for i in range(g.n_members):
        member = g.members[i]
        if is_home(jobs, facts, member, group) and homes[member].rank < home.rank:
            rank += 1
    _restore_home(jobs, groups, job, home, rank)
    limit = g.joined_limit_s if g.tentative_members > 0 else g.limit_s
    fits = g.period_s <= limit * (1.0 + TOLERANCE) and memory_kept(g, limits)
    if not fits:
        detach(jobs, groups, job)
    return bool(fits)


@compiled(arrays=False)
def _home_usd(view: View, facts: Regrouping, job: int, search: Search) -> float:
    """Return the increase of the home group's cost if the job returns; infinite if it no longer fits there."""
    home = facts.homes[job].group
    place = search.places[job, home]
    if place.version != search.version[home]:
        place.version, place.usd = search.version[home], np.inf
        if _return_home(view, facts, job):
            place.usd = group_usd(view, facts, home, NOWHERE, search.rows[0], view.groups[home].period_s) - search.usd[home]
            detach(view.jobs, view.groups, job)
    return float(place.usd)


@compiled(arrays=False)
def may_join(jobs: Records, group: Records, limits: Limits, job: int) -> bool:
    """Return whether a job may join a group, by the group as a whole, before its nodes are examined. The group is a record."""
    limit = entry_limit(jobs, jobs[job], group, 0) * (1.0 + TOLERANCE)
    training_s = group.training_load_s + training_seconds(jobs, job, group.training_nodes)
    return bool(
        group.n_members < limits.group_size_max
        and is_same(group, jobs[job])
        and group.training_nodes >= jobs[job].training_nodes
        and max(group.period_s, training_s) <= limit
    )


@compiled(arrays=False)
def _search_group(view: View, facts: Regrouping, job: int, group: int, search: Search) -> None:
    """Find the best place of a job, in the shape of the row, in the only group of the view's order, and store it."""
    place, rows = search.places[job, group], search.rows
    count = enumerate_candidates(view, job, view.jobs[job].rollout_nodes > _ALL_PINS, False, rows)
    place.looked, place.usd = count, np.inf
    for k in range(min(count, len(rows))):
        row = rows[k]
        if row.group != group or row.reason != FEASIBLE:
            continue
        more = group_usd(view, facts, group, job, row, row.period_s) - search.usd[group]
        if more < place.usd - _TIE_USD:
            place.usd, place.new_nodes = more, row.new_nodes
            for v in range(len(row.nodes)):
                place.nodes[v] = row.nodes[v]


@compiled(arrays=False)
def _best_place(
    view: View, facts: Regrouping, row: int, best: float, overlooked: float, rng: np.random.Generator, search: Search
) -> tuple[float, int, int]:
    """Find the group where the dollars rise least, and by less than `best`, with a job in the shape of a row in it.

    The view's `order` is scratch, one row, and its clock counts the nodes in use. `overlooked` is the share of groups that are
    left out at random.

    Returns:
        Dollars and group, or `best` and NOWHERE if there is none, and the number of groups and places in them that were examined.
    """
    jobs, groups, limits, version = view.jobs, view.groups, view.limits, search.version
    job, pool = jobs[row], limits.pools[jobs[row].rollout_pool]
    room = max(0, int(min(float(job.rollout_nodes), pool.nodes_max - nodes_of_pool(view.clock.nodes, job.rollout_pool))))
    best_group = NOWHERE
    looked = 0
    for group in range(len(version)):
        if version[group] == EMPTY:
            continue
        looked += 1
        if is_home(jobs, facts, row, group):
            continue
        place = search.places[row, group]
        if place.version != version[group] or place.room != room:
            place.version, place.room, place.looked = version[group], room, _NOT_YET
            place.joins = 1 if may_join(jobs, groups[group], limits, row) else 0
        if place.joins == 0 or (overlooked > 0.0 and rng.random() < overlooked):
            continue
        if place.looked == _NOT_YET:
            view.order[0] = group
            _search_group(view, facts, row, group, search)
        looked += place.looked
        if place.usd < best - _TIE_USD:
            best, best_group = place.usd, group
    return best, best_group, looked


@compiled(arrays=False)
def _alone_usd(view: View, facts: Regrouping, row: int, group: int) -> float:
    """Return the dollars of a job, in the shape of a row, alone in an empty group; infinite if that is not allowed."""
    job, limits = view.jobs[row], view.limits
    if not keeps_alone(job) or not has_room(job, job.rollout_nodes, job.training_nodes, limits, view.clock):
        return np.inf
    hours, worth = job_worth(view.jobs, facts, row, group, job.alone_s)
    return float(hours * own_usd(job, limits) - worth)


@compiled(arrays=False)
def insert(view: View, facts: Regrouping, job: int, overlooked: float, rng: np.random.Generator, search: Search) -> int:
    """Give a job that is in no group the place, and the shape, where the dollars rise least.

    Args:
        view: Tables of the cluster.
        facts: Facts about the jobs that are regrouped.
        job: Row of the job.
        overlooked: Share of the groups that are left out, at random; with 0 no shapes are left out either.
        rng: Random generator.
        search: State of the search. `usd` and `version` are updated, and the changed group is kept in its trial, which has begun.

    Returns:
        The number of groups and places in them that were examined; 0 if there is no place for the job.
    """
    jobs, groups, limits, version = view.jobs, view.groups, view.limits, search.version
    home = facts.homes[job].group
    if not is_unlimited(limits):
        nodes_in_use(jobs, groups, facts, search.used)
    around = View(jobs, groups, search.order, limits, Clock(view.clock.now_s, search.used, view.clock.waiting))
    looked = 0
    best = np.inf
    best_group, best_row = NOWHERE, NOWHERE  # a job that returns home needs no row
    if home != NOWHERE and _home_usd(view, facts, job, search) < np.inf:
        looked += 1
        # The nodes to be held elsewhere are only known when all jobs have a place; a rollout node each is about right.
        at_home = jobs[shape_row(jobs[job], job, facts.homes[job].of_shape)]
        left_usd = rollout_usd(at_home, limits) * at_home.rollout_nodes * facts.migration_h
        best, best_group = search.places[job, home].usd - left_usd, home
    empty = len(facts.rollout_nodes)
    while empty < len(version) and version[empty] != EMPTY:
        empty += 1
    for shape in range(1 + jobs[job].more_shapes):
        if overlooked > 0.0 and jobs[job].more_shapes > 0 and rng.random() < facts.overlooked:
            continue
        row = shape_row(jobs[job], job, shape)
        best, group, count = _best_place(around, facts, row, best, overlooked, rng, search)
        looked += count
        if group != NOWHERE:
            best_group, best_row = group, row
        usd = _alone_usd(around, facts, row, empty) if empty < len(version) else np.inf
        looked += usd < np.inf
        if usd < best - _TIE_USD:
            best, best_group, best_row = usd, empty, row
    if best_group == NOWHERE:
        return 0
    save_group(search.trial, groups, best_group)
    if best_row == NOWHERE:
        _return_home(view, facts, job)
    else:
        _enter(view, job, best_row, best_group, search)
    refresh_group(view, facts, best_group, search)
    return looked


@compiled(arrays=False)
def _enter(view: View, job: int, row: int, group: int, search: Search) -> None:
    """Give a job the place that was found for the shape in a row, in a group that may be empty."""
    jobs, shaped, place = view.jobs, view.jobs[row], search.places[row, group]
    new_nodes = place.new_nodes
    if search.version[group] == EMPTY:
        open_group(view.groups, group, NOWHERE, shaped, shaped.training_nodes, 0.0)
        new_nodes = shaped.rollout_nodes
    place_tentatively(jobs, view.groups, job, group, shaped.of_shape, place.nodes, new_nodes)
