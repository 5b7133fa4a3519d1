"""When the rewards of a rollout's responses end, compiled: `rollmux_env.rollout.rewards` over records."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.rollout_records import Rollout
from rollmux_env.kernel.tables import Floats, Ints, Records


@compiled
def reward_ends(job: Records, rollout: Rollout) -> Floats:
    """(n,) when the reward of each finished response ends, in the order in which they finished; rising. They must take time."""
    n = rollout.order[-1]
    ends = np.empty(n)
    for j in range(n):
        begins_s = rollout.responses[rollout.order[j]].end_s
        if j >= job.reward_nodes:
            begins_s = max(begins_s, ends[j - job.reward_nodes])
        ends[j] = begins_s + job.reward_s
    return ends


@compiled
def rewarding_s(job: Records, rollout: Rollout, place: Ints) -> float:
    """Seconds from the end of a rollout to its last reward that counts.

    Args:
        place: (G,) negative for prompts that do not count.
    """
    if job.reward_s == 0.0:
        return 0.0
    last_s, ends = job.now_s, reward_ends(job, rollout)
    for j in range(ends.size):
        if place[rollout.order[j] // job.each] >= 0:
            last_s = max(last_s, ends[j])
    return float(last_s - job.now_s)
