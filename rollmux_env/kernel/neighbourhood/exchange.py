"""Pairs of jobs: one takes the place of one of another group, which goes elsewhere."""

from __future__ import annotations

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import shape_row
from rollmux_env.kernel.neighbourhood.insertion import best_place
from rollmux_env.kernel.neighbourhood.table import (
    EXCHANGE,
    GROUPS_MOST,
    NEW_GROUP,
    Scratch,
    add_move,
    begin_row,
    change_group,
    falls_short,
    keep_group,
    leave_nodes,
    offer,
)
from rollmux_env.kernel.tables import NOWHERE, ROLLOUT, TRAINING, Records, View
from rollmux_env.kernel.valuation import Valuation


@compiled(arrays=False)
def _find_nearest(groups: int, m: int, scratch: Scratch) -> None:
    """Write (m, 2) the two of the other groups where each job costs least, -1 for none; of equal ones the older first."""
    joins, home, out = scratch.joins, scratch.home, scratch.nearest
    for k in range(m):
        out[k, 0] = out[k, 1] = -1
        for c in range(groups):
            if c == home[k] or joins[k, c].ok == 0:
                continue
            usd = joins[k, c].usd
            if out[k, 0] < 0 or usd < joins[k, out[k, 0]].usd:
                out[k, 1] = out[k, 0]
                out[k, 0] = c
            elif out[k, 1] < 0 or usd < joins[k, out[k, 1]].usd:
                out[k, 1] = c


@compiled(arrays=False)
def offer_exchanges(view: View, valuation: Valuation, m: int, scratch: Scratch) -> None:
    """Offer what pairs of jobs can do: one takes the other's place, and the other goes elsewhere.

    Args:
        m: movers. The single moves of `scratch` have been looked at.
    """
    jobs, copies = view.jobs, scratch.copies
    joins, home, movers, saved = scratch.joins, scratch.home, scratch.movers, scratch.saved
    there = View(jobs, copies, view.order, view.limits, view.clock)
    first = view.groups.shape[0]
    for k in range(m):
        for other in range(m):
            if home[k] == home[other]:
                continue
            best_place(there, valuation, first + other, movers[k], NOWHERE, scratch.cut[other], joins[k, GROUPS_MOST + other])
    _find_nearest(view.order.shape[0], m, scratch)
    nearest, alone = scratch.nearest, scratch.alone
    migration_h = valuation.terms[0].migration_h
    for k in range(m):
        a = home[k]
        for other in range(m):
            place = joins[k, GROUPS_MOST + other]
            if a == home[other] or place.ok == 0:
                continue
            left = saved[k] + saved[other]
            back = joins[other, GROUPS_MOST + k]
            both = k < other and back.ok == 1 and _are_nodes(view, movers[k], place, movers[other], back, False)
            if both and not falls_short(scratch, left - place.usd - back.usd):
                _exchange(view, migration_h, k, other, a, back, scratch)
            away = nearest[other, 1] if nearest[other, 0] == a else nearest[other, 0]
            own = alone[other]
            new_group = False
            to = own
            if own.ok == 1 and (away < 0 or own.usd < joins[other, away].usd):
                away = NOWHERE
                new_group = True
            elif away >= 0:
                to = joins[other, away]
            else:
                continue
            enough = _are_nodes(view, movers[k], place, movers[other], to, new_group)
            if enough and not falls_short(scratch, left - place.usd - to.usd):
                _exchange(view, migration_h, k, other, away, to, scratch)


@compiled(arrays=False)
def _are_nodes(view: View, one: int, place: Records, two: int, to: Records, new_group: bool) -> bool:
    """Whether the cluster has the nodes that the places of two jobs, rows, add; the second one's may be a new group."""
    pools, nodes, jobs = view.limits.pools, view.clock.nodes, view.jobs
    job, other = jobs[shape_row(jobs[one], one, place.of_shape)], jobs[shape_row(jobs[two], two, to.of_shape)]
    training = other.training_nodes if new_group else 0
    for p in range(nodes.shape[0]):
        more = place.new_nodes if job.rollout_pool == p else 0
        more += to.new_nodes if other.rollout_pool == p else 0
        more += training if other.training_pool == p else 0
        if more > 0 and nodes[p, ROLLOUT] + nodes[p, TRAINING] + more > pools[p].nodes_max:
            return False
    return True


@compiled(arrays=False)
def _exchange(view: View, migration_h: float, k: int, other: int, c: int, to: Records, scratch: Scratch) -> None:
    """Offer one exchange: `other` goes to a place in a group first, or for -1 in one of its own, then `k` takes its place."""
    place = scratch.joins[k, GROUPS_MOST + other]
    at = offer(scratch, scratch.saved[k] + scratch.saved[other] - place.usd - to.usd)
    if at < 0:
        return
    row = scratch.rows[at]
    a, b = scratch.home[k], scratch.home[other]
    begin_row(row, EXCHANGE)
    first, second = scratch.movers[other], scratch.movers[k]
    leave_nodes(row, view.jobs[second], view.limits, migration_h, scratch.freed[k, 0], scratch.freed[k, 1])
    change_group(row, scratch.base[a], scratch.cut[k])
    leave_nodes(row, view.jobs[first], view.limits, migration_h, scratch.freed[other, 0], scratch.freed[other, 1])
    change_group(row, scratch.base[b], scratch.cut[other])
    add_move(row, view.jobs, view.limits, first, NEW_GROUP if c < 0 else view.order[c], to)
    add_move(row, view.jobs, view.limits, second, view.order[b], place)
    if c >= 0 and c != a:
        keep_group(row, scratch.base[c])
