"""What happens to placements at each instant of a stream, compiled.

A function works on the rows of one of many streams and calls the same functions on them as `rollmux_env.cluster.state` does. The
order of events at an instant is that of `rollmux_env.replay.run`: ends of pauses, departures, the queue, arrivals; moves after the
departures and after each admission.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.membership import attach, departure_s, detach, open_group, settle
from rollmux_env.kernel.stream import (
    ADMIT,
    ARRIVALS,
    CONSOLIDATE,
    INSTANT_S,
    LATER,
    MOVES,
    NEXT,
    OVER,
    QUEUE,
    Records,
    Streams,
)
from rollmux_env.kernel.tables import Ints, Limits


@uncounted
def next_question(
    streams: Streams, s: int, jobs: Records, groups: Records, limits: Limits, moves: bool, decay: float, until_s: float
) -> int:
    """Let a stream run until something is to be decided.

    Args:
        jobs, groups: the stream's own.
        moves: whether jobs may be moved after departures; after an admission it is `look_for_moves` that says so.
        decay: dollars count exp(-decay * hours since the last decision) times.
        until_s: go no further than this time.

    Returns:
        ADMIT: the job in row `clock.admitted` wants a place. CONSOLIDATE: jobs may be moved. OVER: all have left. LATER: the next
        event is after `until_s`.
    """
    c = streams.clock[s]
    while True:
        if c.stage == NEXT:
            if c.departed == c.n_jobs:
                return OVER
            now = jobs.arrival_s[c.taken] if c.taken < c.n_jobs else np.inf
            for k in range(c.n_groups):
                now = min(now, groups.departs_s[streams.order[s, k]])
            for k in range(c.n_held):
                now = min(now, streams.held[s, k].until_s)
            if now == np.inf:
                return OVER  # jobs wait for ever: the first asks for more than the cluster has
            if now > until_s:
                return LATER
            pass_time(streams, s, limits, max(now, c.now_s), decay)
            resumed = _resume(streams, s)
            left = _depart(streams, s, jobs, groups)
            c.served = 1 if resumed or left else 0
            c.stage = QUEUE
            if left and moves:
                look_for_moves(streams, s)
        elif c.stage == MOVES:
            return CONSOLIDATE
        elif c.stage == QUEUE:
            if c.served == 1 and c.admitted < c.taken:
                return ADMIT
            c.stage = ARRIVALS
        elif c.taken < c.n_jobs and jobs.arrival_s[c.taken] <= c.now_s + INSTANT_S:
            c.taken += 1
            if c.taken - c.admitted == 1:
                return ADMIT
        else:
            c.stage = NEXT


@uncounted
def look_for_moves(streams: Streams, s: int) -> None:
    """The grouping has changed: before anything else, jobs may be moved."""
    c = streams.clock[s]
    c.after = c.stage
    c.stage = MOVES


@uncounted
def pass_on(streams: Streams, s: int) -> None:
    """Answer a question with nothing: no more moves, or the job waits and all behind it."""
    c = streams.clock[s]
    if c.stage == MOVES:
        c.stage = c.after
    elif c.stage == QUEUE:
        c.stage = ARRIVALS


@uncounted
def pass_time(streams: Streams, s: int, limits: Limits, now_s: float, decay: float) -> None:
    """Move the clock on, and pay for what is provisioned."""
    c = streams.clock[s]
    usd_per_hour = c.rollout_nodes * limits.rollout_usd + c.training_nodes * limits.training_usd
    hours = (now_s - c.now_s) / 3600.0
    c.usd += usd_per_hour * hours
    if decay > 0.0:
        after = np.exp(-decay * c.hours)
        c.spent_usd += usd_per_hour * after * -np.expm1(-decay * hours) / decay
    else:
        c.spent_usd += usd_per_hour * hours
    c.hours += hours
    c.now_s = now_s


@uncounted
def admit(streams: Streams, s: int, jobs: Records, groups: Records, job: int, group: int, nodes: Ints, new_nodes: int) -> None:
    """Place the waiting job that was asked about.

    Args:
        group: row of the group that it joins, NEW_GROUP for a new one.
        nodes: numbers of the group's rollout nodes that it is pinned to, ascending; what follows a negative one does not count.
        new_nodes: rollout nodes to add.
    """
    c = streams.clock[s]
    c.admitted += 1
    if group >= 0 and new_nodes == 0:
        c.packed += 1
    elif group >= 0:
        c.scaled += 1
    jobs.admitted_s[job] = c.now_s
    jobs.leaves_s[job] = c.now_s + jobs.duration_s[job]
    _enter(streams, s, jobs, groups, job, group, nodes, new_nodes)


@uncounted
def move(
    streams: Streams,
    s: int,
    jobs: Records,
    groups: Records,
    job: int,
    group: int,
    nodes: Ints,
    new_nodes: int,
    migration_s: float,
) -> None:
    """Move a running job; arguments as in `admit`. It pauses for `migration_s`; so long the nodes that it leaves are paid for."""
    c = streams.clock[s]
    c.moved += 1
    home = jobs.group[job]
    settle(jobs, groups, home, c.now_s)
    held = streams.held[s, c.n_held]
    c.n_held += 1
    held.rollout_nodes = detach(jobs, groups, job)
    held.training_nodes = 0
    if groups.n_members[home] == 0:
        _close(streams, s, home)
        held.training_nodes = groups.training_nodes[home]
    held.until_s = c.now_s + migration_s
    held.job = job
    jobs.paused_until_s[job] = c.now_s + migration_s
    jobs.leaves_s[job] += migration_s
    _enter(streams, s, jobs, groups, job, group, nodes, new_nodes)


@uncounted
def _resume(streams: Streams, s: int) -> bool:
    """End the pauses that are over; whether there was one."""
    c = streams.clock[s]
    held = streams.held[s]
    kept = 0
    n = c.n_held
    for k in range(n):
        if held.until_s[k] <= c.now_s + INSTANT_S:
            c.rollout_nodes -= held.rollout_nodes[k]
            c.training_nodes -= held.training_nodes[k]
        else:
            held[kept] = held[k]
            kept += 1
    c.n_held = kept
    return bool(kept < n)


@compiled
def _depart(streams: Streams, s: int, jobs: Records, groups: Records) -> bool:
    """Let the jobs go whose stay is over; whether there was one."""
    c = streams.clock[s]
    until_s = c.now_s + INSTANT_S
    left = False
    at = 0
    while at < c.n_groups:
        group = streams.order[s, at]
        at += 1
        if groups.departs_s[group] > until_s:
            continue
        leaving = np.empty(groups.n_members[group], np.int64)
        n = 0
        for i in range(groups.n_members[group]):  # who leaves is read before the first one has left
            if departure_s(jobs, groups, groups.members[group, i]) <= until_s:
                leaving[n] = groups.members[group, i]
                n += 1
        settle(jobs, groups, group, c.now_s)
        for i in range(n):
            job = leaving[i]
            if np.isfinite(jobs.iterations[job]):
                jobs.done[job] = jobs.iterations[job]
            work_h = jobs.done[job] * jobs.solo_s[job] / 3600.0
            c.work_h += work_h
            c.left_work_h += work_h
            c.left += 1
            if c.now_s - jobs.admitted_s[job] > jobs.done[job] * jobs.limit_s[job] * (1.0 + 1e-6):
                c.broken += 1
                c.left_broken += 1
            c.rollout_nodes -= detach(jobs, groups, job)
            c.departed += 1
            left = True
        if groups.n_members[group] == 0:
            c.training_nodes -= groups.training_nodes[group]
            _close(streams, s, group)
            at -= 1
    return left


@uncounted
def _close(streams: Streams, s: int, group: int) -> None:
    """Take an empty group out of the order and keep its row for another."""
    c = streams.clock[s]
    kept = 0
    for k in range(c.n_groups):
        if streams.order[s, k] != group:
            streams.order[s, kept] = streams.order[s, k]
            kept += 1
    c.n_groups = kept
    streams.spare[s, streams.spare.shape[1] - 1 - kept] = group


@uncounted
def _enter(streams: Streams, s: int, jobs: Records, groups: Records, job: int, group: int, nodes: Ints, new_nodes: int) -> None:
    c = streams.clock[s]
    if group < 0:
        group = streams.spare[s, streams.spare.shape[1] - 1 - c.n_groups]
        open_group(groups, group, c.groups_made, jobs.training_nodes[job], c.now_s)
        streams.order[s, c.n_groups] = group
        c.n_groups += 1
        c.groups_made += 1
        c.training_nodes += jobs.training_nodes[job]
    settle(jobs, groups, group, c.now_s)
    n = 0
    while n < nodes.shape[0] and nodes[n] >= 0:
        n += 1
    attach(jobs, groups, job, group, nodes[:n], new_nodes)
    c.rollout_nodes += new_nodes
