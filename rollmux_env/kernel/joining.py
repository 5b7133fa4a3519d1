"""The best place of a running job in one group, at what it makes the group cost from now on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import complete, next_subset, period_with
from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.horizons import N_VALUES, Stays, net_usd, value_of
from rollmux_env.kernel.membership import refresh, training_seconds
from rollmux_env.kernel.tables import TOLERANCE, Floats, GroupTable, Ints, JobTable, Limits

Records = Any  # a structured array

_TIE_USD = 1e-9


class Terms(NamedTuple):
    """What holds for all moves of a decision.

    Attributes:
        migration_h: pause of a move, hours.
        work_usd: worth of a work-hour, $.
        rollout_nodes, training_nodes: provisioned now.
        shield: places that break an SLO are left out.
    """

    migration_h: float
    work_usd: float
    rollout_nodes: int
    training_nodes: int
    shield: bool


class Scratch(NamedTuple):
    """Room for looking at one place: (N + 1,) nodes of a job, (N',) of a group, (N_VALUES,) numbers."""

    chosen: Ints
    nodes: Ints
    needed: Floats
    values: Floats


def place_type(nodes: int) -> np.dtype[Any]:
    """A place of a job with at most so many rollout nodes.

    ok: 1 where there is one; breaks: 1 where it breaks an SLO. new_nodes: rollout nodes to add; nodes: numbers of the group's
    nodes, padded with -1. period_s: of the group with the job. more: what it adds to the group's values; usd: `net_usd` of that.
    """
    floats = [("period_s", "f8"), ("usd", "f8"), ("more", "f8", (N_VALUES,))]
    return np.dtype([("ok", "i8"), ("breaks", "i8"), ("new_nodes", "i8"), ("nodes", "i8", (nodes,)), *floats])


@uncounted
def _loads_fit(group: Records, limits: Limits, chosen: Ints, size: int, gb: float, rollout_s: float, limit: float) -> bool:
    for k in range(size):
        if group.node_gb[chosen[k]] + gb > limits.rollout_node_gb * (1.0 + TOLERANCE):
            return False
        if group.node_load_s[chosen[k]] + rollout_s > limit:
            return False
    return True


@uncounted
def may_join(group: Records, job: Records, limits: Limits, shield: bool) -> bool:
    """Whether a job, a record as the group is, might have a place there: what is known without its training seconds there.

    Arrays cost more to pass than this takes, records nothing, and many pairs end here.
    """
    if shield and group.period_s > min(group.limit_s, job.limit_s) * (1.0 + TOLERANCE):
        return False
    return bool(
        0 < group.n_members < limits.group_size_max
        and group.exclusive == 0
        and group.training_nodes >= job.training_nodes
        and group.training_gb + job.training_gb <= limits.training_node_gb * (1.0 + TOLERANCE)
    )


@uncounted
def best_place(
    jobs: Records,
    groups: Records,
    limits: Limits,
    stays: Stays,
    terms: Terms,
    group: int,
    job: int,
    before: Floats,
    scratch: Scratch,
    best: Records,
) -> None:
    """Find the place in a group where a running job of another group costs least; call it where `may_join`.

    Args:
        before: (N_VALUES,) what the group comes to without the job.
        best: out: a record of `place_type`.
    """
    best.ok = 0
    best.usd = np.inf
    g, j = groups[group], jobs[job]  # read once: a column of a table of records is a new view wherever it is named
    pool = g.training_nodes
    training_s = training_seconds(jobs, job, pool)
    limit = min(g.limit_s, j.limit_s) * (1.0 + TOLERANCE)
    longest = limit if terms.shield else np.inf
    if max(g.period_s, g.training_load_s + training_s) > longest:
        return
    n_nodes = g.n_nodes
    n = j.rollout_nodes
    rollout_gb, rollout_s = j.rollout_gb, j.rollout_s
    before_nodes = g.node_before
    chosen, nodes, values = scratch.chosen, scratch.nodes, scratch.values
    for new in range(max(0, n - n_nodes), n + 1):
        size = n - new
        if new > 0 and terms.rollout_nodes + new > limits.rollout_nodes_max:
            break
        more = complete(chosen, 0, size, n_nodes, before_nodes)
        while more:
            if _loads_fit(g, limits, chosen, size, rollout_gb, rollout_s, longest):
                period = period_with(jobs, groups, job, group, training_s, chosen, size, longest)
                if period <= longest:
                    for k in range(size):
                        nodes[k] = g.node_number[chosen[k]]
                    pause_h = terms.migration_h
                    value_of(
                        jobs,
                        groups,
                        limits,
                        stays,
                        group,
                        pool,
                        job,
                        nodes,
                        new,
                        period,
                        pause_h,
                        terms.work_usd,
                        scratch.needed,
                        values,
                    )
                    usd = net_usd(values) - net_usd(before)
                    if usd < best.usd - _TIE_USD:
                        best.ok = 1
                        best.breaks = 1 if period > limit else 0
                        best.usd = usd
                        best.period_s = period
                        best.new_nodes = new
                        for k in range(best.nodes.shape[0]):
                            best.nodes[k] = nodes[k] if k < size else -1
                        for k in range(values.shape[0]):
                            best.more[k] = values[k] - before[k]
            more = next_subset(chosen, size, n_nodes, before_nodes)


@uncounted
def place_alone(
    jobs: JobTable, groups: GroupTable, limits: Limits, stays: Stays, terms: Terms, job: int, scratch: Scratch, best: Records
) -> None:
    """The place of a running job in a new group; arguments as in `best_place`."""
    n = jobs.rollout_nodes[job]
    pool = jobs.training_nodes[job]
    fits = terms.rollout_nodes + n <= limits.rollout_nodes_max and terms.training_nodes + pool <= limits.training_nodes_max
    best.ok = 1 if fits else 0
    best.breaks = 0
    best.new_nodes = n
    best.nodes[:] = -1
    best.period_s = jobs.solo_s[job]
    nodes, values, needed = scratch.nodes, scratch.values, scratch.needed
    pause_h = terms.migration_h
    solo_s = jobs.solo_s[job]
    value_of(jobs, groups, limits, stays, -1, pool, job, nodes, n, solo_s, pause_h, terms.work_usd, needed, values)
    best.usd = net_usd(values) if fits else np.inf
    for k in range(values.shape[0]):
        best.more[k] = values[k]


@uncounted
def copy_group(jobs: JobTable, groups: Records, group: int, without: int, copies: Records, copy: int) -> None:
    """Make a row of another table a copy of a group without one of its members.

    Args:
        without: row of the member; negative leaves none out.
        copies: a table with as many rows at least as `groups` has, so that what is looked up by a member's group exists.
    """
    copies[copy] = groups[group]
    if without < 0:
        return
    kept = 0
    for i in range(groups.n_members[group]):
        member = groups.members[group, i]
        if member != without:
            copies.members[copy, kept] = member
            kept += 1
    copies.n_members[copy] = kept
    left = 0
    for v in range(groups.n_nodes[group]):
        number = groups.node_number[group, v]
        used = False
        for i in range(kept):
            member = copies.members[copy, i]
            for k in range(jobs.n_pins[member]):
                used = used or jobs.pins[member, k] == number
        if used:
            copies.node_number[copy, left] = number
            left += 1
    copies.n_nodes[copy] = left
    if kept > 0:
        refresh(jobs, copies, copy)
