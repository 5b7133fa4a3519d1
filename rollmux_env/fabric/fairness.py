"""Compiled max-min fair rates of flows over links, and the times at which flows end. `tests/oracle/flows.py` is the plain version.

A flow can get more only by taking from a flow that has no more than it has. Rates grow together; when a link is full, the flows
that cross it stop growing (progressive filling; Bertsekas and Gallager, Data Networks, 6.5.2). When a flow ends, the others share
the links again.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Floats, Ints

_TIE = 1e-9  # relative difference below which links fill, and flows end, at the same time


@compiled
def _fullest(left: Floats, users: Ints) -> tuple[float, Ints]:
    """Return the rate at which growing flows fill the first link, and 1 for each link that is full then, shape (L,)."""
    level = np.inf
    for link in range(left.size):
        if users[link] > 0:
            level = min(level, left[link] / users[link])
    full = np.zeros(left.size, np.int64)
    for link in range(left.size):
        if users[link] > 0 and left[link] / users[link] <= level * (1.0 + _TIE):
            full[link] = 1
    return level, full


@compiled
def _crosses(path: Ints, full: Ints) -> bool:
    """Return whether a flow crosses a full link."""
    crosses = False
    for link in path:
        crosses = crosses or (link >= 0 and full[link] == 1)
    return crosses


@compiled
def fair_rates(paths: Ints, capacity: Floats, active: Ints) -> Floats:
    """Return the max-min fair rates of F flows over L links.

    Args:
        paths: Links that each flow crosses, each once, followed by -1, shape (F, P).
        capacity: Capacity of each link in GB/s, shape (L,).
        active: 1 for each flow that is active, else 0, shape (F,).

    Returns:
        Rate of each flow in GB/s, shape (F,): 0 for inactive flows, infinite for flows that cross no link.
    """
    n_flows, width = paths.shape
    left = capacity.copy()
    users = np.zeros(capacity.size, np.int64)
    rates = np.zeros(n_flows)
    growing = np.zeros(n_flows, np.int64)
    n = 0
    for f in range(n_flows):
        if active[f] == 0:
            continue
        if paths[f, 0] < 0:
            rates[f] = np.inf
            continue
        growing[n] = f
        n += 1
        for p in range(width):
            if paths[f, p] >= 0:
                users[paths[f, p]] += 1
    while n > 0:
        level, full = _fullest(left, users)
        still = 0
        for k in range(n):
            f = growing[k]
            if not _crosses(paths[f], full):
                growing[still] = f
                still += 1
                continue
            rates[f] = level
            for p in range(width):
                link = paths[f, p]
                if link >= 0:
                    left[link] = max(0.0, left[link] - level)
                    users[link] -= 1
        n = still
    return rates


@compiled
def completion_s(paths: Ints, gb: Floats, capacity: Floats) -> Floats:
    """Return the seconds until each flow ends if all begin at time 0.

    Args:
        paths: Links of each flow, as in `fair_rates`, shape (F, P).
        gb: Size of each flow in GB, shape (F,).
        capacity: Capacity of each link in GB/s, shape (L,).

    Returns:
        Seconds of each flow, shape (F,); 0 for flows that cross no link.
    """
    n_flows = gb.size
    left = gb.copy()
    active = np.ones(n_flows, np.int64)
    ends = np.zeros(n_flows)
    now = 0.0
    n = 0
    for f in range(n_flows):
        if paths[f, 0] < 0 or gb[f] <= 0.0:
            active[f] = 0
        else:
            n += 1
    while n > 0:
        rates = fair_rates(paths, capacity, active)
        step = np.inf
        for f in range(n_flows):
            if active[f] == 1:
                step = min(step, left[f] / rates[f])
        now += step
        for f in range(n_flows):
            if active[f] == 1:
                if left[f] <= rates[f] * step * (1.0 + _TIE):
                    active[f] = 0
                    ends[f] = now
                    n -= 1
                else:
                    left[f] -= rates[f] * step
    return ends
