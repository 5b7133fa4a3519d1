"""The choices of a decision in one of many streams, padded to a fixed number.

Choice 0 is the one that is always there: a new group for a job that arrives (`isolated`), no more moves otherwise (`stop`). The
others are rows of the candidate table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import ANY_NODES, FEASIBLE, SLO, enumerate_candidates
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.membership import may_pause, node_positions
from rollmux_env.kernel.stream import NEW_GROUP, NO_JOB, Records, Streams, is_paused
from rollmux_env.kernel.tables import Floats, Ints, Limits


class Rules(NamedTuple):
    """What holds in all streams of an environment.

    Attributes:
        moves: jobs may be moved after departures. migration_s: their pause, seconds.
        shield: choices that break an SLO are masked.
        known_stays: it is observed when jobs leave.
        decay: dollars count exp(-decay * hours since the last decision) times.
    """

    moves: bool
    migration_s: float
    shield: bool
    known_stays: bool
    decay: float


class Rows(NamedTuple):
    """Columns that `enumerate_candidates` writes."""

    group: Ints
    new_nodes: Ints
    nodes: Ints
    usd: Floats
    period_s: Floats
    reason: Ints


def choice_table(streams: Streams, actions: int) -> Records:
    """Empty choices of E streams: (E, A) records.

    job: row of the job that is placed or moved. group: row of its group, NEW_GROUP for a new one. new_nodes: rollout nodes to add.
    nodes: (N,) numbers of the group's nodes, padded with -1. usd: what it adds, $/h; saving: what a move frees after its pause,
    $/h. period_s: of the group with the job. feasible: 1 where it breaks nothing; allowed: 1 where it may be chosen.
    """
    ints = ("job", "group", "new_nodes", "feasible", "allowed")
    floats = ("usd", "saving", "period_s")
    fields = [*((name, "i8") for name in ints), *((name, "f8") for name in floats), ("nodes", "i8", streams.jobs["pins"].shape[2:])]
    return np.zeros((len(streams.clock), actions), dtype=np.dtype(fields))


@compiled
def make_rows(size: int, nodes: int) -> Rows:
    """Scratch for that many candidates of a job with at most so many rollout nodes."""
    return Rows(
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty((size, nodes), np.int64),
        np.empty(size),
        np.empty(size),
        np.empty(size, np.int64),
    )


@compiled
def enumerate_rows(
    streams: Streams, s: int, jobs: Records, groups: Records, limits: Limits, job: int, cheapest: bool, prune: bool, rows: Rows
) -> int:
    """Enumerate the candidates of a job of one stream; the last two flags as in `enumerate_candidates`."""
    c = streams.clock[s]
    return int(
        enumerate_candidates(
            jobs,
            groups,
            streams.order[s, : c.n_groups],
            limits,
            c.rollout_nodes,
            c.training_nodes,
            job,
            cheapest,
            prune,
            rows.group,
            rows.new_nodes,
            rows.nodes,
            rows.usd,
            rows.period_s,
            rows.reason,
        )
    )


@compiled
def _write(choice: Records, job: int, rows: Rows, row: int, saving: float, usable: bool) -> None:
    choice.job = job
    choice.group = rows.group[row]
    choice.new_nodes = rows.new_nodes[row]
    for k in range(rows.nodes.shape[1]):
        choice.nodes[k] = rows.nodes[row, k]
    choice.usd = rows.usd[row]
    choice.saving = saving
    choice.period_s = rows.period_s[row]
    choice.feasible = 1 if rows.reason[row] == FEASIBLE else 0
    choice.allowed = 1 if usable else 0


@compiled
def write_places(
    streams: Streams, s: int, jobs: Records, groups: Records, limits: Limits, rules: Rules, rows: Rows, choices: Records
) -> Rows:
    """Write the choices of a waiting job; returns the scratch, made larger where it was too small."""
    c = streams.clock[s]
    job = c.admitted
    n = enumerate_rows(streams, s, jobs, groups, limits, job, False, False, rows)
    if n > rows.group.shape[0]:
        rows = make_rows(2 * n, rows.nodes.shape[1])
        enumerate_rows(streams, s, jobs, groups, limits, job, False, False, rows)
    room = choices.shape[0] - 1
    _write(choices[0], job, rows, n - 1, 0.0, rows.reason[n - 1] == FEASIBLE)
    usable = 0
    rest = 0
    for row in range(n - 1):
        if rows.reason[row] == FEASIBLE or (rows.reason[row] == SLO and not rules.shield):
            usable += 1
        elif rows.new_nodes[row] != ANY_NODES:
            rest += 1
    dearest = np.inf  # what a usable row may cost, and how many may cost as much
    ties = usable
    if usable > room:
        costs = np.empty(usable)
        k = 0
        for row in range(n - 1):
            if rows.reason[row] == FEASIBLE or (rows.reason[row] == SLO and not rules.shield):
                costs[k] = rows.usd[row]
                k += 1
        costs.sort()
        dearest = costs[room - 1] if room > 0 else -1.0
        ties = 0
        for k in range(room):
            if costs[k] == dearest:
                ties += 1
    rest = max(0, min(rest, room - usable))
    at = 1
    for row in range(n - 1):
        fits = rows.reason[row] == FEASIBLE or (rows.reason[row] == SLO and not rules.shield)
        if fits and rows.usd[row] < dearest:
            _write(choices[at], job, rows, row, 0.0, True)
            at += 1
        elif fits and rows.usd[row] == dearest and ties > 0:
            ties -= 1
            _write(choices[at], job, rows, row, 0.0, True)
            at += 1
        elif not fits and rest > 0 and rows.new_nodes[row] != ANY_NODES:
            rest -= 1
            _write(choices[at], job, rows, row, 0.0, False)
            at += 1
    c.choices = at
    c.overflow = 1 if usable > room else 0
    return rows


@compiled
def _saving(jobs: Records, groups: Records, limits: Limits, job: int) -> float:
    """$/h of the nodes that a running job would leave without any member."""
    group = jobs.group[job]
    n = groups.n_members[group]
    n_nodes = groups.n_nodes[group]
    if n == 1:
        return float(n_nodes * limits.rollout_usd + groups.training_nodes[group] * limits.training_usd)
    own = np.empty(n_nodes, np.int64)
    others = np.zeros(n_nodes, np.int64)
    pinned = np.empty(n_nodes, np.int64)
    node_positions(jobs, groups, job, group, own)
    for i in range(n):
        if groups.members[group, i] != job:
            node_positions(jobs, groups, groups.members[group, i], group, pinned)
            others |= pinned
    freed = 0
    for v in range(n_nodes):
        if own[v] == 1 and others[v] == 0:
            freed += 1
    return float(freed * limits.rollout_usd)


@compiled
def write_moves(
    streams: Streams, s: int, jobs: Records, groups: Records, limits: Limits, rules: Rules, rows: Rows, choices: Records
) -> Rows:
    """Write the moves of running jobs, the cheapest first; returns the scratch as `write_places` does."""
    c = streams.clock[s]
    room = choices.shape[0] - 1
    stop = choices[0]
    stop.job = NO_JOB
    stop.group = NEW_GROUP
    stop.new_nodes = 0
    stop.usd = stop.saving = stop.period_s = 0.0
    stop.feasible = stop.allowed = 1
    count = 0
    left_out = False
    for k in range(c.n_groups):
        home = streams.order[s, k]
        for i in range(groups.n_members[home]):
            job = groups.members[home, i]
            ran_s = max(0.0, c.now_s - max(groups.since_s[home], jobs.paused_until_s[job]))
            done = jobs.done[job] + ran_s / groups.period_s[home]
            stayed_s = c.now_s - jobs.admitted_s[job]
            if not may_pause(stayed_s, rules.migration_s, jobs.limit_s[job], done) or is_paused(streams, s, job):
                continue
            n = enumerate_rows(streams, s, jobs, groups, limits, job, False, False, rows)
            if n > rows.group.shape[0]:
                rows = make_rows(2 * n, rows.nodes.shape[1])
                enumerate_rows(streams, s, jobs, groups, limits, job, False, False, rows)
            saving = _saving(jobs, groups, limits, job)
            for row in range(n):
                if rows.reason[row] != FEASIBLE and (rows.reason[row] != SLO or rules.shield):
                    continue
                usd = rows.usd[row] - saving
                if count == room:
                    left_out = True
                    if usd >= choices.usd[room] - choices.saving[room]:
                        continue
                    count -= 1
                at = count + 1
                while at > 1 and choices.usd[at - 1] - choices.saving[at - 1] > usd:
                    choices[at] = choices[at - 1]
                    at -= 1
                _write(choices[at], job, rows, row, saving, True)
                count += 1
    c.choices = count + 1
    c.overflow = 1 if left_out else 0
    return rows
