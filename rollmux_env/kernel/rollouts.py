"""Rollouts on replicas with continuous batching, from one completion to the next: launches, abortions, and ends.

Between two events of a replica only its context grows, by one token a sequence and step, so the seconds of n steps have a closed
form. An event is the end or the start of a turn, or a full cache. Launches and abortions from outside take effect at the end of
the decode step in progress.

These are the rules, which the token loop of the tests follows too. A replica takes waiting responses in their order while it has
fewer than `most` and room in the cache for their context and a token of every sequence. Each is prefilled, one after the other,
and decoding waits. If the cache is full, the response that was taken last returns to the head of the queue, and is prefilled later
with the tokens that it has sampled. Between two turns a response is away. Its tokens stay in the cache until the room is needed;
the oldest are dropped first. When it is back it waits like a new one, and the missing tokens are prefilled.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.rollout_records import (
    ABORTED,
    AWAY,
    EXPERT_SHARE,
    EXPERTS,
    FINISHED,
    KV,
    MESSAGE,
    NEW,
    NONE,
    PREFILL,
    PREFILL_TOKEN,
    PREFILL_TOKEN2,
    RUNNING,
    SEQUENCE,
    STEP,
    TIE_S,
    WAITING,
    WEIGHTS,
    Rollout,
)
from rollmux_env.kernel.tables import Floats, Ints, Records


@compiled
def weights_s(cost: Floats, running: int) -> float:
    """Return the seconds to read the weights in a decode step; of experts, those that any of the sequences is routed to."""
    if cost[EXPERTS] == 0.0:
        return float(cost[WEIGHTS])
    unread, base, n = 1.0, 1.0 - cost[EXPERT_SHARE], running
    while n > 0:  # a power by squaring, which rounds the same everywhere
        if n & 1:
            unread *= base
        base *= base
        n >>= 1
    return float(cost[WEIGHTS] + cost[EXPERTS] * (1.0 - unread))


@compiled
def decode_s(cost: Floats, running: int, context: int, n: int) -> float:
    """Return the seconds of n decode steps of a batch with `context` tokens before the first."""
    arithmetic = cost[SEQUENCE] * running
    memory = weights_s(cost, running) + cost[KV] * context
    growth = cost[KV] * running
    bound = n if memory < arithmetic else 0  # steps that are bound by arithmetic: the first ones
    if bound and growth > 0:
        bound = min(float(n), np.ceil((arithmetic - memory) / growth))
    rest = n - bound
    return float(
        n * (cost[STEP] + cost[MESSAGE] * running) + bound * arithmetic + rest * memory + growth * (bound + n - 1) * rest / 2
    )


@compiled(arrays=False)
def advance(replica: Records, n: int) -> None:
    """Advance a replica by n decode steps."""
    replica.clock_s += decode_s(replica.cost, replica.running, replica.context, n)
    replica.steps += n
    replica.ahead -= n
    replica.context += n * replica.running


@compiled(arrays=False)
def catch_up(replica: Records, now_s: float) -> None:
    """Advance a replica to the end of the step that it is in at `now_s`."""
    if replica.running == 0:
        replica.clock_s = max(replica.clock_s, now_s)
        return
    low, high = 0, replica.ahead
    while low < high:
        middle = (low + high) // 2
        if replica.clock_s + decode_s(replica.cost, replica.running, replica.context, middle) >= now_s:
            high = middle
        else:
            low = middle + 1
    if low:
        advance(replica, low)


@compiled(arrays=False)
def enqueue(rollout: Rollout, r: int, k: int, first: bool) -> None:
    """Put a response first or last in the queue of a replica."""
    responses, response, replica = rollout.responses, rollout.responses[r], rollout.replicas[k]
    response.state, response.replica = WAITING, k
    response.after = response.before = NONE
    if replica.waiting == 0:
        replica.head = replica.tail = r
    elif first:
        response.after = replica.head
        responses[replica.head].before = r
        replica.head = r
    else:
        response.before = replica.tail
        responses[replica.tail].after = r
        replica.tail = r
    replica.waiting += 1


@compiled(arrays=False)
def dequeue(rollout: Rollout, r: int) -> None:
    """Take a response out of its replica's queue."""
    response = rollout.responses[r]
    replica = rollout.replicas[response.replica]
    if response.before == NONE:
        replica.head = response.after
    else:
        rollout.responses[response.before].after = response.after
    if response.after == NONE:
        replica.tail = response.before
    else:
        rollout.responses[response.after].before = response.before
    replica.waiting -= 1


@compiled(arrays=False)
def leave(rollout: Rollout, r: int) -> None:
    """Take a response out of the batch of its replica, with the tokens that it has sampled."""
    response = rollout.responses[r]
    k = response.replica
    replica = rollout.replicas[k]
    response.sampled = response.until - (response.ends - replica.steps)
    replica.context -= response.prompt + response.sampled
    n = replica.running
    at = 0
    while rollout.batch[k, at] != r:
        at += 1
    for j in range(at, n - 1):
        rollout.batch[k, j] = rollout.batch[k, j + 1]
    replica.running = n - 1


@compiled(arrays=False)
def forget(rollout: Rollout, r: int) -> int:
    """Drop a response's tokens from the cache, and return their number."""
    response = rollout.responses[r]
    tokens = response.cached
    rollout.replicas[response.replica].cached -= tokens
    response.cached = 0
    return int(tokens)


@compiled(arrays=False)
def _make_room(rollout: Rollout, k: int, tokens: int, but: int) -> bool:
    """Make room for `tokens` more tokens by dropping the caches of responses that are away, except one; return whether they fit."""
    responses, replica = rollout.responses, rollout.replicas[k]
    if replica.context + tokens > replica.kv:
        return False
    while replica.context + replica.cached + tokens - (responses[but].cached if but != NONE else 0) > replica.kv:
        oldest = NONE
        for r in range(responses.size):
            response = responses[r]
            if response.cached == 0 or response.replica != k or r == but:
                continue
            if oldest == NONE or response.back_s < responses[oldest].back_s:
                oldest = r
        forget(rollout, oldest)
    return True


@compiled(arrays=False)
def set_away(rollout: Rollout, r: int, k: int) -> None:
    """Mark a response as away until its `back_s`; it belongs to a replica meanwhile."""
    response, replica = rollout.responses[r], rollout.replicas[k]
    response.state, response.replica = AWAY, k
    replica.back_s = min(replica.back_s, response.back_s)


@compiled(arrays=False)
def requeue_returned(rollout: Rollout, k: int, now_s: float) -> None:
    """Queue the responses of a replica that are no longer away."""
    replica = rollout.replicas[k]
    catch_up(replica, now_s - TIE_S if replica.running else now_s)
    due_s, replica.back_s = replica.back_s + TIE_S, np.inf
    for r in range(rollout.responses.size):
        response = rollout.responses[r]
        if response.state == AWAY and response.replica == k:
            if response.back_s <= due_s:
                enqueue(rollout, r, k, False)
            else:
                replica.back_s = min(replica.back_s, response.back_s)
    if replica.running == 0 or replica.ahead > 0:  # else its next event is at the end of this step, and settles
        settle(rollout, k)


@compiled(arrays=False)
def settle(rollout: Rollout, k: int) -> None:
    """Take what waits and fits, then find the replica's next event."""
    replica, cost = rollout.replicas[k], rollout.replicas[k].cost
    while replica.waiting > 0 and replica.running < replica.most:
        r, n = replica.head, replica.running
        response = rollout.responses[r]
        tokens = response.prompt + response.sampled
        if not _make_room(rollout, k, tokens + n + 1, r):
            break
        dequeue(rollout, r)
        cached_tokens = forget(rollout, r)
        more, more2 = tokens - cached_tokens, tokens * tokens - cached_tokens * cached_tokens
        fill_s = cost[PREFILL] + cost[PREFILL_TOKEN] * more + cost[PREFILL_TOKEN2] * more2
        replica.clock_s += fill_s if response.refill_s < 0 else response.refill_s
        response.refill_s = -1.0
        response.state = RUNNING
        response.ends = replica.steps + response.until - response.sampled
        rollout.batch[k, n] = r
        replica.running = n + 1
        replica.context += tokens
    n = replica.running
    replica.busy_s = max(replica.busy_s, replica.clock_s)
    if n == 0:
        replica.ahead, replica.next_s = 0, np.inf
        return
    first = rollout.responses[rollout.batch[k, 0]].ends
    for j in range(1, n):
        first = min(first, rollout.responses[rollout.batch[k, j]].ends)
    _make_room(rollout, k, n, NONE)
    replica.ahead = min(first - replica.steps, (replica.kv - replica.context - replica.cached) // n)
    replica.next_s = replica.clock_s + decode_s(cost, n, replica.context, replica.ahead)


@compiled
def launch(rollout: Rollout, which: Ints, where: Ints, now_s: float) -> None:
    """Put responses, new or taken off other replicas, into the queues of replicas."""
    touched = np.zeros(rollout.replicas.size, np.bool_)
    for r, k in zip(which, where):  # noqa: B905 (the compiler knows no strict)
        catch_up(rollout.replicas[k], now_s)
        if rollout.responses[r].back_s > now_s:
            set_away(rollout, r, k)
        else:
            enqueue(rollout, r, k, False)
        touched[k] = True
    for k in range(touched.size):
        if touched[k]:
            settle(rollout, k)


@compiled(arrays=False)
def _stop_response(rollout: Rollout, r: int, now_s: float, state: int) -> int:
    """Stop a response that waits, runs or is away; return the replica that has to settle, or NONE."""
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
def stop_responses(rollout: Rollout, which: Ints, now_s: float, state: int) -> None:
    """Stop responses that wait, run or are away; they are in `state` afterwards."""
    touched = np.zeros(rollout.replicas.size, np.bool_)
    for r in which:
        k = _stop_response(rollout, r, now_s, state)
        if k != NONE:
            touched[k] = True
    for k in range(touched.size):
        if touched[k]:
            settle(rollout, k)


@compiled
def move(rollout: Rollout, which: Ints, where: Ints, now_s: float) -> None:
    """Move responses that wait, run or are away to other replicas, where they continue after their tokens."""
    stop_responses(rollout, which, now_s, NEW)
    for r in which:
        rollout.responses[r].end_s = np.inf
    launch(rollout, which, where, now_s)


@compiled(arrays=False)
def observe(rollout: Rollout, now_s: float) -> None:
    """Update the numbers of sampled tokens of the running responses."""
    for k in range(rollout.replicas.size):
        replica = rollout.replicas[k]
        catch_up(replica, now_s)
        for j in range(replica.running):
            response = rollout.responses[rollout.batch[k, j]]
            response.sampled = response.until - (response.ends - replica.steps)


@compiled(arrays=False)
def _finish(rollout: Rollout, k: int, now_s: float) -> None:
    """End the turns of a replica's responses that are through: a response is away, or has finished, and may complete its group."""
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
            set_away(rollout, r, k)
            continue
        response.state = FINISHED
        order[order[-1]] = r
        order[-1] += 1
        group.finished += 1
        if group.finished == group.needed:
            rollout.counts[0] += 1


@compiled
def _abort_group(rollout: Rollout, group: int, now_s: float) -> None:
    """Abort the open responses of a complete group."""
    losers = np.empty(rollout.responses.size, np.int64)
    n = 0
    for r in range(losers.size):
        state = rollout.responses[r].state
        if rollout.responses[r].group == group and state in (RUNNING, WAITING, AWAY):
            losers[n] = r
            n += 1
    stop_responses(rollout, losers[:n], now_s, ABORTED)


@compiled
def _abort_rest(rollout: Rollout, before: int, now_s: float) -> None:
    """Abort the open responses of the groups that became complete after the first `before` responses."""
    for done in range(before, rollout.order[-1]):
        group = rollout.responses[rollout.order[done]].group
        if rollout.groups[group].finished == rollout.groups[group].needed:
            _abort_group(rollout, group, now_s)


@compiled
def run(rollout: Rollout, now_s: float, until_s: float, responses: int, groups: int) -> float:
    """Run until a time, until `responses` have finished or `groups` are complete in total, or until no response runs.

    The other responses of a group that becomes complete are aborted, unless that ends the run: then the caller decides.

    Returns:
        The time then, seconds; `until_s` if it came first.
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
            requeue_returned(rollout, returns, now_s)
            continue
        advance(replica, replica.ahead)
        replica.clock_s = at_s  # to the last bit, in however many parts these steps were simulated
        before, complete, n = order[-1], counts[0], replica.running
        _finish(rollout, k, now_s)
        if replica.running == n and replica.context + n > replica.kv:  # no response has ended its turn: the cache is full
            last = rollout.batch[k, n - 1]
            leave(rollout, last)
            enqueue(rollout, last, k, True)
            counts[1] += 1
        if counts[0] > complete and counts[0] < groups:
            _abort_rest(rollout, before, now_s)
        settle(rollout, k)
    return now_s
