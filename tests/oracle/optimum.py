"""The best partition by looking at all of them: every partition, pool size, pinning and member order, over plain dicts.

Nothing is pruned but what a number already in hand rules out. The period comes from the contract's closed form where it holds
(one rollout node each, no sync), else from the kernel, which `tests.oracle.period` holds to account elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product
from math import inf

import numpy as np

from rollmux_env.kernel.period import exact_period, period_bound
from tests.oracle.planner import MEMORY, Dict, all_shapes, at_most, node_usd_per_hour, solo_s, training_s

Way = tuple[int, int, float, tuple[str, str]]  # rollout nodes, training nodes, period, and of which pools


def pinnings(jobs: list[Dict]) -> Iterator[list[tuple[int, ...]]]:
    """Every pinning, new nodes taking the lowest free numbers."""

    def place(k: int, used: int, pins: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        if k == len(jobs):
            yield list(pins)
            return
        wanted = jobs[k]["rollout"]["nodes"]
        for shared in range(min(wanted, used) + 1):
            new = wanted - shared
            for old in combinations(range(used), shared):
                yield from place(k + 1, used + new, [*pins, (*old, *range(used, used + new))])

    yield from place(0, 0, [])


def least_period(jobs: list[Dict], pins: list[tuple[int, ...]], training_nodes: int, below_s: float) -> float:
    """Least period over all member orders, infinite where none is below `below_s`."""
    n_nodes = 1 + max(node for numbers in pins for node in numbers)
    phases = np.array(
        [(j["rollout"]["worst_case_s"], training_s(j, training_nodes), j["sync_s"], j["staleness"]) for j in jobs], dtype=float
    ).T.copy()
    pinned = np.array([[int(node in numbers) for node in range(n_nodes)] for numbers in pins])
    n = len(jobs)
    bound = period_bound(phases, pinned, n, n_nodes)
    if bound >= below_s:
        return inf
    if not phases[2].any() and max(len(numbers) for numbers in pins) == 1:
        return bound
    best = inf
    for order in permutations(range(n)):
        at = list(order)
        ordered = np.ascontiguousarray(phases[:, at]), np.ascontiguousarray(pinned[at])
        best = min(best, exact_period(*ordered, n, n_nodes, bound))
        if best == bound:
            break
    return best if best < below_s else inf


def ways(cluster: Dict, jobs: list[Dict]) -> list[Way]:
    """For each number of rollout and training nodes the least period that keeps every SLO."""
    limit_s = min(job["slo"] * solo_s(job) for job in jobs) * (1 + 1e-9)
    pools = jobs[0]["rollout"]["pool"], jobs[0]["training"]["pool"]
    if len(jobs) > cluster["max_group_size"] or any((j["rollout"]["pool"], j["training"]["pool"]) != pools for j in jobs):
        return []
    if not all(_fits(cluster, pools[1], key, [sum(job["training"][key] for job in jobs)]) for key in MEMORY):
        return []
    least = max(job["training"]["nodes"] for job in jobs)
    most = max([least, *(nodes for job in jobs for nodes in job["training"]["by_nodes"])])
    best: dict[tuple[int, int], float] = {}
    for training_nodes in range(least, most + 1):
        for pins in pinnings(jobs):
            nodes = 1 + max(node for numbers in pins for node in numbers)
            held = {
                key: [sum(j["rollout"][key] for j, at in zip(jobs, pins, strict=True) if v in at) for v in range(nodes)]
                for key in MEMORY
            }
            if all(_fits(cluster, pools[0], key, held[key]) for key in MEMORY):
                known = best.get((nodes, training_nodes), inf)
                found = least_period(jobs, pins, training_nodes, min(known, np.nextafter(limit_s, inf)))
                best[nodes, training_nodes] = min(known, found)
    return [(r, t, period, pools) for (r, t), period in best.items() if period < inf]


def _fits(cluster: Dict, pool: str, key: str, held_gb: list[float]) -> bool:
    limit_gb = cluster["pools"][pool][MEMORY[key]]
    return limit_gb is None or all(at_most(gb, limit_gb) for gb in held_gb)


def partitions(items: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every partition into sets."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            for part in partitions([k for k in rest if k not in others]):
                yield [(first, *others), *part]


class Optimum:
    """All feasible groups of some jobs, and the best partitions of their prefixes."""

    def __init__(self, cluster: Dict, jobs: list[Dict]) -> None:
        self.cluster = cluster
        self.jobs = jobs
        self.ways = {
            chosen: [way for shaped in product(*(all_shapes(jobs[k]) for k in chosen)) for way in ways(cluster, [*shaped])]
            for size in range(1, len(jobs) + 1)
            for chosen in combinations(range(len(jobs)), size)
        }

    def least(self, count: int, per_work: bool) -> float:
        """Least $/h, or $ per work-hour, of the first `count` jobs; infinite where `max_nodes` allows no partition."""
        price = {pool: node_usd_per_hour(self.cluster, pool) for pool in self.cluster["pools"]}
        most = {name: pool["max_nodes"] or inf for name, pool in self.cluster["pools"].items()}
        best = inf
        for part in partitions(list(range(count))):
            for chosen in product(*(self.ways[group] for group in part)):
                nodes = dict.fromkeys(price, 0)
                for rollout, training, _, pools in chosen:
                    nodes[pools[0]] += rollout
                    nodes[pools[1]] += training
                if any(nodes[name] > most[name] for name in nodes):
                    continue
                value = sum(nodes[name] * price[name] for name in nodes)
                if per_work:
                    value /= sum(solo_s(self.jobs[k]) / way[2] for group, way in zip(part, chosen, strict=True) for k in group)
                best = min(best, value)
        return best
