"""Rollouts on replicas with continuous batching, from one completion to the next: launches, abortions, and what ends.

An event is a turn that ends or begins, or a cache that is full; `rollmux_env.kernel.replicas` follows a replica from one to the
next. The rules of both are those of the token loop of the tests. What comes from outside (launches, abortions) takes effect at the
end of the decode step in progress.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.replicas import advance, catch_up, come_back, dequeue, enqueue, forget, go_away, leave, settle
from rollmux_env.kernel.rollout_records import ABORTED, AWAY, FINISHED, NEW, NONE, RUNNING, TIE_S, WAITING, Rollout
from rollmux_env.kernel.tables import Floats, Ints


@compiled
def launch(rollout: Rollout, which: Ints, where: Ints, now_s: float) -> None:
    """Responses, new or taken off other replicas, wait at these."""
    touched = np.zeros(rollout.replicas.size, np.bool_)
    for r, k in zip(which, where):  # noqa: B905 (the compiler knows no strict)
        catch_up(rollout.replicas[k], now_s)
        if rollout.responses[r].back_s > now_s:
            go_away(rollout, r, k)
        else:
            enqueue(rollout, r, k, False)
        touched[k] = True
    for k in range(touched.size):
        if touched[k]:
            settle(rollout, k)


@compiled(arrays=False)
def _take(rollout: Rollout, r: int, now_s: float, state: int) -> int:
    """A response that waits, runs or is away no longer does; the replica that has to settle, or NONE."""
    response = rollout.responses[r]
    k = response.replica
    if response.state == RUNNING:
        catch_up(rollout.replicas[k], now_s)
        leave(rollout, r)
    elif response.state == WAITING:
        dequeue(rollout, r)
        forget(rollout, r)
    elif response.state == AWAY:
        forget(rollout, r)
    else:
        return NONE
    response.state = state
    response.end_s = now_s
    return int(k)


@compiled
def take_off(rollout: Rollout, which: Ints, now_s: float, state: int) -> None:
    """Responses that wait, run or are away no longer do; they are in `state` from now on."""
    touched = np.zeros(rollout.replicas.size, np.bool_)
    for r in which:
        k = _take(rollout, r, now_s, state)
        if k != NONE:
            touched[k] = True
    for k in range(touched.size):
        if touched[k]:
            settle(rollout, k)


@compiled
def move(rollout: Rollout, which: Ints, where: Ints, now_s: float) -> None:
    """Responses that wait, run or are away go on at other replicas, from what they have sampled."""
    take_off(rollout, which, now_s, NEW)
    for r in which:
        rollout.responses[r].end_s = np.inf
    launch(rollout, which, where, now_s)


@compiled(arrays=False)
def observe(rollout: Rollout, now_s: float) -> None:
    """Bring what the running responses have sampled up to date."""
    for k in range(rollout.replicas.size):
        replica = rollout.replicas[k]
        catch_up(replica, now_s)
        for j in range(replica.running):
            response = rollout.responses[rollout.batch[k, j]]
            response.sampled = response.until - (response.ends - replica.steps)


@compiled(arrays=False)
def _finish(rollout: Rollout, k: int, now_s: float) -> None:
    """The responses of a replica whose turn is through are away, or have finished, and with them their groups, if that makes these
    complete."""
    replica, order = rollout.replicas[k], rollout.order
    j = 0
    while j < replica.running:
        r = rollout.batch[k, j]
        response = rollout.responses[r]
        if response.ends > replica.steps:
            j += 1
            continue
        leave(rollout, r)
        response.end_s = now_s
        group = rollout.groups[response.group]
        if group.finished == group.needed:
            response.state = ABORTED
            continue
        if response.until < response.length:
            response.cached = response.prompt + response.sampled
            replica.cached += response.cached
            response.turn += 1
            response.until = rollout.turns[r, response.turn]
            response.prompt += response.reads
            response.back_s = now_s + response.away_s
            go_away(rollout, r, k)
            continue
        response.state = FINISHED
        order[order[-1]] = r
        order[-1] += 1
        group.finished += 1
        if group.finished == group.needed:
            rollout.counts[0] += 1


@compiled
def _abort_group(rollout: Rollout, group: int, now_s: float) -> None:
    """What is still open of a complete group is aborted."""
    losers = np.empty(rollout.responses.size, np.int64)
    n = 0
    for r in range(losers.size):
        state = rollout.responses[r].state
        if rollout.responses[r].group == group and state in (RUNNING, WAITING, AWAY):
            losers[n] = r
            n += 1
    take_off(rollout, losers[:n], now_s, ABORTED)


@compiled
def _abort_rest(rollout: Rollout, before: int, now_s: float) -> None:
    """Abort what is open of the groups that became complete after so many responses."""
    for done in range(before, rollout.order[-1]):
        group = rollout.responses[rollout.order[done]].group
        if rollout.groups[group].finished == rollout.groups[group].needed:
            _abort_group(rollout, group, now_s)


@compiled
def run(rollout: Rollout, now_s: float, until_s: float, responses: int, groups: int) -> float:
    """Go on until a time, or so many responses have finished or groups are complete in all, or nothing runs.

    The other responses of a group that becomes complete are aborted, unless that ends the run: then its caller does what is due.

    Returns:
        The time then, seconds; `until_s` where it came first.
    """
    order, counts, replicas = rollout.order, rollout.counts, rollout.replicas
    while order[-1] < responses and counts[0] < groups:
        k = returns = 0
        for other in range(1, replicas.size):
            if replicas[other].next_s < replicas[k].next_s:
                k = other
            if replicas[other].back_s < replicas[returns].back_s:
                returns = other
        replica = replicas[k]
        comes_back = replicas[returns].back_s < replica.next_s - TIE_S
        at_s = replicas[returns].back_s if comes_back else replica.next_s
        if at_s == np.inf:
            break
        if at_s > until_s:
            return until_s
        now_s = max(now_s, at_s)
        if comes_back:
            come_back(rollout, returns, now_s)
            continue
        advance(replica, replica.ahead)
        replica.clock_s = at_s  # to the last bit, however many parts these steps were followed in
        before, complete, n = order[-1], counts[0], replica.running
        _finish(rollout, k, now_s)
        if replica.running == n and replica.context + n > replica.kv:  # nobody's turn is through: the cache is full
            last = rollout.batch[k, n - 1]
            leave(rollout, last)
            enqueue(rollout, last, k, True)
            counts[1] += 1
        if counts[0] > complete and counts[0] < groups:
            _abort_rest(rollout, before, now_s)
        settle(rollout, k)
    return now_s


@compiled
def go_on(rollout: Rollout, now_s: float, until_s: float, responses: int, groups: int) -> float:
    """As `run`, and then what ends at the same instant ends too."""
    now_s = run(rollout, now_s, until_s, responses, groups)
    return run(rollout, now_s, now_s, rollout.order.size, groups)


@compiled
def complete_groups(rollout: Rollout, wanted: int) -> Ints:
    """(n,) the complete groups, as they became so: `wanted` at most, for others may have become complete in the same step."""
    ended, complete, n = np.zeros(rollout.groups.size, np.int64), np.empty(wanted, np.int64), 0
    for r in rollout.order[: rollout.order[-1]]:
        group = rollout.responses[r].group
        ended[group] += 1
        if ended[group] == rollout.groups[group].needed and n < wanted:
            complete[n] = group
            n += 1
    return complete[:n]


@compiled
def reward_ends(over_s: Floats, reward_s: float, nodes: int) -> Floats:
    """When rewards end that are computed on nodes of their own, beside the rest of a rollout, as in RollPacker (arXiv 2509.21009).

    A reward begins when its response is over and a node is free, in the order in which the responses end. All take as long.

    Args:
        over_s: (n,) when each response is over, rising. reward_s: seconds of a reward. nodes: rewards that are computed at once.

    Returns:
        (n,) rising. Reward k has the node of reward k - nodes, the first one that is free.
    """
    ends = np.empty(over_s.size)
    for k in range(over_s.size):
        ends[k] = (over_s[k] if k < nodes else max(over_s[k], ends[k - nodes])) + reward_s
    return ends
