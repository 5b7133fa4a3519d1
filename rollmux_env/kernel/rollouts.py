"""Rollout replicas with continuous batching, from one completion to the next.

Between two events of a replica nothing but its context grows, by one token a sequence and step, so the seconds of n steps have a
closed form. An event is a turn that ends or begins, or a cache that is full. Shapes: R responses of at most T turns, G groups of
responses (a group is a prompt), K replicas.

The rules, which the token loop of the tests follows too: a replica takes waiting responses in their order while it has fewer than
`most` and room in the cache for their context and a token of every sequence; each is prefilled, one after the other, and decoding
waits. A full cache puts the response that was taken last back at the head of the queue, to be prefilled with what it has sampled.
Between two turns a response is away; what it has in the cache stays there until the room is needed, the oldest goes first, and when
it is back it waits like a new one, to be prefilled with what is not there.
What comes from outside (launches, abortions) takes effect at the end of the decode step in progress.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.tables import Floats, Ints

NEW, WAITING, RUNNING, FINISHED, ABORTED, AWAY = range(6)
NONE = -1
TIE_S = 1e-9  # apart; so that rounding does not say who comes first
STEP, WEIGHTS, KV, SEQUENCE, PREFILL_TOKEN, PREFILL_TOKEN2, PREFILL = range(7)  # as the fields of ReplicaTiming


class Responses(NamedTuple):
    """All responses of a rollout.

    Attributes:
        prompt: (R,) tokens, of the turns so far. length: (R,) tokens that it is going to have. group: (R,) whose.
        turn: (R,) its present one, from 0. until: (R,) tokens that it has when that is through. turns: (R, T) `until` of each.
        reads: (R,) tokens of the prompt of each further turn. away_s: (R,) before it. back_s: (R,) when it was or will be back.
        held: (R,) tokens of it in the cache of its replica while it is away or waits.
        sampled: (R,) tokens, as of when it last entered or left a replica's batch. state: (R,) NEW to ABORTED.
        replica: (R,) where it waits or runs, or last did, or NONE. ends: (R,) step of that replica at which its turn is through.
        end_s: (R,) when it finished or was aborted.
        refill_s: (R,) seconds in place of its prefill, where its cache is brought; negative: it is prefilled.
        after, before: (R,) neighbours in the queue where it waits, or NONE.
        finished, needed: (G,) responses of the group that finished, and how many complete it.
        order: (R + 1,) responses in the order in which they finished, and at the end how many did.
        counts: (2,) groups that are complete, preemptions.
    """

    prompt: Ints
    length: Ints
    group: Ints
    turn: Ints
    until: Ints
    turns: Ints
    reads: Ints
    away_s: Floats
    back_s: Floats
    held: Ints
    sampled: Ints
    state: Ints
    replica: Ints
    ends: Ints
    end_s: Floats
    refill_s: Floats
    after: Ints
    before: Ints
    finished: Ints
    needed: Ints
    order: Ints
    counts: Ints


class Replicas(NamedTuple):
    """The replicas.

    Attributes:
        cost: (K, 7) seconds, columns STEP to PREFILL. kv: (K,) tokens of the cache. most: (K,) sequences of a batch.
        clock_s: (K,) up to when it was followed. next_s: (K,) its next event, or infinite. ahead: (K,) decode steps until then.
        back_s: (K,) when the next response is back, or infinite. held: (K,) tokens of those that are away or wait.
        steps: (K,) decode steps done. context: (K,) tokens of its batch. busy_s: (K,) when it last had something to do.
        batch: (K, R) its running responses in the order in which they were taken. running: (K,) how many.
        head, tail, waiting: (K,) its queue and how long that is.
    """

    cost: Floats
    kv: Ints
    most: Ints
    clock_s: Floats
    next_s: Floats
    back_s: Floats
    held: Ints
    ahead: Ints
    steps: Ints
    context: Ints
    busy_s: Floats
    batch: Ints
    running: Ints
    head: Ints
    tail: Ints
    waiting: Ints


@compiled
def decode_s(cost: Floats, running: int, context: int, n: int) -> float:
    """Seconds of n decode steps of a batch whose context is so many tokens before the first."""
    arithmetic = cost[SEQUENCE] * running
    memory = cost[WEIGHTS] + cost[KV] * context
    growth = cost[KV] * running
    bound = n if memory < arithmetic else 0  # steps that are bound by arithmetic: the first ones
    if bound and growth > 0:
        bound = min(float(n), np.ceil((arithmetic - memory) / growth))
    rest = n - bound
    return float(n * cost[STEP] + bound * arithmetic + rest * memory + growth * (bound + n - 1) * rest / 2)


@compiled
def _advance(all: Responses, replicas: Replicas, k: int, n: int) -> None:
    """A replica does n decode steps."""
    running = replicas.running[k]
    replicas.clock_s[k] += decode_s(replicas.cost[k], running, replicas.context[k], n)
    replicas.steps[k] += n
    replicas.ahead[k] -= n
    replicas.context[k] += n * running


@compiled
def _catch_up(all: Responses, replicas: Replicas, k: int, now_s: float) -> None:
    """Follow a replica to the end of the step that it is in at `now_s`."""
    if replicas.running[k] == 0:
        replicas.clock_s[k] = max(replicas.clock_s[k], now_s)
        return
    low, high = 0, replicas.ahead[k]
    while low < high:
        middle = (low + high) // 2
        if replicas.clock_s[k] + decode_s(replicas.cost[k], replicas.running[k], replicas.context[k], middle) >= now_s:
            high = middle
        else:
            low = middle + 1
    if low:
        _advance(all, replicas, k, low)


@compiled
def _queue(all: Responses, replicas: Replicas, r: int, k: int, first: bool) -> None:
    """A response waits at a replica, first or last in the queue."""
    all.state[r], all.replica[r] = WAITING, k
    all.after[r] = all.before[r] = NONE
    if replicas.waiting[k] == 0:
        replicas.head[k] = replicas.tail[k] = r
    elif first:
        all.after[r] = replicas.head[k]
        all.before[replicas.head[k]] = r
        replicas.head[k] = r
    else:
        all.before[r] = replicas.tail[k]
        all.after[replicas.tail[k]] = r
        replicas.tail[k] = r
    replicas.waiting[k] += 1


@compiled
def _dequeue(all: Responses, replicas: Replicas, r: int) -> None:
    k, before, after = all.replica[r], all.before[r], all.after[r]
    if before == NONE:
        replicas.head[k] = after
    else:
        all.after[before] = after
    if after == NONE:
        replicas.tail[k] = before
    else:
        all.before[after] = before
    replicas.waiting[k] -= 1


@compiled
def _leave(all: Responses, replicas: Replicas, r: int) -> None:
    """A response leaves the batch of its replica, with what it has sampled."""
    k = all.replica[r]
    all.sampled[r] = all.until[r] - (all.ends[r] - replicas.steps[k])
    replicas.context[k] -= all.prompt[r] + all.sampled[r]
    n = replicas.running[k]
    at = 0
    while replicas.batch[k, at] != r:
        at += 1
    for j in range(at, n - 1):
        replicas.batch[k, j] = replicas.batch[k, j + 1]
    replicas.running[k] = n - 1


@compiled
def _forget(all: Responses, replicas: Replicas, r: int) -> int:
    """What a response holds in the cache is no longer there as such; how much it was."""
    tokens = all.held[r]
    replicas.held[all.replica[r]] -= tokens
    all.held[r] = 0
    return int(tokens)


@compiled
def _make_room(all: Responses, replicas: Replicas, k: int, tokens: int, but: int) -> bool:
    """Whether so many tokens more fit, when the cache of those who are away is given up as far as it must be, but for one's."""
    if replicas.context[k] + tokens > replicas.kv[k]:
        return False
    while replicas.context[k] + replicas.held[k] + tokens - (all.held[but] if but != NONE else 0) > replicas.kv[k]:
        oldest = NONE
        for r in range(all.held.size):
            if all.held[r] > 0 and all.replica[r] == k and r != but and (oldest == NONE or all.back_s[r] < all.back_s[oldest]):
                oldest = r
        _forget(all, replicas, oldest)
    return True


@compiled
def _go_away(all: Responses, replicas: Replicas, r: int, k: int) -> None:
    """A response is away until its `back_s`, and belongs to a replica meanwhile."""
    all.state[r], all.replica[r] = AWAY, k
    replicas.back_s[k] = min(replicas.back_s[k], all.back_s[r])


@compiled
def _come_back(all: Responses, replicas: Replicas, k: int, now_s: float) -> None:
    """Responses of a replica that are back wait there."""
    _catch_up(all, replicas, k, now_s - TIE_S if replicas.running[k] else now_s)
    due_s, replicas.back_s[k] = replicas.back_s[k] + TIE_S, np.inf
    for r in range(all.state.size):
        if all.state[r] == AWAY and all.replica[r] == k:
            if all.back_s[r] <= due_s:
                _queue(all, replicas, r, k, False)
            else:
                replicas.back_s[k] = min(replicas.back_s[k], all.back_s[r])
    if replicas.running[k] == 0 or replicas.ahead[k] > 0:  # else its next event is at the end of this step, and settles
        settle(all, replicas, k)


@compiled
def settle(all: Responses, replicas: Replicas, k: int) -> None:
    """Take what waits and fits, then find the replica's next event."""
    while replicas.waiting[k] > 0 and replicas.running[k] < replicas.most[k]:
        r = replicas.head[k]
        n, tokens = replicas.running[k], all.prompt[r] + all.sampled[r]
        if not _make_room(all, replicas, k, tokens + n + 1, r):
            break
        _dequeue(all, replicas, r)
        cost, held = replicas.cost[k], _forget(all, replicas, r)
        fill_s = cost[PREFILL] + cost[PREFILL_TOKEN] * (tokens - held) + cost[PREFILL_TOKEN2] * (tokens * tokens - held * held)
        replicas.clock_s[k] += fill_s if all.refill_s[r] < 0 else all.refill_s[r]
        all.refill_s[r] = -1.0
        all.state[r] = RUNNING
        all.ends[r] = replicas.steps[k] + all.until[r] - all.sampled[r]
        replicas.batch[k, n] = r
        replicas.running[k] = n + 1
        replicas.context[k] += tokens
    n = replicas.running[k]
    replicas.busy_s[k] = max(replicas.busy_s[k], replicas.clock_s[k])
    if n == 0:
        replicas.ahead[k], replicas.next_s[k] = 0, np.inf
        return
    first = all.ends[replicas.batch[k, 0]]
    for j in range(1, n):
        first = min(first, all.ends[replicas.batch[k, j]])
    _make_room(all, replicas, k, n, NONE)
    ahead = min(first - replicas.steps[k], (replicas.kv[k] - replicas.context[k] - replicas.held[k]) // n)
    replicas.ahead[k] = ahead
    replicas.next_s[k] = replicas.clock_s[k] + decode_s(replicas.cost[k], n, replicas.context[k], ahead)


@compiled
def launch(all: Responses, replicas: Replicas, which: Ints, where: Ints, now_s: float) -> None:
    """Responses, new or taken off other replicas, wait at these."""
    touched = np.zeros(replicas.kv.size, np.bool_)
    for r, k in zip(which, where):  # noqa: B905 (the compiler knows no strict)
        _catch_up(all, replicas, k, now_s)
        if all.back_s[r] > now_s:
            _go_away(all, replicas, r, k)
        else:
            _queue(all, replicas, r, k, False)
        touched[k] = True
    for k in np.flatnonzero(touched):
        settle(all, replicas, k)


@compiled
def take_off(all: Responses, replicas: Replicas, which: Ints, now_s: float, state: int) -> None:
    """Responses that wait or run no longer do; they are in `state` from now on."""
    touched = np.zeros(replicas.kv.size, np.bool_)
    for r in which:
        if all.state[r] == RUNNING:
            _catch_up(all, replicas, all.replica[r], now_s)
            _leave(all, replicas, r)
        elif all.state[r] == WAITING:
            _dequeue(all, replicas, r)
            _forget(all, replicas, r)
        elif all.state[r] == AWAY:
            _forget(all, replicas, r)
        else:
            continue
        touched[all.replica[r]] = True
        all.state[r] = state
        all.end_s[r] = now_s
    for k in np.flatnonzero(touched):
        settle(all, replicas, k)


@compiled
def observe(all: Responses, replicas: Replicas, now_s: float) -> None:
    """Bring what the running responses have sampled up to date."""
    for k in range(replicas.kv.size):
        _catch_up(all, replicas, k, now_s)
        for j in range(replicas.running[k]):
            r = replicas.batch[k, j]
            all.sampled[r] = all.until[r] - (all.ends[r] - replicas.steps[k])


@compiled
def _finish(all: Responses, replicas: Replicas, k: int, now_s: float) -> None:
    """The responses of a replica whose turn is through are away, or have finished, and with them their groups, if that makes these
    complete."""
    j = 0
    while j < replicas.running[k]:
        r = replicas.batch[k, j]
        if all.ends[r] > replicas.steps[k]:
            j += 1
            continue
        _leave(all, replicas, r)
        all.end_s[r] = now_s
        g = all.group[r]
        if all.finished[g] == all.needed[g]:
            all.state[r] = ABORTED
            continue
        if all.until[r] < all.length[r]:
            all.held[r] = all.prompt[r] + all.sampled[r]
            replicas.held[k] += all.held[r]
            all.turn[r] += 1
            all.until[r] = all.turns[r, all.turn[r]]
            all.prompt[r] += all.reads[r]
            all.back_s[r] = now_s + all.away_s[r]
            _go_away(all, replicas, r, k)
            continue
        all.state[r] = FINISHED
        all.order[all.order[-1]] = r
        all.order[-1] += 1
        all.finished[g] += 1
        if all.finished[g] == all.needed[g]:
            all.counts[0] += 1


@compiled
def run(all: Responses, replicas: Replicas, now_s: float, until_s: float, responses: int, groups: int) -> float:
    """Go on until a time, or so many responses have finished or groups are complete in all, or nothing runs.

    The other responses of a group that becomes complete are aborted, unless that ends the run: then its caller does what is due.

    Returns:
        The time then, seconds; `until_s` where it came first.
    """
    while all.order[-1] < responses and all.counts[0] < groups:
        k, returns = int(np.argmin(replicas.next_s)), int(np.argmin(replicas.back_s))
        comes_back = replicas.back_s[returns] < replicas.next_s[k] - TIE_S
        at_s = replicas.back_s[returns] if comes_back else replicas.next_s[k]
        if at_s == np.inf:
            break
        if at_s > until_s:
            return until_s
        now_s = max(now_s, at_s)
        if comes_back:
            _come_back(all, replicas, returns, now_s)
            continue
        _advance(all, replicas, k, replicas.ahead[k])
        before, complete = all.order[-1], all.counts[0]
        n = replicas.running[k]
        _finish(all, replicas, k, now_s)
        if replicas.running[k] == n and replicas.context[k] + n > replicas.kv[k]:  # nobody's turn is through: the cache is full
            last = replicas.batch[k, n - 1]
            _leave(all, replicas, last)
            _queue(all, replicas, last, k, True)
            all.counts[1] += 1
        if all.counts[0] > complete and all.counts[0] < groups:
            for done in range(before, all.order[-1]):
                g = all.group[all.order[done]]
                if all.finished[g] == all.needed[g]:
                    open = (all.state == RUNNING) | (all.state == WAITING) | (all.state == AWAY)
                    losers = np.flatnonzero((all.group == g) & open)
                    take_off(all, replicas, losers, now_s, ABORTED)
        settle(all, replicas, k)
    return now_s
