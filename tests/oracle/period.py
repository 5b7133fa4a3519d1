"""The period of a co-execution group, by playing strict round robin with exact numbers.

A group is a list of members in admission order; a member is `(rollout_s, training_s, sync_s, nodes)`, or these and its staleness,
with `nodes` the rollout nodes that it is pinned to and `training_s` the training phase at the group's pool size. All members train
on one pool, so the pool is a single resource.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm

Seconds = float | Fraction
Member = tuple[Seconds, Seconds, Seconds, Iterable[int]] | tuple[Seconds, Seconds, Seconds, Iterable[int], int]


def period(members: Sequence[Member], max_rounds: int = 3000) -> Fraction:
    """Seconds a meta-iteration takes in steady state.

    Plays meta-iterations until the state, seen relative to its largest entry, is one seen before: from there on it
    repeats for ever, and the period is the time between the two over the rounds between the two. Two cycles of nearly
    the same length make that take long; after `max_rounds` the answer comes from `period_of_cycles`.
    """
    scale, whole = _whole_numbers(members)
    pool_free = 0
    node_free = {node: 0 for _, _, _, nodes, _ in whole for node in nodes}
    synced = [deque([0] * (1 + staleness)) for *_, staleness in whole]  # when the weights for each of the next rollouts are there
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for round_number in range(max_rounds):
        state = (pool_free, *node_free.values(), *(ready for job in synced for ready in job))
        now = max(state)
        relative = tuple(entry - now for entry in state)
        if relative in seen:
            earlier_round, earlier_now = seen[relative]
            return Fraction(now - earlier_now, (round_number - earlier_round) * scale)
        seen[relative] = (round_number, now)
        for k, (rollout, training, sync, nodes, _) in enumerate(whole):
            rollout_end = max([synced[k].popleft(), *(node_free[node] for node in nodes)]) + rollout
            for node in nodes:
                node_free[node] = rollout_end
            pool_free = max(pool_free, rollout_end) + training
            synced[k].append(pool_free + sync)
    return period_of_cycles(members)


def period_of_one_device(members: Sequence[tuple[Seconds, Seconds, Seconds]], rounds: int = 12) -> float:
    """The period where one device runs rollout and training of each member in turn; members are (rollout_s, training_s, sync_s).

    A round that begins with the same waits as the one before it takes as long as all that follow.
    """
    exact = [tuple(Fraction(seconds) for seconds in member) for member in members]
    ready = [Fraction(0)] * len(exact)
    free = Fraction(0)
    seen: list[tuple[Fraction, ...]] = []
    for _ in range(rounds):
        seen.append(tuple(ready))
        for k, (rollout, training, sync) in enumerate(exact):
            free = max(free, ready[k]) + rollout + training
            ready[k] = free + sync
    steps = {after - before for before, after in zip(seen[-2], seen[-1], strict=True)}
    assert len(steps) == 1, "the rounds have not settled"
    return float(steps.pop())


def period_of_cycles(members: Sequence[Member]) -> Fraction:
    """The same number as the largest ratio (length over meta-iterations spanned) of the elementary cycles of phases.

    Phases are the vertices; an arc says "ends before the other starts" and carries how many meta-iterations later.
    Only for small groups: it walks every elementary cycle.
    """
    scale, whole = _whole_numbers(members)
    duration: dict[tuple[str, int], int] = {}
    arcs: dict[tuple[str, int], list[tuple[tuple[str, int], int, int]]] = {}  # vertex -> (successor, delay, rounds later)
    for k, (rollout, training, sync, _, staleness) in enumerate(whole):
        duration["rollout", k], duration["training", k] = rollout, training
        arcs["rollout", k] = [(("training", k), 0, 0)]
        arcs["training", k] = [(("rollout", k), sync, 1 + staleness)]
    users = {node: [k for k, member in enumerate(whole) if node in member[3]] for member in whole for node in member[3]}
    for kind, order in [("training", list(range(len(whole)))), *(("rollout", order) for order in users.values())]:
        for k, follower in zip(order, order[1:] + order[:1], strict=True):
            arcs[kind, k].append(((kind, follower), 0, int(follower <= k)))

    vertices = list(arcs)
    best = Fraction(0)

    def walk(start: int, vertex: tuple[str, int], length: int, rounds: int, visited: set[tuple[str, int]]) -> None:
        nonlocal best
        for successor, delay, later in arcs[vertex]:
            total, spanned = length + duration[vertex] + delay, rounds + later
            if vertices.index(successor) == start:
                best = max(best, Fraction(total, spanned * scale))
            elif vertices.index(successor) > start and successor not in visited:
                walk(start, successor, total, spanned, visited | {successor})

    for start, vertex in enumerate(vertices):
        walk(start, vertex, 0, 0, {vertex})
    return best


def _whole_numbers(members: Sequence[Member]) -> tuple[int, list[tuple[int, int, int, tuple[int, ...], int]]]:
    """The members with all durations as integers, and the factor that they were multiplied with."""
    exact = [([Fraction(x) for x in member[:3]], tuple(member[3]), sum(member[4:])) for member in members]
    scale = lcm(*(x.denominator for durations, _, _ in exact for x in durations))
    whole = [(*(int(x * scale) for x in durations), nodes, staleness) for durations, nodes, staleness in exact]
    return scale, whole  # type: ignore[return-value]
