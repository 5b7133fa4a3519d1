"""Which moves to make in one instant: chains of rows, each scored in the state that the row before it leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.plan import Plan, Wait, carry_out
from rollmux_env.cluster.state import State

_KEPT = 4  # chains that go on at every step of a joint search
_MOST_STEPS = 8


Rows = Callable[
    [State], tuple[Sequence[Plan], NDArray[np.float32]]
]  # what may be done now, and how far each score is above that of `stop`


class Chain(NamedTuple):
    """What is begun in this instant.

    Attributes:
        worth: what the scores of its rows are above those of `stop`, in all. plan: its actions. state: what they lead to.
    """

    worth: float
    plan: Plan
    state: State


def after(state: State, plan: Plan) -> State:
    """A copy of a state in which a plan has been carried out."""
    if not plan:
        return state
    twin = state.copy()
    carry_out(twin, plan, keeps_slo=True)
    return twin


def best_chain(start: State, rows: Rows, tries: int, one_row: bool) -> Plan:
    """Of the chains that begin with one of the best-scored rows, and go on with the best until that is `stop`, the best.

    Args:
        tries: rows, `stop` among them, to begin with. one_row: chains have no more than one.
    """
    plans, worths = rows(start)
    order = np.argsort(-worths, kind="stable")[:tries]
    chosen: Plan = ()
    most = 0.0
    for first in order[order > 0].tolist():
        worth, moves, next_moves = float(worths[first]), plans[first], plans[first]
        twin = start
        while not one_row:
            twin = after(twin, next_moves)
            then, more = rows(twin)
            best = int(np.argmax(more))
            if best == 0:
                break
            next_moves = then[best]
            moves += next_moves
            worth += float(more[best])
        if worth > most:
            chosen, most = moves, worth
    return chosen


def joint_search(begun: Sequence[Chain], rows: Rows, tries: int) -> Plan:
    """Beam search: the best of all chains that are met on the way, which may be one that is given.

    At every step each chain may go on with any of its best-scored rows, and the best few chains are kept. It ends when two steps
    have found nothing better. Chains that lead to the same places by other ways count once.

    Args:
        begun: chains to begin with, at least one. tries: rows of a chain that are looked at, `stop` among them.
    """
    best = max(begun, key=lambda chain: chain.worth)
    chains, known, idle = list(begun), {_places(chain.plan) for chain in begun}, 0
    for _ in range(_MOST_STEPS):
        longer: list[tuple[float, Plan, Chain]] = []
        for chain in chains:
            plans, worths = rows(chain.state)
            order = np.argsort(-worths, kind="stable")[:tries]
            longer += [(chain.worth + float(worths[k]), plans[k], chain) for k in order[order > 0].tolist()]
        longer.sort(key=lambda found: -found[0])
        chains, most = [], best.worth
        for worth, moves, chain in longer:
            if len(chains) == _KEPT:
                break
            plan = chain.plan + moves
            if (places := _places(plan)) not in known:
                known.add(places)
                chains.append(Chain(worth, plan, after(chain.state, moves)))
        best = max([best, *chains], key=lambda chain: chain.worth)
        idle = 0 if best.worth > most else idle + 1
        if idle == 2 or not chains:
            break
    return best.plan


def _places(plan: Plan) -> frozenset[tuple[str, int | None, int]]:
    return frozenset((a.job_id, a.placement.group, a.placement.shape) for a in plan if not isinstance(a, Wait))
