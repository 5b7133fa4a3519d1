"""Many streams of jobs side by side: the clock, and what happens to placements at each instant, compiled.

One stream is a scenario's jobs on a cluster of its own. Every table has a leading axis of E streams; a function works on the rows
of one stream and calls the same functions on them as `rollmux_env.cluster.state` does. The order of events at an instant is that of
`rollmux_env.replay.run`: ends of pauses, departures, the queue, arrivals; moves after the departures and after each admission.

The columns are those of `JobTable` and `GroupTable`, here fields of records: `jobs.done[job]` means the same, and a table is one
array to pass, not twenty, which is what calls of compiled functions cost most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import attach, departure_s, detach, open_group, settle
from rollmux_env.kernel.tables import NOWHERE, GroupTable, Ints, JobTable, Limits, group_table, job_table

Records = Any  # a structured array, which stands for a table in compiled code

INSTANT_S = 1e-6  # times this close are one instant
NEW_GROUP = -1

ADMIT, CONSOLIDATE, OVER, LATER = range(4)  # what comes up: a waiting job, a chance to move jobs, nothing any more, nothing yet

_NEXT, _MOVES, _QUEUE, _ARRIVALS = range(4)  # where in an instant a stream is

CLOCK = np.dtype(
    [
        ("now_s", "f8"),  # the stream's only clock
        ("usd", "f8"),  # spent so far
        ("work_h", "f8"),  # iterations done times T_solo of the jobs that have left
        ("spent_usd", "f8"),  # since the last decision, as all that follows down to `invalid`; discounted from there on
        ("hours", "f8"),
        ("left_work_h", "f8"),  # work of the jobs that left
        ("left", "i8"),  # jobs that left
        ("left_broken", "i8"),  # those of them with a slowdown above their SLO
        ("invalid", "i8"),  # 1 where the last choice was masked
        ("n_jobs", "i8"),
        ("taken", "i8"),  # jobs that have arrived; rows are in order of arrival
        ("admitted", "i8"),  # jobs that have been placed: the queue is rows admitted to taken
        ("departed", "i8"),
        ("broken", "i8"),  # jobs that left with a slowdown above their SLO
        ("moved", "i8"),  # moves of running jobs
        ("packed", "i8"),  # admissions by strategy
        ("scaled", "i8"),
        ("rollout_nodes", "i8"),  # provisioned now, those held for moves included
        ("training_nodes", "i8"),
        ("n_groups", "i8"),
        ("groups_made", "i8"),
        ("n_held", "i8"),
        ("served", "i8"),  # 1 where the queue is to be served in this instant
        ("stage", "i8"),
        ("after", "i8"),  # the stage that follows when no more jobs are moved
        ("asks", "i8"),  # what is to be decided
        ("choices", "i8"),  # how many there are
        ("overflow", "i8"),  # 1 where choices that could be made were left out
    ]
)


HELD = np.dtype([("until_s", "f8"), ("job", "i8"), ("rollout_nodes", "i8"), ("training_nodes", "i8")])


class Streams(NamedTuple):
    """E streams of at most J jobs.

    Attributes:
        jobs: (E, J) records with the columns of `JobTable`, `arrival_s` and `duration_s` (fixed stay, or infinite), in order of
            arrival. groups: (E, G) records with the columns of `GroupTable`.
        order: (E, G) rows of the present groups in order of creation. spare: (E, G) rows not in use, taken from the end.
        held: (E, J) of `HELD`: nodes that a moved job has left, until its pause ends.
        clock: (E,) of `CLOCK`.
    """

    jobs: Records
    groups: Records
    order: Ints
    spare: Ints
    held: Records
    clock: Records


def stream_table(streams: int, jobs: int, members: int, nodes: int, steps: int) -> Streams:
    """Empty tables.

    Args:
        streams, jobs: E and J. members: most jobs in a group. nodes: most rollout nodes of a job. steps: rescaling steps of a job.
            Each of the last three is taken up to 5, 4 and 2 at least, and above to a power of two: the widths are part of the
            records' type, so most environments share one compiled kernel.
    """
    return Streams(
        jobs=job_records((streams, jobs), nodes, steps),
        groups=group_records((streams, jobs), min(members, jobs), nodes),
        order=np.zeros((streams, jobs), dtype=np.int64),
        spare=np.zeros((streams, jobs), dtype=np.int64),
        held=np.zeros((streams, jobs), dtype=HELD),
        clock=np.zeros(streams, dtype=CLOCK),
    )


def job_records(shape: tuple[int, ...], nodes: int, steps: int) -> Records:
    """Empty records of jobs with at most so many rollout nodes and rescaling steps.

    The widths are part of the records' type: they are taken up to 4 and 2 at least, and above to a power of two, so that most
    environments share one compiled kernel.
    """
    table = job_table(1, _round_up(nodes, 4), _round_up(steps, 2))
    return records_like(table, shape, [("arrival_s", "f8"), ("duration_s", "f8")])


def group_records(shape: tuple[int, ...], members: int, nodes: int) -> Records:
    """Empty records of groups of at most so many jobs with so many rollout nodes each; one more has room halfway through a swap."""
    members = _round_up(members + 1, 6)
    return records_like(group_table(1, members, members * _round_up(nodes, 4)), shape)


def _round_up(n: int, least: int) -> int:
    return least if n <= least else 1 << (n - 1).bit_length()


def records_like(table: JobTable | GroupTable, shape: tuple[int, ...], more: Sequence[tuple[str, str]] = ()) -> Records:
    """Records with the columns of a table of one row, filled with that row."""
    columns = table._asdict()
    fields: list[Any] = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
    records = np.zeros(shape, dtype=np.dtype([*fields, *more]))
    for name, column in columns.items():
        records[name] = column[0]
    return records


@compiled
def begin(streams: Streams, s: int, n_jobs: int) -> None:
    """Start a stream whose first `n_jobs` job rows have been written: nothing has happened yet."""
    jobs = streams.jobs[s]
    for j in range(n_jobs):
        jobs.group[j] = NOWHERE
        jobs.n_pins[j] = 0
        jobs.done[j] = 0.0
        jobs.rollout_busy_s[j] = 0.0
        jobs.training_busy_s[j] = 0.0
        jobs.admitted_s[j] = 0.0
        jobs.paused_until_s[j] = 0.0
        jobs.leaves_s[j] = np.inf
    size = streams.spare.shape[1]
    for k in range(size):
        streams.spare[s, k] = size - 1 - k
    c = streams.clock[s]
    c.now_s = jobs.arrival_s[0]
    c.usd = c.work_h = 0.0
    begin_interval(streams, s)
    c.n_jobs = n_jobs
    c.taken = c.admitted = c.departed = c.broken = c.moved = c.packed = c.scaled = 0
    c.rollout_nodes = c.training_nodes = c.n_groups = c.groups_made = c.n_held = c.served = c.asks = c.choices = c.overflow = 0
    c.stage = _NEXT


@compiled
def begin_interval(streams: Streams, s: int) -> None:
    """A decision has been made: what is counted since the last one starts anew."""
    c = streams.clock[s]
    c.spent_usd = c.hours = c.left_work_h = 0.0
    c.left = c.left_broken = c.invalid = 0


@compiled
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
        if c.stage == _NEXT:
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
            c.stage = _QUEUE
            if left and moves:
                look_for_moves(streams, s)
        elif c.stage == _MOVES:
            return CONSOLIDATE
        elif c.stage == _QUEUE:
            if c.served == 1 and c.admitted < c.taken:
                return ADMIT
            c.stage = _ARRIVALS
        elif c.taken < c.n_jobs and jobs.arrival_s[c.taken] <= c.now_s + INSTANT_S:
            c.taken += 1
            if c.taken - c.admitted == 1:
                return ADMIT
        else:
            c.stage = _NEXT


@compiled
def look_for_moves(streams: Streams, s: int) -> None:
    """The grouping has changed: before anything else, jobs may be moved."""
    c = streams.clock[s]
    c.after = c.stage
    c.stage = _MOVES


@compiled
def pass_on(streams: Streams, s: int) -> None:
    """Answer a question with nothing: no more moves, or the job waits and all behind it."""
    c = streams.clock[s]
    if c.stage == _MOVES:
        c.stage = c.after
    elif c.stage == _QUEUE:
        c.stage = _ARRIVALS


@compiled
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


@compiled
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


@compiled
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


@compiled
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


@compiled
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


@compiled
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
