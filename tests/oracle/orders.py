"""Any periodic order of the phases of several jobs on one rollout node and one training node, played out exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations, product

ROLLOUT, TRAINING = 0, 1


def utilization(
    jobs: Sequence[tuple[int, int]], orders: tuple[tuple[int, ...], tuple[int, ...]], begins: tuple[int, ...]
) -> Fraction:
    """U_R + U_T in steady state: busy seconds of both nodes over seconds.

    Args:
        jobs: (rollout, training) seconds of each.
        orders: which job runs next on the rollout node, and on the training node, over and over.
        begins: the phase that each job begins with.

    Returns:
        0 where the orders lock each other up.
    """
    next_phase, ready, at, free, busy = list(begins), [0] * len(jobs), [0, 0], [0, 0], 0
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    while True:
        now = max(free)
        waits = [max(time, min(free)) for time in ready]  # how long ago is of no consequence once both nodes are later
        state = (*at, *next_phase, *(time - now for time in (*free, *waits)))
        if state in seen:
            earlier_busy, earlier = seen[state]
            return Fraction(busy - earlier_busy, now - earlier)
        seen[state] = (busy, now)
        stuck = True
        for node in (ROLLOUT, TRAINING):
            job = orders[node][at[node]]
            if next_phase[job] == node:
                free[node] = ready[job] = max(free[node], ready[job]) + jobs[job][node]
                next_phase[job] = 1 - node
                at[node] = (at[node] + 1) % len(orders[node])
                busy += jobs[job][node]
                stuck = False
        if stuck:
            return Fraction(0)


def all_orders(counts: Sequence[int]) -> Iterator[tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]]:
    """Every pair of cyclic orders in which job k runs `counts[k]` times, from every beginning."""
    runs = [job for job, count in enumerate(counts) for _ in range(count)]
    sequences = sorted(set(permutations(runs)))
    for rollouts, trainings in product(sequences, sequences):
        if rollouts[0] == 0:  # a rotation of both is the same order
            for begins in product((ROLLOUT, TRAINING), repeat=len(counts)):
                yield (rollouts, trainings), begins
