"""Rewards that take different times: their distribution, and when each is computed on reward nodes."""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from rollmux_env.kernel.tables import Floats

RewardQuantiles = tuple[tuple[float, float], ...]
"""Rising pairs of a share of the rewards and the seconds that this share does not exceed; the last share is 1.

The first share takes the seconds of its pair. Between two pairs the seconds rise linearly.
"""


def reward_seconds(quantiles: RewardQuantiles, scores: Floats) -> Floats:
    """Return the seconds of rewards.

    Args:
        quantiles: Distribution of the seconds.
        scores: Place of each reward in the distribution, from 0 to 1, shape (n,).
    """
    shares, seconds = zip(*quantiles, strict=True)
    runs_s: Floats = np.interp(scores, shares, seconds)
    return runs_s


def mean_reward_s(quantiles: RewardQuantiles) -> float:
    """Return the mean seconds of a reward."""
    first, first_s = quantiles[0]
    return first * first_s + sum((b - a) * (a_s + b_s) / 2 for (a, a_s), (b, b_s) in pairwise(quantiles))


def varied_reward_ends(over_s: Floats, runs_s: Floats, nodes: int) -> Floats:
    """Return the end of each reward, in seconds, shape (n,).

    A reward begins when its response is over and a node is free, in the order in which the responses end.

    Args:
        over_s: End of each response, in seconds, ascending, shape (n,).
        runs_s: Seconds of each response's reward, shape (n,).
        nodes: Number of rewards that are computed at once.
    """
    ends_s, free_s = np.empty(over_s.size), [0.0] * nodes
    for k in range(over_s.size):
        ends_s[k] = max(over_s[k], heapq.heappop(free_s)) + runs_s[k]
        heapq.heappush(free_s, float(ends_s[k]))
    return ends_s
