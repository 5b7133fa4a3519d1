"""Which groups of a large cluster a decision looks at, so that its cost does not grow with the cluster.

Jobs come and go one at a time, and with them decisions: a cluster twice as large has twice as many decisions in an hour. So each
may look at a part, if the parts are drawn anew every time: those groups that have just changed, some that a newcomer could join,
and others at random, the dearer the more likely. (Large problems are improved part by part: Taillard and Voss, POPMUSIC, 2002.)
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.lns_insert import may_join
from rollmux_env.kernel.pools import dearness
from rollmux_env.kernel.tables import Ints, View

_ROUND = 3  # groups that are compared; the dearest of them is taken
_TRIES = 8  # draws for every group that is wanted
_SHARE = 3  # a third at most for groups that have changed, and for those that a newcomer could join


@compiled
def choose_part(view: View, newcomer: int, host: int, rng: np.random.Generator, out: Ints) -> int:
    """Choose the groups that are looked at, where there are more of them than `out` takes.

    Args:
        newcomer: row of a job that waits for a place, negative for none. host: row of a group that it fits into, likewise.
        out: (F,) out: their positions in the view's order, ascending.

    Returns:
        How many.
    """
    jobs, groups, order, limits = view.jobs, view.groups, view.order, view.limits
    n, most = len(order), len(out)
    chosen = np.zeros(n, np.bool_)
    count = 0
    for k in range(n):
        known = order[k] == host
        if known or (count < most // _SHARE and groups[order[k]].since_s == view.clock.now_s):
            chosen[k] = True
            count += 1
    wanted = min(most, count + most // _SHARE) if newcomer >= 0 else 0
    for _ in range(_TRIES * wanted):
        if count >= wanted:
            break
        k = int(rng.random() * n)
        group = groups[order[k]]
        if not chosen[k] and group.exclusive == 0 and may_join(jobs, group, limits, newcomer):
            chosen[k] = True
            count += 1
    for _ in range(_TRIES * most):
        if count >= most:
            break
        best, dearest = -1, -1.0
        for _ in range(_ROUND):
            k = int(rng.random() * n)
            if not chosen[k] and groups[order[k]].exclusive == 0:
                dear = dearness(jobs, groups[order[k]], limits)
                if dear > dearest:
                    best, dearest = k, dear
        if best >= 0:
            chosen[best] = True
            count += 1
    at = 0
    for k in range(n):
        if chosen[k] and at < most:
            out[at] = k
            at += 1
    return at
