"""Which moves to make in one instant: chains of rows, each scored in the state that the row before it leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.plan import Place, Plan, Wait, carry_out
from rollmux_env.cluster.state import State

_MOST_STEPS = 8


class Rows(NamedTuple):
    """What may be done in a state.

    Attributes:
        plans: of each row, its moves; the first row is `stop`, with none. worths: (R,) how far each score is above that of `stop`.
        opens: (R,) whether a row opens a group.
    """

    plans: Sequence[Plan]
    worths: NDArray[np.float32]
    opens: NDArray[np.bool_]


LookUp = Callable[[State], Rows]


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
    passed = next((state.waiting.index(action.job_id) for action in plan if isinstance(action, Place)), 0)  # for their quotas
    carry_out(twin, plan, keeps_slo=True, passed=passed)
    return twin


def best_chain(start: State, look_up: LookUp, tries: int, one_row: bool) -> Plan:
    """Of the chains that begin with one of the best-scored rows, and go on with the best until that is `stop`, the best.

    Args:
        tries: rows, `stop` among them, to begin with. one_row: chains have no more than one.
    """
    rows = look_up(start)
    chosen: Plan = ()
    most = 0.0
    for first in best_rows(rows.worths, tries):
        worth, moves, next_moves = float(rows.worths[first]), rows.plans[first], rows.plans[first]
        twin = start
        while not one_row:
            twin = after(twin, next_moves)
            then = look_up(twin)
            best = int(np.argmax(then.worths))
            if best == 0:
                break
            next_moves = then.plans[best]
            moves += next_moves
            worth += float(then.worths[best])
        if worth > most:
            chosen, most = moves, worth
    return chosen


def joint_search(begun: Sequence[Chain], look_up: LookUp, tries: int, width: int) -> Plan:
    """Beam search: the best of all chains that are met on the way, which may be one that is given.

    At every step each chain may go on with any of its best-scored rows, and the best few chains are kept. A group that is opened
    for one job is worth little before others have joined it: so chains that have just done so are also kept for themselves. The
    search ends when two steps have found nothing better. Chains that lead to the same places by other ways count once.

    Args:
        begun: chains to begin with, at least one. tries: rows of a chain that are looked at, `stop` among them.
        width: chains that go on at every step, and as many again that have just opened a group.
    """
    best = max(begun, key=lambda chain: chain.worth)
    chains, known, idle = list(begun), {_places(chain.plan) for chain in begun}, 0
    for _ in range(_MOST_STEPS):
        longer: list[tuple[float, int, Rows, Chain]] = []
        for chain in chains:
            rows = look_up(chain.state)
            longer += [(chain.worth + float(rows.worths[k]), k, rows, chain) for k in promising(rows, tries, width)]
        longer.sort(key=lambda step: -step[0])
        most, chains, counts = best.worth, [], [0, 0]
        for worth, k, rows, chain in longer:
            opens = int(rows.opens[k])
            if counts[opens] == width:
                continue
            moves = rows.plans[k]
            plan = chain.plan + moves
            if (places := _places(plan)) not in known:
                known.add(places)
                counts[opens] += 1
                chains.append(Chain(worth, plan, after(chain.state, moves)))
        best = max([best, *chains], key=lambda chain: chain.worth)
        idle = 0 if best.worth > most else idle + 1
        if idle == 2 or not chains:
            break
    return best.plan


def best_rows(worths: NDArray[np.float32], most: int, stop: int | None = 0) -> list[int]:
    """The best of so many rows, the best first, but for `stop`."""
    return [k for k in np.argsort(-worths, kind="stable")[:most].tolist() if k != stop]


def promising(rows: Rows, most: int, most_opening: int) -> list[int]:
    """The best of so many rows, but for `stop`, and the best of those that open a group, in their order."""
    opening = np.flatnonzero(rows.opens)
    return sorted({*best_rows(rows.worths, most), *opening[best_rows(rows.worths[opening], most_opening, None)].tolist()})


def _places(plan: Plan) -> frozenset[tuple[str, int | None, int]]:
    return frozenset((a.job_id, a.placement.group, a.placement.shape) for a in plan if not isinstance(a, Wait))
