"""The dynamics of placements at each instant of a stream, compiled.

The functions work on the rows of one of many streams, and call the same kernel functions as `rollmux_env.cluster.state`. The order
of events in an instant is that of `rollmux_env.replay.run`: ends of pauses, departures, queue, arrivals. Moves come after the
departures and after each admission.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.envs.placement.types import (
    ADMIT,
    ARRIVALS,
    CONSOLIDATE,
    INSTANT_S,
    LATER,
    MOVES,
    NEXT,
    OVER,
    QUEUE,
    Rules,
    Streams,
)
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import departure_s, set_shape, settle
from rollmux_env.kernel.pools import provisioned_usd
from rollmux_env.kernel.tables import Records
from rollmux_env.kernel.transitions import begin_pause, begin_stay, end_stay, enter, leave, provide, start_group


@compiled(arrays=False)
def next_question(streams: Streams, s: int, rules: Rules, moves: bool, until_s: float) -> int:
    """Run a stream until there is a decision.

    Args:
        streams: All streams.
        s: Number of the stream.
        rules: Rules of the environment.
        moves: Whether jobs may be moved after departures. After an admission `request_moves` decides this.
        until_s: Time at which to stop, seconds.

    Returns:
        ADMIT if the job in row `clock.admitted` needs a placement, CONSOLIDATE if jobs may be moved, OVER if all jobs have left, or
        LATER if the next event is after `until_s`.
    """
    jobs, c = streams.jobs[s], streams.clock[s]
    while True:
        if c.stage == NEXT:
            if c.departed == c.n_jobs:
                return OVER
            now = _next_event_s(streams, s)
            if now == np.inf:
                return OVER  # the waiting jobs can never run: the first one asks for more than the cluster has
            if now > until_s:
                return LATER
            advance_clock(streams, s, rules, max(now, c.now_s))
            _begin_instant(streams, s, moves)
        elif c.stage == MOVES:
            return CONSOLIDATE
        elif c.stage == QUEUE:
            if c.served == 1 and c.admitted < c.taken:
                return ADMIT
            c.stage = ARRIVALS
        elif c.taken < c.n_jobs and jobs[c.taken].arrival_s <= c.now_s + INSTANT_S:
            c.taken += 1
            if c.taken - c.admitted == 1:
                return ADMIT
        else:
            c.stage = NEXT


@compiled(arrays=False)
def _next_event_s(streams: Streams, s: int) -> float:
    """Return the time of the next arrival, departure or end of a pause, in seconds, or infinity if there is none."""
    groups, c = streams.groups[s], streams.clock[s]
    now = streams.jobs[s, c.taken].arrival_s if c.taken < c.n_jobs else np.inf
    for k in range(c.n_groups):
        now = min(now, groups[streams.order[s, k]].departs_s)
    for k in range(c.n_reservations):
        now = min(now, streams.reservations[s, k].until_s)
    return now


@compiled(arrays=False)
def _begin_instant(streams: Streams, s: int, moves: bool) -> None:
    """End pauses and let jobs depart. If nodes became free, the queue is served next, after any moves."""
    c = streams.clock[s]
    resumed = _resume(streams, s)
    left = _depart(streams, s, streams.jobs[s], streams.groups[s])
    c.served = 1 if resumed or left else 0
    c.stage = QUEUE
    if left and moves:
        request_moves(streams, s)


@compiled(arrays=False)
def request_moves(streams: Streams, s: int) -> None:
    """Make the next decision one about moves, since the grouping has changed."""
    c = streams.clock[s]
    c.after = c.stage
    c.stage = MOVES


@compiled(arrays=False)
def defer(streams: Streams, s: int) -> None:
    """Decide nothing: no more moves, or the job waits and all jobs behind it."""
    c = streams.clock[s]
    if c.stage == MOVES:
        c.stage = c.after
    elif c.stage == QUEUE:
        c.stage = ARRIVALS


@compiled(arrays=False)
def advance_clock(streams: Streams, s: int, rules: Rules, now_s: float) -> None:
    """Advance the clock, and charge for the provisioned nodes."""
    c = streams.clock[s]
    usd_per_hour = provisioned_usd(streams.nodes[s], rules.limits)
    decay = rules.decay
    hours = (now_s - c.now_s) / 3600.0
    c.usd += usd_per_hour * hours
    if decay > 0.0:
        after = np.exp(-decay * c.hours)
        c.spent_usd += usd_per_hour * after * -np.expm1(-decay * hours) / decay
    else:
        c.spent_usd += usd_per_hour * hours
    c.hours += hours
    c.now_s = now_s


@compiled(arrays=False)
def admit(streams: Streams, s: int, job: int, shape: int, group: int, kept_nodes: int, new_nodes: int) -> None:
    """Place the waiting job of the current decision.

    Args:
        streams: All streams.
        s: Number of the stream.
        job: Row of the job.
        shape: Number of the shape that the job gets.
        group: Row of the group that it joins, negative for a new one.
        kept_nodes: Number of the group's existing rollout nodes to which it is pinned. Their numbers are in its `pins`, ascending.
        new_nodes: Number of rollout nodes to add.
    """
    c = streams.clock[s]
    c.admitted += 1
    if group >= 0 and new_nodes == 0:
        c.packed += 1
    elif group >= 0:
        c.scaled += 1
    begin_stay(streams.jobs[s], job, c.now_s)
    set_shape(streams.jobs[s], job, shape)
    _enter(streams, s, job, group, kept_nodes, new_nodes)


@compiled(arrays=False)
def move(streams: Streams, s: int, job: int, shape: int, group: int, kept_nodes: int, new_nodes: int, migration_s: float) -> None:
    """Move a running job to another group or shape, with the arguments of `admit`.

    The job pauses for `migration_s` seconds, during which the nodes that it leaves are paid for.
    """
    jobs, groups = streams.jobs[s], streams.groups[s]
    c = streams.clock[s]
    c.moved += 1
    home = jobs[job].group
    settle(jobs, groups, home, c.now_s)
    reservation = streams.reservations[s, c.n_reservations]
    c.n_reservations += 1
    reservation.rollout_pool, reservation.training_pool = groups[home].rollout_pool, groups[home].training_pool
    reservation.rollout_nodes, reservation.training_nodes = leave(jobs, groups, job, 0, False)
    if groups[home].n_members == 0:
        _close(streams, s, home)
    reservation.until_s = c.now_s + migration_s
    reservation.job = job
    begin_pause(jobs, job, c.now_s, migration_s)
    set_shape(jobs, job, shape)
    _enter(streams, s, job, group, kept_nodes, new_nodes)


@compiled(arrays=False)
def _resume(streams: Streams, s: int) -> bool:
    """End the pauses that are over. Return whether there were any."""
    c = streams.clock[s]
    reservations = streams.reservations[s]
    count = 0
    n = c.n_reservations
    for k in range(n):
        if reservations.until_s[k] <= c.now_s + INSTANT_S:
            ended = reservations[k]
            provide(streams.nodes[s], ended, -ended.rollout_nodes, -ended.training_nodes)
        else:
            reservations[count] = reservations[k]
            count += 1
    c.n_reservations = count
    return bool(count < n)


@compiled
def _depart(streams: Streams, s: int, jobs: Records, groups: Records) -> bool:
    """Remove the jobs whose stay is over. Return whether there were any."""
    c = streams.clock[s]
    until_s = c.now_s + INSTANT_S
    left = False
    at = 0
    while at < c.n_groups:
        group = streams.order[s, at]
        at += 1
        if groups[group].departs_s > until_s:
            continue
        leaving = np.empty(groups[group].n_members, np.int64)
        n = 0
        for i in range(groups[group].n_members):  # find all leaving members before the first one leaves
            if departure_s(jobs, groups, groups[group].members[i]) <= until_s:
                leaving[n] = groups[group].members[i]
                n += 1
        settle(jobs, groups, group, c.now_s)
        for i in range(n):
            job = leaving[i]
            end_stay(jobs, job)
            work_h = jobs[job].done * jobs[job].solo_s / 3600.0
            c.work_h += work_h
            c.left_work_h += work_h
            c.left += 1
            if c.now_s - jobs[job].admitted_s > jobs[job].done * jobs[job].limit_s * (1.0 + 1e-6):
                c.broken += 1
                c.left_broken += 1
            rollout, training = leave(jobs, groups, job, 0, False)
            provide(streams.nodes[s], groups[group], -rollout, -training)
            c.departed += 1
            left = True
        if groups[group].n_members == 0:
            _close(streams, s, group)
            at -= 1
    return left


@compiled(arrays=False)
def _close(streams: Streams, s: int, group: int) -> None:
    """Remove an empty group from the order, and make its row available."""
    c = streams.clock[s]
    count = 0
    for k in range(c.n_groups):
        if streams.order[s, k] != group:
            streams.order[s, count] = streams.order[s, k]
            count += 1
    c.n_groups = count
    streams.spare[s, streams.spare.shape[1] - 1 - count] = group


@compiled(arrays=False)
def _enter(streams: Streams, s: int, job: int, group: int, kept_nodes: int, new_nodes: int) -> None:
    jobs, groups = streams.jobs[s], streams.groups[s]
    c = streams.clock[s]
    if group < 0:
        group = streams.spare[s, streams.spare.shape[1] - 1 - c.n_groups]
        start_group(groups, streams.nodes[s], group, c.groups_made, jobs[job], jobs[job].training_nodes, c.now_s)
        streams.order[s, c.n_groups] = group
        c.n_groups += 1
        c.groups_made += 1
    settle(jobs, groups, group, c.now_s)
    enter(jobs, groups, streams.nodes[s], job, group, kept_nodes, new_nodes)
