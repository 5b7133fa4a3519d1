"""GRPO by its definition: one loop over responses and tokens, numbers and lists alone. The oracle of the vectorised loss."""

from __future__ import annotations

import math
import statistics


def advantages(rewards: list[float], group_size: int) -> list[float]:
    """(r - mean) / (standard deviation of the group's sample + 1e-6)."""
    found = []
    for first in range(0, len(rewards), group_size):
        group = rewards[first : first + group_size]
        mean, deviation = statistics.fmean(group), statistics.stdev(group)
        found += [(reward - mean) / (deviation + 1e-6) if deviation else 0.0 for reward in group]
    return found


def loss(
    new: list[list[float]],
    old: list[list[float]],
    sampler: list[list[float]],
    reference: list[list[float]] | None,
    advantage: list[float],
    *,
    clip: float,
    cap: float,
    beta: float,
) -> float:
    """Mean over all tokens of all responses; log-probs are ragged, of response tokens alone."""
    total, tokens = 0.0, 0
    for i in range(len(new)):
        for t in range(len(new[i])):
            ratio = math.exp(new[i][t] - old[i][t])
            weight = min(math.exp(old[i][t] - sampler[i][t]), cap)
            near = min(max(ratio, 1 - clip), 1 + clip)
            total += -weight * min(ratio * advantage[i], near * advantage[i])
            if reference is not None:
                apart = math.exp(reference[i][t] - new[i][t])
                total += beta * (apart - math.log(apart) - 1)
            tokens += 1
    return total / tokens
