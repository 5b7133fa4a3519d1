"""The exact period of strict round robin: a maximum cycle ratio.

Events of a meta-iteration are the starts of the members' rollouts and trainings, in admission order. An arc u -> v of weight w and
t tokens says: v starts at least w seconds after u of t meta-iterations ago. The period is the largest (seconds / tokens) over the
cycles of this graph (max-plus spectral theory: the growth rate in steady state). The arc from a training and its sync to a later
rollout of its member carries 1 + staleness tokens: that rollout is 1 + staleness meta-iterations later.

It is found by Newton's method: start with the cycles that exist by construction (every member alone, every node), look for a cycle
that is longer at this period, take its ratio as the next period, until there is none.

If every member is pinned to one node and none has a sync, only these cycles matter, at any staleness. Consider another elementary
cycle that goes m times from a training to a rollout. Its rollouts take at most m loads of a node and its trainings one. It has a
token for each of the m, and one more because it goes around the order of admission.

Members' phases are rows of an array: rollout, training and sync seconds, staleness, and the warm starts of the first two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.kernel.tables import Floats, Ints

_ROUNDING = 1e-12
PHASES = 6  # rows of phases


own_period = twin(alone_s)


@compiled(arrays=False)
def cycle_of(phases: Floats, i: int) -> float:
    """Return the seconds of an iteration of a member alone."""
    return float(own_period(phases[0, i], phases[1, i], phases[2, i], phases[3, i]))


@compiled(arrays=False)
def period_bound(phases: Floats, pinned: Ints, n: int, n_nodes: int) -> float:
    """Return the larger of every member's own cycle and every node's load: never above the period.

    Args:
        phases: (>= 4, >= n) the members' phases in order of admission.
        pinned: (>= n, >= n_nodes) 1 where a member is pinned to a rollout node.
        n: Number of members.
        n_nodes: Number of rollout nodes.

    Returns:
        Seconds.
    """
    bound = load_bound(phases, pinned, n, n_nodes)
    for i in range(n):
        bound = max(bound, cycle_of(phases, i))
    return bound


@compiled(arrays=False)
def load_bound(phases: Floats, pinned: Ints, n: int, n_nodes: int) -> float:
    """Return T_load, the largest sum of phases of a meta-iteration on one node, in seconds; arguments as in `period_bound`."""
    bound = 0.0
    for i in range(n):
        bound += phases[1, i]
    for v in range(n_nodes):
        load = 0.0
        for i in range(n):
            if pinned[i, v] != 0:
                load += phases[0, i]
        bound = max(bound, load)
    return bound


@compiled(arrays=False)
def add_warm_starts(phases: Floats, pinned: Ints, n: int, n_nodes: int) -> None:
    """Lengthen the phases of a group by their warm starts.

    On a node that two members use, another job's phase always precedes, so the state must be loaded. On a node that one member
    uses alone, the state is still on the devices.

    Args:
        phases: (PHASES, >= n) the members' phases; rollouts and trainings are written.
        pinned: (>= n, >= n_nodes) 1 where a member is pinned to a rollout node.
        n: Number of members.
        n_nodes: Number of rollout nodes.
    """
    if n < 2:
        return
    for i in range(n):
        phases[1, i] += phases[5, i]
        for v in range(n_nodes):
            users = 0
            if pinned[i, v] != 0:
                for k in range(n):
                    users += pinned[k, v]
            if users > 1:
                phases[0, i] += phases[4, i]
                break


class _Arcs(NamedTuple):
    """The graph of a group: of its A arcs, those into event v are `first[v]` to `first[v + 1]`.

    Attributes:
        source: (A,) events at which the arcs begin.
        tokens: (A,) tokens of the arcs.
        weight: (A,) weights of the arcs, seconds.
        first: (events + 1,) position of the first arc into each event.
        parent: (events,) arcs of a path that may be a cycle.
        mark: (events,) scratch.
        start: (events,) start of each event, seconds.
    """

    source: Ints
    tokens: Ints
    weight: Floats
    first: Ints
    parent: Ints
    mark: Ints
    start: Floats


@compiled
def exact_period(phases: Floats, pinned: Ints, n: int, n_nodes: int, bound: float) -> float:
    """Return the period of a group under strict round robin, for any pinning, any sync and any staleness.

    Args:
        phases: (>= 4, >= n) the members' phases in order of admission.
        pinned: (>= n, >= n_nodes) 1 where a member is pinned to a rollout node.
        n: Number of members.
        n_nodes: Number of rollout nodes.
        bound: Result of `period_bound` for them, seconds.

    Returns:
        Seconds, exact to rounding.
    """
    if n == 1:
        return bound
    if n == 2 and phases[3, 0] == 0.0 and phases[3, 1] == 0.0:
        return bound  # a cycle through both members has two tokens and at most the seconds of one cycle of each
    events = 2 * n
    most = 3 * n + n * min(n_nodes, n - 1) + n
    ints = np.empty(2 * most + 3 * events + 1 + n_nodes + n, np.int64)  # one piece, since allocations are expensive here
    floats = np.empty(most + events)
    at = 2 * most + events + 1
    arcs = _Arcs(
        source=ints[:most],
        tokens=ints[most : 2 * most],
        weight=floats[:most],
        first=ints[2 * most : at],
        parent=ints[at : at + events],
        mark=ints[at + events : at + 2 * events],
        start=floats[most:],
    )
    rest = ints[at + 2 * events :]
    _write_arcs(phases, pinned, n, n_nodes, arcs, rest[:n_nodes], rest[n_nodes:])
    period = bound
    while True:
        longer = _longer_cycle(arcs, events, period, _ROUNDING * bound)
        if longer <= period:
            return period
        period = longer


@compiled(arrays=False)
def _write_arcs(phases: Floats, pinned: Ints, n: int, n_nodes: int, arcs: _Arcs, used_by: Ints, arc_to: Ints) -> None:
    """Write a group's arcs; `used_by` (n_nodes,) and `arc_to` (n,) are scratch.

    The rollout of member i is event 2i, its training event 2i + 1. So arcs without a token go from lower to higher numbers.
    """
    arc_to[:] = -1
    for v in range(n_nodes):
        used_by[v] = -1
        for i in range(n):
            if pinned[i, v] != 0:
                used_by[v] = i
    count = 0
    for i in range(n):
        arcs.first[2 * i] = count
        count = _add_arc(arcs, count, 2 * i + 1, phases[1, i] + phases[2, i], 1 + int(phases[3, i]))
        for v in range(n_nodes):
            if pinned[i, v] != 0:
                j = used_by[v]
                used_by[v] = i
                if j != i and arc_to[j] != i:
                    arc_to[j] = i
                    count = _add_arc(arcs, count, 2 * j, phases[0, j], 1 if j > i else 0)
        arcs.first[2 * i + 1] = count
        count = _add_arc(arcs, count, 2 * i, phases[0, i], 0)
        j = i - 1 if i > 0 else n - 1
        count = _add_arc(arcs, count, 2 * j + 1, phases[1, j], 1 if i == 0 else 0)
    arcs.first[2 * n] = count


@compiled(arrays=False)
def _add_arc(arcs: _Arcs, at: int, source: int, weight: float, tokens: int) -> int:
    """Write the next arc; returns how many there are then."""
    arcs.source[at], arcs.weight[at], arcs.tokens[at] = source, weight, tokens
    return at + 1


@compiled(arrays=False)
def _longer_cycle(arcs: _Arcs, events: int, period: float, rounding: float) -> float:
    """Return the seconds per token of a cycle that is longer than a period; negative if there is none."""
    source, first, start = arcs.source, arcs.first, arcs.start
    start[:] = 0.0
    arcs.parent[:] = -1
    longer = -1.0
    for sweep in range(events + 1):
        moved = False
        for u in range(events):
            for a in range(first[u], first[u + 1]):
                earliest = start[source[a]] + arcs.weight[a] - period * arcs.tokens[a]
                if earliest > start[u] + rounding:
                    start[u] = earliest
                    arcs.parent[u] = a
                    moved = True
        if not moved:
            return -1.0
        if sweep > 0:
            longer = _parent_cycle_ratio(arcs, events)
            if longer > 0.0:
                break
    return longer


@compiled(arrays=False)
def _parent_cycle_ratio(arcs: _Arcs, events: int) -> float:
    """Return the seconds per token of a cycle of the parent arcs, or -1 if they have none."""
    source, parent, mark = arcs.source, arcs.parent, arcs.mark
    mark[:] = -1
    for root in range(events):
        u = root
        while mark[u] < 0 and parent[u] >= 0:
            mark[u] = root
            u = source[parent[u]]
        if mark[u] == root:
            seconds = 0.0
            count = 0
            w = u
            while True:
                a = parent[w]
                seconds += arcs.weight[a]
                count += arcs.tokens[a]
                w = source[a]
                if w == u:
                    return float(seconds / count)
    return -1.0
