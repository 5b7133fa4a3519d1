"""The exact period of strict round robin: a maximum cycle ratio.

Events of a meta-iteration are the starts of the members' rollouts and trainings, in admission order. An arc u -> v of weight w and
t tokens says: v starts at least w seconds after u of t meta-iterations ago. The period is the largest (seconds / tokens) over the
cycles of this graph (max-plus spectral theory: the growth rate in steady state). The arc from a training and its sync to a later
rollout of its member carries 1 + staleness tokens: so many meta-iterations later that rollout is.

Found by Newton's method: begin with the cycles that are there by construction (every member alone, every node), look for a cycle
that is longer at this period, take its ratio as the next period, until there is none.

Where every member is pinned to one node and none has sync these are all that count, at any staleness. Of another elementary cycle
that goes m times from a training to a rollout, the rollouts take at most m loads of a node and the trainings one; it has a token
for each of the m, and one more because it goes around the order of admission.

Members' phases are rows of an array: rollout, training and sync seconds, staleness, and the warm starts of the first two.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.alone import alone_s
from rollmux_env.kernel.compiled import compiled, twin
from rollmux_env.kernel.tables import Floats, Ints

_ROUNDING = 1e-12
PHASES = 6  # rows of phases


own_period = twin(alone_s)


@compiled(arrays=False)
def period_bound(phases: Floats, pinned: Ints, n: int, n_nodes: int) -> float:
    """The larger of every member's own cycle and every node's load: never above the period.

    Args:
        phases: (>= 4, >= n) the members' phases in order of admission.
        pinned: (>= n, >= n_nodes) 1 where a member is pinned to a rollout node.
        n: members. n_nodes: rollout nodes.

    Returns:
        Seconds.
    """
    bound = load_bound(phases, pinned, n, n_nodes)
    for i in range(n):
        bound = max(bound, own_period(phases[0, i], phases[1, i], phases[2, i], phases[3, i]))
    return bound


@compiled(arrays=False)
def load_bound(phases: Floats, pinned: Ints, n: int, n_nodes: int) -> float:
    """T_load: the largest, over the nodes, of the summed phases of a meta-iteration; arguments as in `period_bound`. Seconds."""
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
    """Lengthen the phases of a group by what they wait for their state: on a node that two members use, a phase of another job has
    always come before. One on a node of the member's own finds everything as it left it.

    Args:
        phases: (PHASES, >= n); rollouts and trainings are written.
        pinned, n, n_nodes: as in `period_bound`.
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


@compiled
def exact_period(phases: Floats, pinned: Ints, n: int, n_nodes: int, bound: float) -> float:
    """The period of a group under strict round robin, for any pinning, any sync and any staleness.

    Args:
        phases, pinned, n, n_nodes: as in `period_bound`.
        bound: what `period_bound` gives for them.

    Returns:
        Seconds, exact to rounding.
    """
    if n == 1:
        return bound
    if n == 2 and phases[3, 0] == 0.0 and phases[3, 1] == 0.0:
        return bound  # a cycle through both members has two tokens and at most the seconds of one cycle of each
    # Rollout of member i is event 2i, its training event 2i + 1: arcs without a token go from lower to higher numbers.
    n_events = 2 * n
    n_arcs_max = 3 * n + n * min(n_nodes, n - 1) + n
    ints = np.empty(2 * n_arcs_max + 3 * n_events + 1 + n_nodes + n, np.int64)  # one piece: allocations are what costs most here
    source, ints = ints[:n_arcs_max], ints[n_arcs_max:]
    tokens, ints = ints[:n_arcs_max], ints[n_arcs_max:]
    first, ints = ints[: n_events + 1], ints[n_events + 1 :]
    parent, ints = ints[:n_events], ints[n_events:]
    mark, ints = ints[:n_events], ints[n_events:]
    used_by, arc_to = ints[:n_nodes], ints[n_nodes:]
    floats = np.empty(n_arcs_max + n_events)
    weight, start = floats[:n_arcs_max], floats[n_arcs_max:]
    arc_to[:] = -1
    for v in range(n_nodes):
        used_by[v] = -1
        for i in range(n):
            if pinned[i, v] != 0:
                used_by[v] = i
    n_arcs = 0
    for i in range(n):
        first[2 * i] = n_arcs
        source[n_arcs], weight[n_arcs], tokens[n_arcs] = 2 * i + 1, phases[1, i] + phases[2, i], 1 + int(phases[3, i])
        n_arcs += 1
        for v in range(n_nodes):
            if pinned[i, v] != 0:
                j = used_by[v]
                used_by[v] = i
                if j != i and arc_to[j] != i:
                    arc_to[j] = i
                    source[n_arcs], weight[n_arcs], tokens[n_arcs] = 2 * j, phases[0, j], 1 if j > i else 0
                    n_arcs += 1
        first[2 * i + 1] = n_arcs
        source[n_arcs], weight[n_arcs], tokens[n_arcs] = 2 * i, phases[0, i], 0
        n_arcs += 1
        j = i - 1 if i > 0 else n - 1
        source[n_arcs], weight[n_arcs], tokens[n_arcs] = 2 * j + 1, phases[1, j], 1 if i == 0 else 0
        n_arcs += 1
    first[n_events] = n_arcs

    period = bound
    while True:
        start[:] = 0.0
        parent[:] = -1
        longer = -1.0
        for sweep in range(n_events + 1):
            moved = False
            for u in range(n_events):
                for a in range(first[u], first[u + 1]):
                    earliest = start[source[a]] + weight[a] - period * tokens[a]
                    if earliest > start[u] + _ROUNDING * bound:
                        start[u] = earliest
                        parent[u] = a
                        moved = True
            if not moved:
                return period
            if sweep > 0:
                longer = _parent_cycle_ratio(source, weight, tokens, first, parent, mark, n_events)
                if longer > 0.0:
                    break
        if longer <= period:
            return period
        period = longer


@compiled(arrays=False)
def _parent_cycle_ratio(source: Ints, weight: Floats, tokens: Ints, first: Ints, parent: Ints, mark: Ints, n_events: int) -> float:
    """Seconds a token of a cycle of the parent arcs, or -1 where they have none."""
    mark[:] = -1
    for root in range(n_events):
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
                seconds += weight[a]
                count += tokens[a]
                w = source[a]
                if w == u:
                    return float(seconds / count)
    return -1.0
