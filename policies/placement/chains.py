"""Search for the moves of one instant: chains of rows, each row scored in the state that the rows before it lead to.

A row is one possible step: the plan that places or moves jobs, or `stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.plan import Move, Place, Plan, carry_out
from rollmux_env.cluster.state import State

_MAX_STEPS = 8


class NextSteps(NamedTuple):
    """The possible steps in a state, one in each of R rows. Row 0 is `stop`.

    Attributes:
        plans: Plan of each row; that of `stop` is empty.
        worths: Score of each row minus the score of `stop`, shape (R,).
        opens: Whether each row opens a group, shape (R,).
    """

    plans: Sequence[Plan]
    worths: NDArray[np.float32]
    opens: NDArray[np.bool_]


LookUp = Callable[[State], NextSteps]
"""Function that lists and scores the possible steps in a state."""


class Chain(NamedTuple):
    """Steps chosen so far in this instant.

    Attributes:
        worth: Sum of the worths of the chosen rows.
        plan: Actions of the chosen rows.
        state: State after these actions.
    """

    worth: float
    plan: Plan
    state: State


def after(state: State, plan: Plan) -> State:
    """Return a copy of a state in which a plan has been carried out, or the state itself if the plan is empty."""
    if not plan:
        return state
    twin = state.copy()
    # Jobs that wait ahead of the placed one have been passed over because of their quotas.
    passed = next((state.waiting.index(action.job_id) for action in plan if isinstance(action, Place)), 0)
    carry_out(twin, plan, keeps_slo=True, passed=passed)
    return twin


def best_chain(start: State, look_up: LookUp, tries: int, one_row: bool) -> Plan:
    """Return the plan of the best chain that starts with one of the best-scored rows and then follows the best row until `stop`.

    Args:
        start: State before the chain.
        look_up: Function that lists and scores the rows of a state.
        tries: Number of first rows to try, including `stop`.
        one_row: Whether a chain ends after its first row.
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
    """Return the plan of the best chain that a beam search finds. It may be one of the given chains.

    In each step every chain is extended by each of its best-scored rows, and the best chains are kept. Opening a group for one job
    is worth little until other jobs have joined it, so a separate quota keeps chains that have just opened a group. Chains that
    lead to the same placements in a different order count once. The search ends after two steps without an improvement.

    Args:
        begun: Chains to start from, at least one.
        look_up: Function that lists and scores the rows of a state.
        tries: Number of rows to look at for each chain, including `stop`.
        width: Number of chains to keep in each step, and as many again that have just opened a group.
    """
    best = max(begun, key=lambda chain: chain.worth)
    chains, known, idle = list(begun), {_places(chain.plan) for chain in begun}, 0
    for _ in range(_MAX_STEPS):
        longer: list[tuple[float, int, NextSteps, Chain]] = []
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
    """Return the `most` rows with the highest worth, best first, without `stop`."""
    return [k for k in np.argsort(-worths, kind="stable")[:most].tolist() if k != stop]


def promising(rows: NextSteps, most: int, most_opening: int) -> list[int]:
    """Return the `most` best rows without `stop`, and the `most_opening` best rows that open a group, in ascending order."""
    opening = np.flatnonzero(rows.opens)
    return sorted({*best_rows(rows.worths, most), *opening[best_rows(rows.worths[opening], most_opening, None)].tolist()})


def _places(plan: Plan) -> frozenset[tuple[str, int | None, int]]:
    return frozenset((a.job_id, a.placement.group, a.placement.shape) for a in plan if isinstance(a, Place | Move))
