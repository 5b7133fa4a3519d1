"""A round of a rollout: its start, its end, the responses that count, and the time of their rewards.

A round launches responses to prompts, which are groups of the rollout's table. It is over when the wanted number of groups is
complete, or no response is open. Open responses are aborted then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.rollout_records import ABORTED, FINISHED, Rollout, replica_table, response_table
from rollmux_env.kernel.rollout_trials import any_open, open_responses
from rollmux_env.kernel.rollouts import run, stop_responses
from rollmux_env.kernel.tables import Floats, Ints, Records

_NEW, _IDLE = response_table(1), replica_table(1)


@compiled(arrays=False)
def write_replica(replicas: Records, k: int, cost: Floats, kv: int, most: int, from_s: float) -> None:
    """Write a replica without work, which begins at a time.

    Args:
        replicas: (K,) table of replicas; row k is written.
        k: Row of the replica.
        cost: (7,) seconds, as in `rollmux_env.kernel.rollout_records`.
        kv: Tokens that its cache holds.
        most: Maximum number of sequences in a batch.
        from_s: Time at which it begins, seconds.
    """
    replicas[k] = _IDLE[0]
    replica = replicas[k]
    for c in range(len(cost)):
        replica.cost[c] = cost[c]
    replica.kv, replica.most = kv, most
    replica.clock_s = replica.busy_s = from_s


@compiled(arrays=False)
def begin_round(rollout: Rollout, prompts: Ints, each: int, needed: int, away_s: float) -> None:
    """Start a round: responses are new, with the tokens that `turns` has for them; later rows of the table are in no round.

    Args:
        rollout: Tables of the rollout.
        prompts: (n,) tokens of the prompt of each turn of a response.
        each: Number of responses of each group.
        needed: Number of responses that complete a group.
        away_s: Seconds before each further turn.
    """
    for g in range(len(rollout.groups)):
        rollout.groups[g].finished, rollout.groups[g].needed = 0, needed
    for r in range(len(rollout.responses)):
        rollout.responses[r] = _NEW[0]
        response = rollout.responses[r]
        if r >= len(prompts):
            response.state = ABORTED
            continue
        response.prompt = response.reads = prompts[r]
        response.length, response.until = rollout.turns[r, -1], rollout.turns[r, 0]
        response.group, response.away_s = r // each, away_s
    rollout.order[-1] = 0
    rollout.counts[:] = 0


@compiled
def run_through_instant(rollout: Rollout, now_s: float, until_s: float, responses: int, groups: int) -> tuple[float, bool]:
    """Run as `run` does, then process everything that ends at the same instant.

    Returns:
        The time, seconds, and whether the round is over.
    """
    now_s = run(rollout, now_s, until_s, responses, groups)
    now_s = run(rollout, now_s, now_s, rollout.order.size, groups)
    return now_s, rollout.counts[0] >= groups or not any_open(rollout)


@compiled
def end_round(rollout: Rollout, wanted: int, now_s: float) -> tuple[Ints, NDArray[np.bool_]]:
    """Abort what is open of a round that is over.

    Returns:
        (n,) the complete groups, as they became so: `wanted` at most, for others may have become complete in the same step; and
        (R,) whether each response counts: it is one of those that made one of them complete.
    """
    stop_responses(rollout, open_responses(rollout), now_s, ABORTED)
    ended, complete, n = np.zeros(rollout.groups.size, np.int64), np.empty(wanted, np.int64), 0
    for r in rollout.order[: rollout.order[-1]]:
        group = rollout.responses[r].group
        ended[group] += 1
        if ended[group] == rollout.groups[group].needed and n < wanted:
            complete[n] = group
            n += 1
    counts = np.zeros(rollout.responses.size, np.bool_)
    for group in complete[:n]:
        ended[group] = -1
    for r in range(counts.size):
        response = rollout.responses[r]
        counts[r] = response.state == FINISHED and ended[response.group] == -1
    return complete[:n], counts


@compiled
def over_s(rollout: Rollout) -> Floats:
    """Return (n,) the times at which the finished responses finished, ascending."""
    ends = np.empty(rollout.order[-1])
    for j in range(ends.size):
        ends[j] = rollout.responses[rollout.order[j]].end_s
    return ends


@compiled
def reward_ends(over_s: Floats, reward_s: float, nodes: int) -> Floats:
    """Return the ends of rewards that are computed on separate nodes during a rollout, as in RollPacker (arXiv 2509.21009).

    A reward begins when its response is over and a node is free, in the order in which the responses end. All take equally long.

    Args:
        over_s: (n,) end of each response, seconds, ascending.
        reward_s: Seconds of a reward.
        nodes: Number of rewards that are computed at once.

    Returns:
        (n,) seconds, ascending. Reward k has the node of reward k - nodes, the first one that is free.
    """
    ends = np.empty(over_s.size)
    for k in range(over_s.size):
        ends[k] = (over_s[k] if k < nodes else max(over_s[k], ends[k - nodes])) + reward_s
    return ends


@compiled
def rewarded_s(now_s: float, over_s: Floats, counts: NDArray[np.bool_], reward_s: float, nodes: int) -> float:
    """Return when a round that is over at `now_s` has the last reward that counts; `now_s` if rewards take no time.

    Args:
        now_s: Time at which the round is over, seconds.
        over_s: (n,) end of each response, seconds, ascending.
        counts: (n,) whether each response counts.
        reward_s: Seconds of a reward.
        nodes: Number of rewards that are computed at once.
    """
    if reward_s > 0:
        ends = reward_ends(over_s, reward_s, nodes)
        for j in range(ends.size):
            if counts[j]:
                now_s = max(now_s, ends[j])
    return now_s
