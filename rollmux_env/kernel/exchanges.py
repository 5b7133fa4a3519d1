"""Pairs of jobs: one takes the place of one of another group, which goes elsewhere."""

from __future__ import annotations

from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.horizons import Stays
from rollmux_env.kernel.joining import Records, Terms, best_place, may_join
from rollmux_env.kernel.rows import (
    EXCHANGE,
    GROUPS_MOST,
    NEW_GROUP,
    Space,
    add_move,
    begin_row,
    change_group,
    falls_short,
    keep_group,
    offer,
)
from rollmux_env.kernel.tables import Floats, Ints, JobTable, Limits


@uncounted
def _best_two(looked: Ints, m: int, space: Space, out: Ints) -> None:
    """Write (m, 2) the two of the other groups where each job costs least, -1 for none; of equal ones the older first."""
    joins, home = space.joins, space.home
    for k in range(m):
        out[k, 0] = out[k, 1] = -1
        for c in range(looked.shape[0]):
            if c == home[k] or joins[k, c].ok == 0:
                continue
            usd = joins[k, c].usd
            if out[k, 0] < 0 or usd < joins[k, out[k, 0]].usd:
                out[k, 1] = out[k, 0]
                out[k, 0] = c
            elif out[k, 1] < 0 or usd < joins[k, out[k, 1]].usd:
                out[k, 1] = c


@uncounted
def offer_exchanges(
    jobs: Records,
    groups: Records,
    looked: Ints,
    limits: Limits,
    stays: Stays,
    terms: Terms,
    m: int,
    saved: Floats,
    space: Space,
    found: Ints,
) -> None:
    """Offer what pairs of jobs can do: one takes the other's place, and the other goes elsewhere.

    Args:
        m: movers. saved: (m,) what each one's leaving saves, $. The single moves of `space` have been looked at.
    """
    first = groups.id.shape[0]
    # Names of their own, here and below: a field of a tuple is counted as one more reference wherever it is read.
    joins, alone, home, movers = space.joins, space.alone, space.home, space.movers
    copies, cut, kept, scratch = space.copies, space.cut, space.kept, space.scratch
    for k in range(m):
        for other in range(m):
            if home[k] == home[other]:
                continue
            place = joins[k, GROUPS_MOST + other]
            place.ok = 0
            copy = first + other
            if may_join(copies[copy], jobs[movers[k]], limits, terms.shield):
                best_place(jobs, copies, limits, stays, terms, copy, movers[k], cut[other], scratch, place)
    nearest = space.nearest
    _best_two(looked, m, space, nearest)
    for k in range(m):
        a = home[k]
        for other in range(m):
            place = joins[k, GROUPS_MOST + other]
            if a == home[other] or place.ok == 0:
                continue
            left = saved[k] + saved[other]
            back = joins[other, GROUPS_MOST + k]
            both = k < other and back.ok == 1 and _are_nodes(limits, terms, place, back, 0)
            if both and not falls_short(kept, found, left - place.usd - back.usd):
                _exchange(jobs, looked, limits, terms, k, other, a, False, back, left, space, found)
            away = nearest[other, 1] if nearest[other, 0] == a else nearest[other, 0]
            own = alone[other]
            pool = 0
            to = own
            if own.ok == 1 and (away < 0 or own.usd < joins[other, away].usd):
                away = -1
                pool = jobs[movers[other]].training_nodes
            elif away >= 0:
                to = joins[other, away]
            else:
                continue
            if _are_nodes(limits, terms, place, to, pool) and not falls_short(kept, found, left - place.usd - to.usd):
                _exchange(jobs, looked, limits, terms, k, other, away, away >= 0, to, left, space, found)


@uncounted
def _are_nodes(limits: Limits, terms: Terms, place: Records, to: Records, pool: int) -> bool:
    """Whether the cluster has the nodes that two places add, and a pool of so many training nodes."""
    enough = terms.rollout_nodes + place.new_nodes + to.new_nodes <= limits.rollout_nodes_max
    return bool(enough and terms.training_nodes + pool <= limits.training_nodes_max)


@uncounted
def _exchange(
    jobs: JobTable,
    looked: Ints,
    limits: Limits,
    terms: Terms,
    k: int,
    other: int,
    c: int,
    third: bool,
    to: Records,
    left: float,
    space: Space,
    found: Ints,
) -> None:
    """Offer one exchange: `other` goes to a place in a group first, or for -1 in one of its own, then `k` takes its place."""
    place = space.joins[k, GROUPS_MOST + other]
    at = offer(space, found, left - place.usd - to.usd)
    if at < 0:
        return
    row = space.kept[at]
    a, b = space.home[k], space.home[other]
    begin_row(row, EXCHANGE)
    change_group(row, limits, terms, space.freed[k, 0], space.freed[k, 1], space.base[a], space.cut[k])
    change_group(row, limits, terms, space.freed[other, 0], space.freed[other, 1], space.base[b], space.cut[other])
    add_move(row, jobs, limits, space.movers[other], NEW_GROUP if c < 0 else looked[c], to)
    add_move(row, jobs, limits, space.movers[k], looked[b], place)
    if third:
        keep_group(row, space.base[c])
