"""Choices for the responses of a running rollout, and forecasts of the time that the rest of it would then take.

Policies, their simulator and the environment choose responses by these functions, so that the same state gives the same choice.
Shapes: n responses, of R in the rollout's table; K replicas, of which those from `first` on are in use.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.rollout_records import AWAY, NONE, PREFILL, PREFILL_TOKEN, PREFILL_TOKEN2, RUNNING, WAITING, Rollout
from rollmux_env.kernel.rollouts import decode_s
from rollmux_env.kernel.tables import Floats, Ints

QUANTILES = 512  # of earlier lengths that are remembered
LAST = 0.3  # weight of the last rollout among them
_GOLDEN = 0.6180339887498949


@compiled
def descending(keys: Ints) -> Ints:
    """Return (n,) indices of keys, the largest first; equal ones keep their order. Compiles in a tenth of NumPy's time."""
    order, spare = np.arange(keys.size), np.empty(keys.size, np.int64)
    width = 1
    while width < keys.size:
        for left in range(0, keys.size, 2 * width):
            middle, right = min(left + width, keys.size), min(left + 2 * width, keys.size)
            i, j = left, middle
            for k in range(left, right):
                if i < middle and (j >= right or keys[order[i]] >= keys[order[j]]):
                    spare[k] = order[i]
                    i += 1
                else:
                    spare[k] = order[j]
                    j += 1
        order, spare = spare, order
        width *= 2
    return order


@compiled
def smallest(values: Floats, rank: int) -> float:
    """Return the value of a rank, from 0 for the smallest; `values` are reordered."""
    low, high = 0, values.size - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return float(values[rank])


@compiled
def open_responses(rollout: Rollout) -> Ints:
    """Return (n,) the responses that wait or run, or are away between two turns."""
    which = np.empty(rollout.responses.size, np.int64)
    n = 0
    for r in range(which.size):
        state = rollout.responses[r].state
        if state in (RUNNING, WAITING, AWAY):
            which[n] = r
            n += 1
    return which[:n]


@compiled(arrays=False)
def any_open(rollout: Rollout) -> bool:
    """Return whether a response waits or runs, or is away between two turns."""
    r = 0
    count = int(rollout.responses.size)
    while r < count and rollout.responses[r].state not in (RUNNING, WAITING, AWAY):
        r += 1
    return r < count


@compiled
def context_of(rollout: Rollout, which: Ints) -> Ints:
    """Return (n,) tokens of some responses so far, including their prompts; call `observe` before."""
    context = np.empty(which.size, np.int64)
    for j in range(which.size):
        context[j] = rollout.responses[which[j]].prompt + rollout.responses[which[j]].sampled
    return context


@compiled
def quantiles_of(lengths: Ints, count: int) -> Floats:
    """Return (count,) quantiles at the midpoints of equal shares, with linear interpolation."""
    order, last = descending(lengths), lengths.size - 1
    quantiles = np.empty(count)
    for j in range(count):
        at = (j + 0.5) / count * last
        low = int(np.floor(at))
        first, share = lengths[order[last - low]], at - low
        step = lengths[order[last - min(low + 1, last)]] - first
        quantiles[j] = first + step * share if share < 0.5 else first + step - step * (1 - share)
    return quantiles


@compiled
def remember(quantiles: Floats, lengths: Ints, known: bool) -> None:
    """Smooth (n,) quantiles of the lengths of earlier rollouts with those of the last one; without `known`, use the last alone."""
    new = quantiles_of(lengths, quantiles.size)
    for j in range(quantiles.size):
        quantiles[j] = (1 - LAST) * (quantiles[j] if known else new[j]) + LAST * new[j]


@compiled
def forecast(quantiles: Floats, sampled: Ints) -> Ints:
    """Return (n,) forecast tokens that responses with `sampled` tokens still get.

    Each response gets one of the remembered lengths beyond its tokens. The choice rotates, so that the forecast lengths are
    distributed like the remembered ones, from the middle to the ends.
    """
    ahead = np.empty(sampled.size, np.int64)
    for j in range(sampled.size):
        first, high = 0, quantiles.size  # `first`: position of the first remembered length beyond its tokens
        while first < high:
            middle = (first + high) // 2
            if quantiles[middle] <= sampled[j]:
                first = middle + 1
            else:
                high = middle
        share = ((j + 1) * _GOLDEN) % 1.0
        at = min(first + int((quantiles.size - first) * share), quantiles.size - 1)
        ahead[j] = max(int(np.ceil(quantiles[at])) - sampled[j], 1)
    return ahead


@compiled
def spread(order: Ints, replicas: int) -> Ints:
    """Return (n,) a replica for each response: in an order, the longest first, the replica with the fewest."""
    where = np.empty(order.size, np.int64)
    for j in range(order.size):
        where[order[j]] = j % replicas
    return where


@compiled
def gathered(replica: Ints, context: Ints, size: int, keep: int) -> Ints:
    """Return (n,) a replica for each open response if the `keep` replicas with the most of them take all; responses there stay.

    Args:
        replica: (n,) replica of each response.
        context: (n,) tokens of each response; the longest go first, to the replica with the fewest responses.
        size: Number of replicas.
        keep: Number of replicas that are kept.
    """
    load = np.zeros(size, np.int64)
    for k in replica:
        load[k] += 1
    chosen = descending(load)[:keep]
    stays = np.zeros(size, np.bool_)
    for k in chosen:
        stays[k] = True
    where = replica.copy()
    order = descending(context)
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
    """Return (n,) open responses of prompts that a round may defer: beyond the wanted prompts, those that lack most responses."""
    open_of = np.zeros(rollout.groups.size, np.int64)
    which = open_responses(rollout)
    for r in which:
        open_of[rollout.responses[r].group] += 1
    lacking = np.full(open_of.size, -1, np.int64)  # responses until complete, of incomplete prompts
    unfinished = 0
    for g in range(open_of.size):
        group = rollout.groups[g]
        if open_of[g] > 0 and group.finished < group.needed:
            lacking[g] = group.needed - group.finished
            unfinished += 1
    drop = np.zeros(open_of.size, np.bool_)
    surplus = unfinished - (wanted - rollout.counts[0])
    order = descending(lacking)
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
    """Return (n,) open responses beyond those that their prompts still need, the ones with the fewest tokens.

    Call `observe` before.
    """
    which = open_responses(rollout)
    sampled = np.empty(which.size, np.int64)
    lacking = np.empty(rollout.groups.size, np.int64)
    for g in range(lacking.size):
        lacking[g] = rollout.groups[g].needed - rollout.groups[g].finished
    for j in range(which.size):
        sampled[j] = rollout.responses[which[j]].sampled
    stays = np.zeros(which.size, np.bool_)
    for j in descending(sampled):
        group = rollout.responses[which[j]].group
        if lacking[group] > 0:
            lacking[group] -= 1
            stays[j] = True
    n = 0
    for j in range(which.size):
        if not stays[j]:
            which[n] = which[j]
            n += 1
    return which[:n]


@compiled
def rest_s(cost: Floats, context: Ints, ahead: Ints, order: Ints, where: Ints, moved: Ints, replicas: int, counting: int) -> float:
    """Return the forecast seconds until `counting` responses have finished, if all decode at once and no cache is ever full.

    Args:
        cost: (COSTS,) costs of a replica, as in `rollmux_env.kernel.rollout_records`.
        context: (n,) tokens of each response so far.
        ahead: (n,) tokens that each response still gets.
        order: (n,) the responses, those with most tokens ahead first.
        where: (n,) the replica of each response, or NONE if it was dropped.
        moved: (n,) 1 if the response is prefilled first.
        replicas: Number of replicas.
        counting: Number of responses that must finish.
    """
    ends = np.empty(ahead.size)
    clock_s, steps = np.zeros(replicas), np.zeros(replicas, np.int64)
    running, tokens = np.zeros(replicas, np.int64), np.zeros(replicas, np.int64)
    for j in range(ahead.size):
        k = where[j]
        if k == NONE:
            continue
        running[k] += 1
        tokens[k] += context[j]
        if moved[j] == 1:
            clock_s[k] += cost[PREFILL] + cost[PREFILL_TOKEN] * context[j] + cost[PREFILL_TOKEN2] * context[j] * context[j]
    for j in order[::-1]:
        k = where[j]
        if k == NONE:
            ends[j] = np.inf
            continue
        n = ahead[j] - steps[k]
        if n > 0:
            clock_s[k] += decode_s(cost, running[k], tokens[k], n)
            steps[k] = ahead[j]
            tokens[k] += n * running[k]
        running[k] -= 1
        tokens[k] -= context[j] + ahead[j]
        ends[j] = clock_s[k]
    return smallest(ends, min(counting, ends.size) - 1) if ends.size > 0 else 0.0
