"""What could be done with the responses of a running rollout, and how long the rest of it would then take.

Policies, their simulator and the environment choose responses by these functions, so that the same state gives the same choice.
Shapes: n responses, of R in the rollout's table; K replicas, of which those from `first` on are in use.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.rollouts import AWAY, PREFILL, PREFILL_TOKEN, PREFILL_TOKEN2, RUNNING, WAITING, Rollout, decode_s
from rollmux_env.kernel.tables import Floats, Ints

_GOLDEN = 0.6180339887498949


@compiled
def open_responses(rollout: Rollout) -> Ints:
    """(n,) the responses that wait or run, or are away between two turns."""
    which = np.empty(rollout.responses.size, np.int64)
    n = 0
    for r in range(which.size):
        state = rollout.responses[r].state
        if state in (RUNNING, WAITING, AWAY):
            which[n] = r
            n += 1
    return which[:n]


@compiled
def context_of(rollout: Rollout, which: Ints) -> Ints:
    """(n,) tokens of some responses so far, their prompts' included; `observe` comes before."""
    context = np.empty(which.size, np.int64)
    for j in range(which.size):
        context[j] = rollout.responses[which[j]].prompt + rollout.responses[which[j]].sampled
    return context


@compiled
def quantiles_of(lengths: Ints, count: int) -> Floats:
    """(count,) the quantiles at the midpoints of equal shares, with linear interpolation."""
    ordered = np.sort(lengths)
    quantiles = np.empty(count)
    for j in range(count):
        at = (j + 0.5) / count * (ordered.size - 1)
        low = int(np.floor(at))
        step, share = ordered[min(low + 1, ordered.size - 1)] - ordered[low], at - low
        quantiles[j] = ordered[low] + step * share if share < 0.5 else ordered[low] + step - step * (1 - share)
    return quantiles


@compiled
def forecast(quantiles: Floats, sampled: Ints) -> Ints:
    """(n,) tokens that responses with so many sampled tokens still get, forecast.

    Of the remembered lengths beyond what a response has, each gets one; which, goes round so that the forecast lengths are
    distributed as the remembered ones, from the middle to the ends.
    """
    ahead = np.empty(sampled.size, np.int64)
    for j in range(sampled.size):
        first = np.searchsorted(quantiles, sampled[j], side="right")
        share = ((j + 1) * _GOLDEN) % 1.0
        at = min(first + int((quantiles.size - first) * share), quantiles.size - 1)
        ahead[j] = max(int(np.ceil(quantiles[at])) - sampled[j], 1)
    return ahead


@compiled
def spread(ahead: Ints, replicas: int) -> Ints:
    """(n,) a replica for each response: the longest first, to the one with the fewest."""
    where = np.empty(ahead.size, np.int64)
    order = np.argsort(-ahead, kind="mergesort")
    for j in range(ahead.size):
        where[order[j]] = j % replicas
    return where


@compiled
def gathered(replica: Ints, context: Ints, size: int, keep: int) -> Ints:
    """(n,) a replica for each open response when the `keep` replicas with the most of them take all; those there already stay.

    Args:
        replica: (n,) where each is. context: (n,) its tokens: the longest go first to where least is. size: how many there are.
    """
    load = np.zeros(size, np.int64)
    for k in replica:
        load[k] += 1
    chosen = np.argsort(-load, kind="mergesort")[:keep]
    stays = np.zeros(size, np.bool_)
    for k in chosen:
        stays[k] = True
    where = replica.copy()
    order = np.argsort(-context, kind="mergesort")
    for j in order:
        if not stays[replica[j]]:
            best = chosen[0]
            for k in chosen:
                if load[k] < load[best]:
                    best = k
            where[j] = best
            load[best] += 1
    return where


@compiled
def surplus_prompts(rollout: Rollout, wanted: int) -> Ints:
    """(n,) open responses of prompts that a round could put off: those beyond what is wanted that lack most responses."""
    open_of = np.zeros(rollout.groups.size, np.int64)
    which = open_responses(rollout)
    for r in which:
        open_of[rollout.responses[r].group] += 1
    lacking = np.full(open_of.size, -1, np.int64)  # responses until complete, of prompts in hand
    there = 0
    for g in range(open_of.size):
        group = rollout.groups[g]
        if open_of[g] > 0 and group.finished < group.needed:
            lacking[g] = group.needed - group.finished
            there += 1
    drop = np.zeros(open_of.size, np.bool_)
    surplus = there - (wanted - rollout.counts[0])
    order = np.argsort(-lacking, kind="mergesort")
    for j in range(max(0, surplus)):
        drop[order[j]] = True
    n = 0
    for r in which:
        if drop[rollout.responses[r].group]:
            which[n] = r
            n += 1
    return which[:n]


@compiled
def surplus_responses(rollout: Rollout) -> Ints:
    """(n,) open responses beyond those that their prompts still need, those with the fewest tokens; `observe` comes before."""
    which = open_responses(rollout)
    sampled = np.empty(which.size, np.int64)
    lacking = np.empty(rollout.groups.size, np.int64)
    for g in range(lacking.size):
        lacking[g] = rollout.groups[g].needed - rollout.groups[g].finished
    for j in range(which.size):
        sampled[j] = rollout.responses[which[j]].sampled
    n = 0
    chosen = np.empty(which.size, np.int64)
    for j in np.argsort(-sampled, kind="mergesort"):
        group = rollout.responses[which[j]].group
        if lacking[group] > 0:
            lacking[group] -= 1
        else:
            chosen[n] = which[j]
            n += 1
    return np.sort(chosen[:n])


@compiled
def rest_s(cost: Floats, context: Ints, ahead: Ints, where: Ints, moved: Ints, replicas: int, counting: int) -> float:
    """Forecast seconds until so many of some responses have finished, all of which decode at once; no cache is ever full.

    Args:
        cost: (7,) of a replica, as in `rollmux_env.kernel.rollouts`. context, ahead: (n,) tokens so far, and to come.
        where: (n,) the replica of each. moved: (n,) 1 where it is prefilled first.
    """
    ends = np.empty(ahead.size)
    clock_s, steps = np.zeros(replicas), np.zeros(replicas, np.int64)
    running, tokens = np.zeros(replicas, np.int64), np.zeros(replicas, np.int64)
    for j in range(ahead.size):
        k = where[j]
        running[k] += 1
        tokens[k] += context[j]
        if moved[j] == 1:
            clock_s[k] += cost[PREFILL] + cost[PREFILL_TOKEN] * context[j] + cost[PREFILL_TOKEN2] * context[j] * context[j]
    for j in np.argsort(ahead, kind="mergesort"):
        k = where[j]
        n = ahead[j] - steps[k]
        if n > 0:
            clock_s[k] += decode_s(cost, running[k], tokens[k], n)
            steps[k] = ahead[j]
            tokens[k] += n * running[k]
        running[k] -= 1
        tokens[k] -= context[j] + ahead[j]
        ends[j] = clock_s[k]
    if ends.size == 0:
        return 0.0
    return float(np.sort(ends)[min(counting, ends.size) - 1])
