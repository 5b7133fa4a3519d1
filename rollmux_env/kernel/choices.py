"""The choices of a decision in one of many streams, padded to a fixed number.

Choice 0 is the one that is always there: a new group for a job that arrives (`isolated`), no more moves otherwise (`stop`). The
others are rows of the candidate table, or the moves of `rollmux_env.kernel.regroupings`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.candidates import ANY_NODES, FEASIBLE, SLO, enumerate_candidates
from rollmux_env.kernel.compiled import compiled, uncounted
from rollmux_env.kernel.horizons import Stays, present_rates, work_price, write_stays
from rollmux_env.kernel.joining import Terms
from rollmux_env.kernel.regroupings import choose_groups, enumerate_regroupings
from rollmux_env.kernel.rows import PLACE, Space, choice_type, write_stop
from rollmux_env.kernel.stream import Records, Streams
from rollmux_env.kernel.tables import Floats, Ints, Limits


class Rules(NamedTuple):
    """What holds in all streams of an environment.

    Attributes:
        moves: jobs may be moved after admissions and departures. migration_s: their pause, seconds.
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
    """Empty choices of E streams: (E, A) records of `choice_type`; a job's place is the first of a choice's moves."""
    return np.zeros((len(streams.clock), actions), dtype=choice_type(streams.jobs["pins"].shape[2]))


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


@uncounted
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


@uncounted
def _write(choice: Records, job: int, rows: Rows, row: int, usable: bool) -> None:
    choice.kind = PLACE
    choice.n_moves = 1
    choice.job[0] = job
    choice.group[0] = rows.group[row]
    choice.new_nodes[0] = rows.new_nodes[row]
    for k in range(rows.nodes.shape[1]):
        choice.nodes[0, k] = rows.nodes[row, k]
    choice.usd = rows.usd[row]
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
    _write(choices[0], job, rows, n - 1, rows.reason[n - 1] == FEASIBLE)
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
            _write(choices[at], job, rows, row, True)
            at += 1
        elif fits and rows.usd[row] == dearest and ties > 0:
            ties -= 1
            _write(choices[at], job, rows, row, True)
            at += 1
        elif not fits and rest > 0 and rows.new_nodes[row] != ANY_NODES:
            rest -= 1
            _write(choices[at], job, rows, row, False)
            at += 1
    c.choices = at
    c.overflow = 1 if usable > room else 0
    return rows


@uncounted
def write_moves(
    streams: Streams,
    s: int,
    jobs: Records,
    groups: Records,
    limits: Limits,
    rules: Rules,
    stays: Stays,
    space: Space,
    choices: Records,
) -> None:
    """Write `stop` and the moves of running jobs, the greatest gain first.

    Args:
        stays, space: scratch.
    """
    c = streams.clock[s]
    write_stop(choices[0])
    order = streams.order[s, : c.n_groups]
    n = choose_groups(jobs, groups, order, limits, c.now_s, space.looked)
    looked = space.looked[:n]
    write_stays(jobs, groups, looked, c.now_s, rules.known_stays, stays)
    rates = present_rates(jobs, groups, order, limits)
    terms = Terms(rules.migration_s / 3600.0, work_price(rates), c.rollout_nodes, c.training_nodes, rules.shield)
    count, there = enumerate_regroupings(jobs, groups, looked, limits, stays, terms, c.now_s, space, choices)
    c.choices = count + 1
    c.overflow = 1 if there > count else 0
