"""A search for a better grouping of running jobs, over tables that are a copy of the present state.

A few jobs are taken out of their groups. Each is put back where the dollars rise least, which may be its old place, and the result
is kept if it saves more than its moves cost. Moves, swaps and mergers of groups are all of this kind. This is large neighbourhood
search (Shaw, 1998) by ruin and recreate (Schrimpf et al., 2000). Groups are overlooked at random while a job is put back, so that
the search varies (SISR: Christiaens and Vanden Berghe, 2020).

A decision in a large cluster examines a part of it, so that its cost does not grow with the cluster. Jobs arrive and depart one at
a time, and each causes a decision: a cluster twice as large has twice as many decisions in an hour. So each may examine a part, if
the parts are drawn again every time: groups that have just changed, some that a newcomer could join, and others at random,
expensive ones with a higher probability. (Large problems are improved part by part: Taillard and Voss, POPMUSIC, 2002.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.lns_insert import Regrouping, Search, insert, may_join, nodes_in_use, nodes_left, refresh_group
from rollmux_env.kernel.membership import detach
from rollmux_env.kernel.pools import are_within, is_unlimited, price_ratio, provisioned_usd
from rollmux_env.kernel.tables import NOWHERE, Ints, Limits, Records, View
from rollmux_env.kernel.trials import begin_trial, save_group, save_job, undo_trial

OVERLOOKED = 0.1  # share of the groups, while a job is put back
_LEAST_USD = 1e-6  # a saving below is rounding


@compiled(arrays=False)
def _choose(jobs: Records, groups: Records, facts: Regrouping, rng: np.random.Generator, picked: Ints, chosen: Ints) -> int:
    """Choose the jobs to take out, and return their number.

    They are the free members of up to two groups and up to two more jobs, in random order. Their rows are written to `picked`
    (J,). `chosen` (J,) has zeros before and after.
    """
    n_jobs = facts.n_jobs
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
def _price(jobs: Records, groups: Records, limits: Limits, facts: Regrouping, left: Ints) -> float:
    """Return the price of the nodes that the moves leave, until their pauses end, $. `left` (P, 2) is scratch."""
    left[:] = 0
    nodes_left(jobs, groups, facts, left)
    return float(provisioned_usd(left, limits) * facts.migration_h)


@compiled(arrays=False)
def _fits(jobs: Records, groups: Records, limits: Limits, facts: Regrouping, used: Ints) -> bool:
    """Return whether the cluster has the nodes that are in use; `used` (P, 2) is scratch."""
    if is_unlimited(limits):
        return True
    nodes_in_use(jobs, groups, facts, used)
    return are_within(used, limits)


@compiled(arrays=False)
def _detach_jobs(view: View, facts: Regrouping, picked: Ints, search: Search) -> None:
    """Begin a trial: detach jobs from their groups."""
    trial, jobs, groups = search.trial, view.jobs, view.groups
    begin_trial(trial)
    for job in picked:
        save_job(trial, jobs, job)
        save_group(trial, groups, jobs[job].group)
        detach(jobs, groups, job)
    for k in range(len(picked)):
        refresh_group(view, facts, trial.group_rows[k], search)


@compiled(arrays=False)
def _copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy values. With `out[:] = values` numba compiles a message about shapes, and all of its text functions for that."""
    for k in range(len(values)):
        out[k] = values[k]


@compiled
def regroup(view: View, facts: Regrouping, newcomer: int, budget: int, rng: np.random.Generator, search: Search) -> float:
    """Place a newcomer, then regroup the free jobs for less cost, in place.

    Args:
        view: Tables with the active jobs only, then the shapes of the free jobs with several, `first_shape` to `first_shape +
            more_shapes` of each; the present groups, then at least as many empty rows as there are jobs.
        facts: Facts about the jobs that are regrouped.
        newcomer: Row of a job that waits for a place, or NOWHERE.
        budget: Number of groups and places in them after which the search ends.
        rng: Random generator.
        search: Result of `rollmux_env.kernel.lns_insert.make_search` for the view.

    Returns:
        The saving of the moves less their cost, discounted $; nan if there is no place for the newcomer.
    """
    jobs, groups, limits, usd, version = view.jobs, view.groups, view.limits, search.usd, search.version
    for group in range(len(facts.rollout_nodes)):
        refresh_group(view, facts, group, search)
    if newcomer != NOWHERE and insert(view, facts, newcomer, 0.0, rng, search) == 0:
        return np.nan
    began = usd.sum()
    now = began
    picked = np.empty(facts.n_jobs, np.int64)
    chosen = np.zeros(facts.n_jobs, np.int64)
    was_usd = np.empty(len(usd), np.float64)
    was_version = np.empty(len(version), np.int64)
    counted = np.empty((len(limits.pools), 2), np.int64)
    looked = 0
    while looked < budget:
        looked += 1
        count = _choose(jobs, groups, facts, rng, picked, chosen)
        if count == 0:
            continue
        _copy(usd, was_usd)
        _copy(version, was_version)
        _detach_jobs(view, facts, picked[:count], search)
        placed = 0
        while placed < count:
            places = insert(view, facts, picked[placed], OVERLOOKED, rng, search)
            looked += places
            if places == 0:
                break
            placed += 1
        if placed == count and _fits(jobs, groups, limits, facts, counted):
            then = usd.sum() + _price(jobs, groups, limits, facts, counted)
            if then < now - _LEAST_USD:
                now = then
                continue
        undo_trial(search.trial, jobs, groups)
        _copy(was_usd, usd)
        _copy(was_version, version)
    return float(began - now)


_ROUND = 3  # groups that are compared; the most expensive of them is taken
_TRIES = 8  # draws for every group that is wanted
_SHARE = 3  # a third at most for groups that have changed, and for those that a newcomer could join


@compiled
def choose_part(view: View, newcomer: int, host: int, rng: np.random.Generator, out: Ints) -> int:
    """Choose the groups to examine, if there are more of them than `out` has room for.

    Args:
        view: Tables of the cluster.
        newcomer: Row of a job that waits for a place, negative for none.
        host: Row of a group that the newcomer fits into, negative for none.
        rng: Random generator.
        out: (F,) positions of the groups in the view's order, ascending; written.

    Returns:
        The number of groups.
    """
    groups, order = view.groups, view.order
    n, most = len(order), len(out)
    chosen = np.zeros(n, np.bool_)
    count = 0
    for k in range(n):
        known = order[k] == host
        if known or (count < most // _SHARE and groups[order[k]].settled_s == view.clock.now_s):
            chosen[k] = True
            count += 1
    wanted = min(most, count + most // _SHARE) if newcomer >= 0 else 0
    for _ in range(_TRIES * wanted):
        joinable = _draw_joinable(view, chosen, newcomer, rng) if count < wanted else -1
        if joinable >= 0:
            chosen[joinable] = True
            count += 1
    for _ in range(_TRIES * most):
        best = _draw_expensive(view, chosen, rng) if count < most else -1
        if best >= 0:
            chosen[best] = True
            count += 1
    at = 0
    for k in np.flatnonzero(chosen)[:most]:
        out[at] = k
        at += 1
    return at


@compiled(arrays=False)
def _draw_joinable(view: View, chosen: NDArray[np.bool_], newcomer: int, rng: np.random.Generator) -> int:
    """Draw a group, and return its position in the view's order, or -1 if it is chosen already or the newcomer may not join it."""
    k = int(rng.random() * len(view.order))
    group = view.groups[view.order[k]]
    if not chosen[k] and group.exclusive == 0 and may_join(view.jobs, group, view.limits, newcomer):
        return k
    return -1


@compiled(arrays=False)
def _draw_expensive(view: View, chosen: NDArray[np.bool_], rng: np.random.Generator) -> int:
    """Return the most expensive of a few random groups, as its position in the view's order, or -1 if all are chosen already."""
    best, highest = -1, -1.0
    for _ in range(_ROUND):
        k = int(rng.random() * len(view.order))
        group = view.groups[view.order[k]]
        if not chosen[k] and group.exclusive == 0:
            ratio = price_ratio(view.jobs, group, view.limits)
            if ratio > highest:
                best, highest = k, ratio
    return best
