"""The best place and shape of a running job in one group, at what it makes the group cost from now on."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmux_env.kernel.candidates import bar_nodes, next_period
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import (
    entry_limit,
    keeps_alone,
    refresh,
    shape_row,
    training_memory_fits,
    training_seconds,
)
from rollmux_env.kernel.pools import has_room, is_same
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Floats, Limits, Records, View
from rollmux_env.kernel.valuation import N_VALUES, Valuation, net_usd, value_group, value_members

_TIE_USD = 1e-9


def place_type(nodes: int) -> np.dtype[Any]:
    """A place of a job with at most so many rollout nodes.

    ok: 1 where there is one; breaks: 1 where it breaks an SLO. of_shape: number of the job's shape there. new_nodes: rollout nodes
    to add; nodes: numbers of the group's nodes, padded with -1. period_s: of the group with the job. more: what it adds to the
    group's values; usd: `net_usd` of that.
    """
    floats = [("period_s", "f8"), ("usd", "f8"), ("more", "f8", (N_VALUES,))]
    ints = [(name, "i8") for name in ("ok", "breaks", "of_shape", "new_nodes")]
    return np.dtype([*ints, ("nodes", "i8", (nodes,)), *floats])


@compiled(arrays=False)
def _may_join(jobs: Records, group: Records, job: Records, limits: Limits, shield: bool) -> bool:
    """Whether a job, a record as the group is, might have a place there: what is known without its training seconds there."""
    if shield and group.period_s > entry_limit(jobs, job, group, 0) * (1.0 + TOLERANCE):
        return False
    return bool(
        0 < group.n_members < limits.group_size_max
        and group.exclusive == 0
        and is_same(group, job)
        and group.training_nodes >= job.training_nodes
        and training_memory_fits(group, job, limits)
    )


@compiled(arrays=False)
def best_place(view: View, valuation: Valuation, group: int, job: int, barred: int, before: Floats, best: Records) -> None:
    """Find the place in a group, and the shape, where a running job costs least.

    Args:
        group: row of a group that the job is not in.
        barred: number of a shape that is left out, negative for none.
        before: (N_VALUES,) what the group comes to without the job.
        best: out: a record of `place_type`.
    """
    best.ok = 0
    best.usd = np.inf
    asks, shield = view.jobs[job], valuation.terms[0].shield == 1
    for shape in range(1 + asks.more_shapes):
        row = shape_row(asks, job, shape)
        if shape != barred and _may_join(view.jobs, view.groups[group], view.jobs[row], view.limits, shield):
            _look(view, valuation, group, row, before, best)


@compiled(arrays=False)
def _look(view: View, valuation: Valuation, group: int, job: int, before: Floats, best: Records) -> None:
    """Look at the places in a group of the job, or the shape of one, in a row, and keep what costs less than `best`."""
    g, j = view.groups[group], view.jobs[job]
    place, values, subsets = valuation.place[0], valuation.values, valuation.subsets
    training_s = training_seconds(view.jobs, job, g.training_nodes)
    limit = entry_limit(view.jobs, j, g, 0) * (1.0 + TOLERANCE)  # who runs enters nowhere warm
    longest = limit if valuation.terms[0].shield == 1 else np.inf
    if max(g.period_s, g.training_load_s + training_s) > longest:
        return
    bar_nodes(g, j, view.limits, longest, subsets)
    valued_s = -1.0
    for new in range(max(0, j.rollout_nodes - g.n_nodes), j.rollout_nodes + 1):
        size = j.rollout_nodes - new
        if not has_room(j, new, 0, view.limits, view.clock):
            break
        period = next_period(view, job, group, subsets, size, True, (training_s, longest))
        while period < np.inf:
            place.new_nodes, place.period_s = new, period
            for k in range(len(place.nodes)):
                place.nodes[k] = g.node_number[subsets.chosen[k]] if k < size else -1
            if period != valued_s:
                value_members(view, valuation, group, period)
                valued_s = period
            value_group(view, valuation, group, job, place, values)
            usd = net_usd(values) - net_usd(before)
            if usd < best.usd - _TIE_USD:
                for k in range(len(values)):
                    values[k] -= before[k]
                _keep(best, j.of_shape, place, usd, values)
                best.breaks = 1 if period > limit else 0
            period = next_period(view, job, group, subsets, size, False, (training_s, longest))


@compiled(arrays=False)
def place_alone(view: View, valuation: Valuation, job: int, barred: int, best: Records) -> None:
    """The place of a running job in a new group; arguments as in `best_place`."""
    place, values = valuation.place[0], valuation.values
    best.ok = 0
    best.usd = np.inf
    for shape in range(1 + view.jobs[job].more_shapes):
        row = shape_row(view.jobs[job], job, shape)
        asks = view.jobs[row]
        n = asks.rollout_nodes
        if shape == barred or not keeps_alone(asks) or not has_room(asks, n, asks.training_nodes, view.limits, view.clock):
            continue
        place.new_nodes, place.period_s = n, asks.alone_s
        for k in range(len(place.nodes)):
            place.nodes[k] = -1
        value_members(view, valuation, NOWHERE, place.period_s)
        value_group(view, valuation, NOWHERE, row, place, values)
        usd = net_usd(values)
        if usd < best.usd - _TIE_USD:
            _keep(best, shape, place, usd, values)


@compiled(arrays=False)
def _keep(best: Records, shape: int, place: Records, usd: float, more: Floats) -> None:
    """Write a place that keeps every SLO, where a group comes to so much `more` with the job."""
    best.ok = 1
    best.breaks = 0
    best.of_shape = shape
    best.usd, best.new_nodes, best.period_s = usd, place.new_nodes, place.period_s
    for k in range(len(best.nodes)):
        best.nodes[k] = place.nodes[k]
    for k in range(len(more)):
        best.more[k] = more[k]


@compiled(arrays=False)
def copy_without(jobs: Records, groups: Records, job: int, copies: Records, copy: int) -> None:
    """Make a row of another table a copy of a job's group without the job.

    Args:
        copies: a table with as many rows at least as `groups` has, so that what is looked up by a member's group exists.
    """
    g, c = groups[jobs[job].group], copies[copy]
    copies[copy] = g
    count = 0
    for i in range(g.n_members):
        if g.members[i] != job:
            c.members[count] = g.members[i]
            count += 1
    c.n_members = count
    left = 0
    for v in range(g.n_nodes):
        used = False
        for i in range(count):
            member = jobs[c.members[i]]
            for k in range(member.n_pins):
                used = used or member.pins[k] == g.node_number[v]
        if used:
            c.node_number[left] = g.node_number[v]
            left += 1
    c.n_nodes = left
    if count > 0:
        refresh(jobs, copies, copy)
