"""A search for a better grouping of running jobs, over tables that are a copy of the present state.

A few jobs are taken out of their groups, each is put back where the dollars rise least (which may be where it was), and the
result is kept where it is worth more than its moves cost: moves, swaps and mergers of groups are all of this kind. This is large
neighbourhood search (Shaw, 1998) by ruin and recreate (Schrimpf et al., 2000), with groups overlooked at random while a job is put
back, so that the search does not always do the same (SISR: Christiaens and Vanden Berghe, 2020).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import FEASIBLE, enumerate_candidates
from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.membership import attach, detach, open_group, refresh, training_seconds
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Floats, GroupTable, Ints, JobTable, Limits
from rollmux_env.kernel.worth import Regrouping, group_usd, job_worth, nodes_in_use, nodes_left

OVERLOOKED = 0.1  # share of the groups, while a job is put back
_ALL_PINS = 2  # up to so many rollout nodes of a job all ways to pin it are looked at, beyond that the cheapest of each group
_LEAST_USD = 1e-6  # a saving below is rounding
_TIE_USD = 1e-9


class Room(NamedTuple):
    """Columns that `enumerate_candidates` writes."""

    group: Ints
    new_nodes: Ints
    nodes: Ints
    usd: Floats
    period_s: Floats
    reason: Ints


def candidate_room(rows: int, nodes: int) -> Room:
    """Room for so many candidates a group, of jobs with at most `nodes` rollout nodes; more candidates are not looked at."""
    group, new_nodes, reason = (np.empty(rows, np.int64) for _ in range(3))
    return Room(group, new_nodes, np.empty((rows, nodes), np.int64), np.empty(rows), np.empty(rows), reason)


@uncounted
def put_back(jobs: JobTable, groups: GroupTable, job: int, group: int, pins: Ints, n_pins: int, rank: int) -> None:
    """Make a job again what it was before it was taken out: member number `rank` of a group, on rollout nodes of these numbers."""
    n = groups.n_members[group]
    for i in range(n, rank, -1):
        groups.members[group, i] = groups.members[group, i - 1]
    groups.members[group, rank] = job
    groups.n_members[group] = n + 1
    numbers = groups.node_number[group]
    for k in range(n_pins):
        jobs.pins[job, k] = pins[k]
        groups.next_number[group] = max(groups.next_number[group], pins[k] + 1)
        v = groups.n_nodes[group]
        while v > 0 and numbers[v - 1] > pins[k]:
            v -= 1
        if v > 0 and numbers[v - 1] == pins[k]:
            continue
        for w in range(groups.n_nodes[group], v, -1):
            numbers[w] = numbers[w - 1]
        numbers[v] = pins[k]
        groups.n_nodes[group] += 1
    jobs.n_pins[job] = n_pins
    jobs.group[job] = group
    jobs.placed_rollout_s[job] = jobs.rollout_s[job]
    jobs.placed_training_s[job] = training_seconds(jobs, job, groups.training_nodes[group])
    jobs.placed_sync_s[job] = jobs.sync_s[job]
    refresh(jobs, groups, group)


@compiled
def _go_home(jobs: JobTable, groups: GroupTable, limits: Limits, facts: Regrouping, job: int) -> bool:
    """Put a job back where it is at home; False, and nothing done, where there is no place for it there any more."""
    group = facts.home[job]
    if group == NOWHERE or groups.n_members[group] >= limits.group_size_max:
        return False
    rank = 0
    for i in range(groups.n_members[group]):
        member = groups.members[group, i]
        if facts.home[member] == group and facts.home_rank[member] < facts.home_rank[job]:
            rank += 1
    put_back(jobs, groups, job, group, facts.home_pins[job], facts.home_n_pins[job], rank)
    fits = (
        groups.period_s[group] <= groups.limit_s[group] * (1.0 + TOLERANCE)
        and groups.training_gb[group] <= limits.training_node_gb * (1.0 + TOLERANCE)
        and groups.node_gb[group, : groups.n_nodes[group]].max() <= limits.rollout_node_gb * (1.0 + TOLERANCE)
    )
    if not fits:
        detach(jobs, groups, job)
    return bool(fits)


@uncounted
def group_usd_now(jobs: JobTable, groups: GroupTable, limits: Limits, facts: Regrouping, group: int) -> float:
    """`group_usd` of a group as it is."""
    return group_usd(jobs, groups, limits, facts, group, NOWHERE, groups.node_number[group], 0, groups.period_s[group])


@uncounted
def _may_join(jobs: JobTable, groups: GroupTable, limits: Limits, job: int, group: int) -> bool:
    """What can be said of a group as a whole, before its nodes are looked at."""
    limit = min(groups.limit_s[group], jobs.limit_s[job]) * (1.0 + TOLERANCE)
    training_s = groups.training_load_s[group] + training_seconds(jobs, job, groups.training_nodes[group])
    return bool(
        groups.n_members[group] < limits.group_size_max
        and groups.training_nodes[group] >= jobs.training_nodes[job]
        and max(groups.period_s[group], training_s) <= limit
    )


@compiled
def insert(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    facts: Regrouping,
    job: int,
    usd: Floats,
    overlooked: float,
    rng: np.random.Generator,
    space: Room,
) -> int:
    """Give a job that is in no group the place where the dollars rise least.

    Args:
        usd: (G,) `group_usd_now` of every group row; kept up to date.
        overlooked: share of the groups that are left out, at random.

    Returns:
        How many groups and places in them were looked at; 0 where there is no place for the job.
    """
    home = facts.home[job]
    wanted = jobs.rollout_nodes[job]
    used_rollout, used_training = 0, 0
    if limits.rollout_nodes_max < np.inf or limits.training_nodes_max < np.inf:
        used_rollout, used_training = nodes_in_use(groups, facts)
    looked = 0
    best = np.inf
    best_group = NOWHERE
    best_new = wanted
    best_nodes = np.empty(space.nodes.shape[1], np.int64)
    if _go_home(jobs, groups, limits, facts, job):
        looked += 1
        # The nodes to be held elsewhere are only known when all jobs have a place; a rollout node each is about right.
        best = group_usd_now(jobs, groups, limits, facts, home) - usd[home] - limits.rollout_usd * wanted * facts.migration_h
        best_group = home
        detach(jobs, groups, job)
    empty = NOWHERE
    one = np.empty(1, np.int64)
    for group in range(groups.id.shape[0]):
        if groups.n_members[group] == 0:
            if empty == NOWHERE and group >= facts.home_rollout_nodes.shape[0]:
                empty = group
            continue
        looked += 1
        if group == home or not _may_join(jobs, groups, limits, job, group):
            continue
        if overlooked > 0.0 and rng.random() < overlooked:
            continue
        one[0] = group
        rows = enumerate_candidates(
            jobs,
            groups,
            one,
            limits,
            used_rollout,
            used_training,
            job,
            wanted > _ALL_PINS,
            False,
            space.group,
            space.new_nodes,
            space.nodes,
            space.usd,
            space.period_s,
            space.reason,
        )
        looked += rows
        for row in range(min(rows, space.group.shape[0])):
            if space.group[row] != group or space.reason[row] != FEASIBLE:
                continue
            new = space.new_nodes[row]
            more = group_usd(jobs, groups, limits, facts, group, job, space.nodes[row], new, space.period_s[row]) - usd[group]
            if more < best - _TIE_USD:
                best, best_group, best_new = more, group, new
                best_nodes[:] = space.nodes[row]
    training = jobs.training_nodes[job]
    if (
        empty != NOWHERE
        and used_rollout + wanted <= limits.rollout_nodes_max
        and used_training + training <= limits.training_nodes_max
    ):
        looked += 1
        hours, worth = job_worth(jobs, facts, job, empty, jobs.solo_s[job])
        if hours * (wanted * limits.rollout_usd + training * limits.training_usd) - worth < best - _TIE_USD:
            best_group, best_new = empty, wanted
            open_group(groups, empty, -1, training, 0.0)
    if best_group == NOWHERE:
        return 0
    if best_group == home:
        _go_home(jobs, groups, limits, facts, job)
    else:
        attach(jobs, groups, job, best_group, best_nodes[: wanted - best_new], best_new)
    usd[best_group] = group_usd_now(jobs, groups, limits, facts, best_group)
    return looked


@uncounted
def _choose(jobs: JobTable, groups: GroupTable, facts: Regrouping, rng: np.random.Generator, picked: Ints, chosen: Ints) -> int:
    """Choose the jobs to take out: the members of up to two groups, and up to two more jobs; those that are free, in random order.

    Args:
        picked: (J,) out: their rows. chosen: (J,) zeros, and zeros again afterwards.

    Returns:
        How many.
    """
    n_jobs = facts.home.shape[0]
    count = 0
    n_groups = int(rng.random() * 3)
    n_single = max(int(rng.random() * 3), 1 if n_groups == 0 else 0)
    for k in range(n_groups + n_single):
        job = int(rng.random() * n_jobs)
        group = jobs.group[job]
        for i in range(groups.n_members[group] if k < n_groups else 1):
            if k < n_groups:
                job = groups.members[group, i]
            if facts.free[job] != 0 and chosen[job] == 0:
                chosen[job] = 1
                picked[count] = job
                count += 1
    for k in range(count):
        chosen[picked[k]] = 0
    for k in range(count - 1, 0, -1):
        other = int(rng.random() * (k + 1))
        picked[k], picked[other] = picked[other], picked[k]
    return count


@uncounted
def _price(groups: GroupTable, limits: Limits, facts: Regrouping) -> float:
    """What the nodes cost that the moves leave behind, until their pauses end, $."""
    rollout, training = nodes_left(groups, facts)
    return float((rollout * limits.rollout_usd + training * limits.training_usd) * facts.migration_h)


@uncounted
def _fits(groups: GroupTable, limits: Limits, facts: Regrouping) -> bool:
    if limits.rollout_nodes_max == np.inf and limits.training_nodes_max == np.inf:
        return True
    rollout, training = nodes_in_use(groups, facts)
    return bool(rollout <= limits.rollout_nodes_max and training <= limits.training_nodes_max)


@compiled
def regroup(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    facts: Regrouping,
    newcomer: int,
    budget: int,
    rng: np.random.Generator,
    space: Room,
) -> float:
    """Place a newcomer, then regroup the free jobs for the better, in place.

    Args:
        jobs: (J,) the active jobs and no others. groups: the present groups, then at least as many empty rows as there are jobs.
        newcomer: row of a job that waits for a place, or NOWHERE.
        budget: the search ends when it has looked at so many groups and places in them.

    Returns:
        What the moves save, discounted $, with what they cost taken off; nan where there is no place for the newcomer.
    """
    n_jobs = facts.home.shape[0]
    usd = np.zeros(groups.id.shape[0])
    for group in range(facts.home_rollout_nodes.shape[0]):
        usd[group] = group_usd_now(jobs, groups, limits, facts, group)
    if newcomer != NOWHERE and insert(jobs, groups, limits, facts, newcomer, usd, 0.0, rng, space) == 0:
        return np.nan
    began = usd.sum()
    now = began
    picked = np.empty(n_jobs, np.int64)
    chosen = np.zeros(n_jobs, np.int64)
    was_group, was_rank, was_training = (np.empty(n_jobs, np.int64), np.empty(n_jobs, np.int64), np.empty(n_jobs, np.int64))
    was_n_pins = np.empty(n_jobs, np.int64)
    was_pins = np.empty((n_jobs, jobs.pins.shape[1]), np.int64)
    was_usd = usd.copy()
    looked = 0
    while looked < budget:
        looked += 1
        count = _choose(jobs, groups, facts, rng, picked, chosen)
        if count == 0:
            continue
        was_usd[:] = usd
        for k in range(count):
            job = picked[k]
            group = jobs.group[job]
            rank = 0
            while groups.members[group, rank] != job:
                rank += 1
            was_group[k], was_rank[k], was_training[k] = group, rank, groups.training_nodes[group]
            was_n_pins[k] = jobs.n_pins[job]
            was_pins[k] = jobs.pins[job]
            detach(jobs, groups, job)
        for k in range(count):
            usd[was_group[k]] = group_usd_now(jobs, groups, limits, facts, was_group[k])
        placed = 0
        while placed < count:
            places = insert(jobs, groups, limits, facts, picked[placed], usd, OVERLOOKED, rng, space)
            looked += places
            if places == 0:
                break
            placed += 1
        if placed == count and _fits(groups, limits, facts):
            then = usd.sum() + _price(groups, limits, facts)
            if then < now - _LEAST_USD:
                now = then
                continue
        for k in range(placed):
            detach(jobs, groups, picked[k])
        for k in range(count - 1, -1, -1):
            groups.training_nodes[was_group[k]] = was_training[k]
            put_back(jobs, groups, picked[k], was_group[k], was_pins[k], was_n_pins[k], was_rank[k])
        usd[:] = was_usd
    return float(began - now)
