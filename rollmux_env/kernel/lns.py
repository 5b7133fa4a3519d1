"""A search for a better grouping of running jobs, over tables that are a copy of the present state.

A few jobs are taken out of their groups, each is put back where the dollars rise least (which may be where it was), and the
result is kept where it is worth more than its moves cost: moves, swaps and mergers of groups are all of this kind. This is large
neighbourhood search (Shaw, 1998) by ruin and recreate (Schrimpf et al., 2000), with groups overlooked at random while a job is put
back, so that the search does not always do the same (SISR: Christiaens and Vanden Berghe, 2020).
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.candidates import FEASIBLE, entry_limit, enumerate_candidates
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.lns_value import Regrouping, group_usd, job_worth, nodes_in_use, nodes_left
from rollmux_env.kernel.membership import attach, detach, memory_kept, open_group, refresh, training_seconds
from rollmux_env.kernel.pools import are_within, has_room, is_same, is_unlimited, own_usd, provisioned_usd, rollout_usd
from rollmux_env.kernel.tables import NO, NOWHERE, TOLERANCE, Clock, Floats, Ints, Limits, Records, View

OVERLOOKED = 0.1  # share of the groups, while a job is put back
_ALL_PINS = 2  # up to so many rollout nodes of a job all ways to pin it are looked at, beyond that the cheapest of each group
_LEAST_USD = 1e-6  # a saving below is rounding
_TIE_USD = 1e-9


@compiled(arrays=False)
def put_back(jobs: Records, groups: Records, job: int, home: Records) -> None:
    """Make a job again what it was before it was taken out, as a record of `rollmux_env.kernel.lns_value.home_type` has it."""
    group, rank, pins, n_pins = home.group, home.rank, home.pins, home.n_pins
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
    jobs[job].visits = home.visits
    jobs[job].placed_rollout_s = jobs[job].rollout_s
    jobs[job].placed_training_s = training_seconds(jobs, job, groups[group].training_nodes)
    jobs[job].placed_sync_s = jobs[job].sync_s
    refresh(jobs, groups, group)


@compiled(arrays=False)
def _go_home(view: View, facts: Regrouping, job: int) -> bool:
    """Put a job back where it is at home; False, and nothing done, where there is no place for it there any more."""
    jobs, groups, limits, homes = view.jobs, view.groups, view.limits, facts.homes
    home = homes[job]
    group = home.group
    if group == NOWHERE or groups[group].n_members >= limits.group_size_max:
        return False
    g = groups[group]
    rank = home.rank
    home.rank = 0  # among those that are there
    for i in range(g.n_members):
        member = homes[g.members[i]]
        if member.group == group and member.rank < rank:
            home.rank += 1
    put_back(jobs, groups, job, home)
    home.rank = rank
    limit = min(g.limit_s, g.joined_limit_s) if g.visitors > 0 else g.limit_s
    fits = g.period_s <= limit * (1.0 + TOLERANCE) and memory_kept(g, limits)
    if not fits:
        detach(jobs, groups, job)
    return bool(fits)


@compiled(arrays=False)
def _may_join(jobs: Records, group: Records, limits: Limits, job: int) -> bool:
    """What can be said of a group as a whole, before its nodes are looked at; the group is a record."""
    limit = entry_limit(jobs[job], group) * (1.0 + TOLERANCE)
    training_s = group.training_load_s + training_seconds(jobs, job, group.training_nodes)
    return bool(
        group.n_members < limits.group_size_max
        and is_same(group, jobs[job])
        and group.training_nodes >= jobs[job].training_nodes
        and max(group.period_s, training_s) <= limit
    )


@compiled
def insert(view: View, facts: Regrouping, job: int, usd: Floats, overlooked: float, rng: np.random.Generator, rows: Records) -> int:
    """Give a job that is in no group the place where the dollars rise least.

    Args:
        usd: (G,) `group_usd` of every group row; kept up to date.
        overlooked: share of the groups that are left out, at random.
        rows: (R + 1,) records of `rollmux_env.kernel.candidates.candidate_type`, scratch: more than R candidates in a group are
            not looked at.

    Returns:
        How many groups and places in them were looked at; 0 where there is no place for the job.
    """
    jobs, groups, limits = view.jobs, view.groups, view.limits
    home = facts.homes[job].group
    wanted = jobs[job].rollout_nodes
    used = np.zeros((limits.pools.shape[0], 2), np.int64)
    if not is_unlimited(limits):
        nodes_in_use(groups, facts, used)
    looked = 0
    best = np.inf
    best_group = NOWHERE
    room = rows.shape[0] - 1
    place = rows[room]  # the best one
    place.new_nodes = wanted
    if _go_home(view, facts, job):
        looked += 1
        # The nodes to be held elsewhere are only known when all jobs have a place; a rollout node each is about right.
        best = group_usd(view, facts, home, NOWHERE, place, groups[home].period_s) - usd[home]
        best -= rollout_usd(jobs[job], limits) * wanted * facts.migration_h
        best_group = home
        detach(jobs, groups, job)
    empty = NOWHERE
    one = np.empty(1, np.int64)
    there = View(jobs, groups, one, limits, Clock(view.clock.now_s, used, view.clock.waiting))
    for group in range(groups.shape[0]):
        if groups[group].n_members == 0:
            if empty == NOWHERE and group >= facts.rollout_nodes.shape[0]:
                empty = group
            continue
        looked += 1
        if group == home or not _may_join(jobs, groups[group], limits, job):
            continue
        if overlooked > 0.0 and rng.random() < overlooked:
            continue
        one[0] = group
        count = enumerate_candidates(there, job, wanted > _ALL_PINS, NO, rows[:room])
        looked += count
        for k in range(min(count, room)):
            row = rows[k]
            if row.group != group or row.reason != FEASIBLE:
                continue
            more = group_usd(view, facts, group, job, row, row.period_s) - usd[group]
            if more < best - _TIE_USD:
                best, best_group = more, group
                rows[room] = row
    training = jobs[job].training_nodes
    if empty != NOWHERE and has_room(jobs[job], wanted, training, limits, there.clock):
        looked += 1
        hours, worth = job_worth(jobs, facts, job, empty, jobs[job].solo_s)
        if hours * own_usd(jobs[job], limits) - worth < best - _TIE_USD:
            best_group = empty
            place.new_nodes = wanted
            open_group(groups, empty, NOWHERE, jobs[job], training, 0.0)
    if best_group == NOWHERE:
        return 0
    if best_group == home:
        _go_home(view, facts, job)
    else:
        for k in range(wanted - place.new_nodes):
            jobs[job].pins[k] = place.nodes[k]
        jobs[job].visits = 1
        attach(jobs, groups, job, best_group, wanted - place.new_nodes, place.new_nodes)
    usd[best_group] = group_usd(view, facts, best_group, NOWHERE, place, groups[best_group].period_s)
    return looked


@compiled(arrays=False)
def _choose(jobs: Records, groups: Records, facts: Regrouping, rng: np.random.Generator, picked: Ints, chosen: Ints) -> int:
    """Choose the jobs to take out: the members of up to two groups, and up to two more jobs; those that are free, in random order.

    Args:
        picked: (J,) out: their rows. chosen: (J,) zeros, and zeros again afterwards.

    Returns:
        How many.
    """
    n_jobs = facts.homes.shape[0]
    count = 0
    n_groups = int(rng.random() * 3)
    n_single = max(int(rng.random() * 3), 1 if n_groups == 0 else 0)
    for k in range(n_groups + n_single):
        job = int(rng.random() * n_jobs)
        group = jobs[job].group
        for i in range(groups[group].n_members if k < n_groups else 1):
            if k < n_groups:
                job = groups[group].members[i]
            if facts.homes[job].free != 0 and chosen[job] == 0:
                chosen[job] = 1
                picked[count] = job
                count += 1
    for k in range(count):
        chosen[picked[k]] = 0
    for k in range(count - 1, 0, -1):
        other = int(rng.random() * (k + 1))
        picked[k], picked[other] = picked[other], picked[k]
    return count


@compiled(arrays=False)
def _price(groups: Records, limits: Limits, facts: Regrouping, left: Ints) -> float:
    """What the nodes cost that the moves leave behind, until their pauses end, $.

    Args:
        left: (P, 2) room for counts.
    """
    left[:] = 0
    nodes_left(groups, facts, left)
    return float(provisioned_usd(left, limits) * facts.migration_h)


@compiled(arrays=False)
def _fits(groups: Records, limits: Limits, facts: Regrouping, used: Ints) -> bool:
    """Whether the cluster has the nodes that are in use; `used` is room as in `_price`."""
    if is_unlimited(limits):
        return True
    nodes_in_use(groups, facts, used)
    return are_within(used, limits)


@compiled
def regroup(view: View, facts: Regrouping, newcomer: int, budget: int, rng: np.random.Generator, rows: Records) -> float:
    """Place a newcomer, then regroup the free jobs for the better, in place.

    Args:
        view: the active jobs and no others; the present groups, then at least as many empty rows as there are jobs.
        newcomer: row of a job that waits for a place, or NOWHERE.
        budget: the search ends when it has looked at so many groups and places in them.
        rows: scratch, as in `insert`.

    Returns:
        What the moves save, discounted $, with what they cost taken off; nan where there is no place for the newcomer.
    """
    jobs, groups, limits = view.jobs, view.groups, view.limits
    n_jobs = facts.homes.shape[0]
    usd = np.zeros(groups.shape[0])
    for group in range(facts.rollout_nodes.shape[0]):
        usd[group] = group_usd(view, facts, group, NOWHERE, rows[0], groups[group].period_s)
    if newcomer != NOWHERE and insert(view, facts, newcomer, usd, 0.0, rng, rows) == 0:
        return np.nan
    began = usd.sum()
    now = began
    picked = np.empty(n_jobs, np.int64)
    chosen = np.zeros(n_jobs, np.int64)
    was = np.empty_like(facts.homes)
    was_training = np.empty(n_jobs, np.int64)
    was_usd = np.empty(usd.shape[0])
    counted = np.empty((limits.pools.shape[0], 2), np.int64)
    looked = 0
    while looked < budget:
        looked += 1
        count = _choose(jobs, groups, facts, rng, picked, chosen)
        if count == 0:
            continue
        for group in range(usd.shape[0]):
            was_usd[group] = usd[group]
        for k in range(count):
            job = picked[k]
            group = jobs[job].group
            rank = 0
            while groups[group].members[rank] != job:
                rank += 1
            was[k].group, was[k].rank, was_training[k] = group, rank, groups[group].training_nodes
            was[k].n_pins, was[k].visits = jobs[job].n_pins, jobs[job].visits
            for v in range(jobs[job].n_pins):
                was[k].pins[v] = jobs[job].pins[v]
            detach(jobs, groups, job)
        for k in range(count):
            group = was[k].group
            usd[group] = group_usd(view, facts, group, NOWHERE, rows[0], groups[group].period_s)
        placed = 0
        while placed < count:
            places = insert(view, facts, picked[placed], usd, OVERLOOKED, rng, rows)
            looked += places
            if places == 0:
                break
            placed += 1
        if placed == count and _fits(groups, limits, facts, counted):
            then = usd.sum() + _price(groups, limits, facts, counted)
            if then < now - _LEAST_USD:
                now = then
                continue
        for k in range(placed):
            detach(jobs, groups, picked[k])
        for k in range(count - 1, -1, -1):
            groups[was[k].group].training_nodes = was_training[k]
            put_back(jobs, groups, picked[k], was[k])
        for group in range(usd.shape[0]):
            usd[group] = was_usd[group]
    return float(began - now)
