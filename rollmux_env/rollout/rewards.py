"""Rewards of a rollout's responses on nodes of their own, beside the rest of the rollout, as RollPacker has it (arXiv 2509.21009).

A reward begins when its response is over and a node is free, in the order in which the responses end. All take as long.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.tables import Floats


def reward_ends(over_s: Floats, reward_s: float, nodes: int) -> Floats:
    """When each reward ends.

    Args:
        over_s: (n,) when each response is over, rising. reward_s: seconds of a reward. nodes: rewards that are computed at once.

    Returns:
        (n,) rising. Reward k has the node of reward k - nodes, the first one that is free.
    """
    ends = np.empty(over_s.size)
    free_s = np.zeros(nodes)
    for first in range(0, over_s.size, nodes):
        part = over_s[first : first + nodes]
        ends[first : first + nodes] = free_s = np.maximum(part, free_s[: part.size]) + reward_s
    return ends
