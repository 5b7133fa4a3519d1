"""The weights of jobs, the work done and left in seconds of T_solo, and what departures teach about that."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import NOWHERE, Floats, Ints

MIN_LEFT_S = 60.0  # a job has at least this much left
MIN_DEPARTED = 20  # number of departed jobs from which their lengths are used
SPANS_H = np.array([2.0**k for k in range(-1, 9)])  # 0.5, 1, 2, ..., 256: spans of the Gittins index


def iterations_done(state: State, rows: Ints) -> Floats:
    """Return `State.iterations_done` of each job, shape (n,)."""
    jobs, groups = state.tables.job_records, state.tables.group_records
    done = jobs["done"][rows]
    if state.observed:
        return np.asarray(done)
    group = jobs["group"][rows]
    runs = (group != NOWHERE).nonzero()[0]
    if runs.size:
        place = group[runs]
        ran_s = np.maximum(0.0, state.now_s - np.maximum(groups["settled_s"][place], jobs["paused_until_s"][rows[runs]]))
        done[runs] += ran_s / groups["period_s"][place]
    return np.asarray(done)


def done_s(state: State, rows: Ints) -> Floats:
    """Return the work that jobs have done since they first arrived, shape (n,)."""
    earlier = state.charges.earlier_iterations(rows.tolist())
    return np.asarray((iterations_done(state, rows) + earlier) * state.tables.job_records["solo_s"][rows])


def weights(state: State, rows: Ints) -> Floats:
    """Return the weight of each job, shape (n,)."""
    return np.asarray(state.tables.weights[rows])


def left_s(state: State, rows: Ints) -> Floats:
    """Return the work that jobs have left, at least `MIN_LEFT_S`; of a job with a fixed stay the rest of it, shape (n,)."""
    jobs = state.tables.job_records
    left = (jobs["iterations"][rows] - iterations_done(state, rows)) * jobs["solo_s"][rows]
    fixed = np.isinf(left).nonzero()[0]
    if fixed.size:
        own = rows[fixed]
        waits = jobs["group"][own] == NOWHERE
        left[fixed] = np.where(waits, jobs["duration_s"][own], jobs["leaves_s"][own] - state.now_s)
    return np.asarray(np.maximum(MIN_LEFT_S, left))


def learned_h(state: State, rows: Ints) -> Floats | None:
    """Return the inverse of the Gittins index of each job in hours of T_solo, shape (n,): the time left, as departures teach it.

    The index of a job that has done the work a is the largest ratio, over spans d of 0.5 to 256 h, of the chance that it is done
    within d to the mean time that it takes of d. Lengths are those of the last `KEPT` departed jobs of its class, or of all classes
    while fewer than `MIN_DEPARTED` of it have departed. A job that is longer than all of these has as much left as it has done.

    Args:
        state: State of the cluster.
        rows: Rows of the jobs, shape (n,).

    Returns:
        Hours, or None while fewer than `MIN_DEPARTED` jobs have departed.
    """
    stays = state.stays
    if len(stays.lengths_h) < MIN_DEPARTED:
        return None
    done_h, index = done_s(state, rows) / 3600, np.zeros(rows.size)
    names = np.array([state.tables.models[row].class_name for row in rows.tolist()], dtype=object)
    for name in set(names.tolist()):
        own = names == name
        of_class = stays.lengths_of_class_h.get(name, {})
        lengths = of_class if len(of_class) >= MIN_DEPARTED else stays.lengths_h
        index[own] = _left_h(np.sort(np.fromiter(lengths.values(), float, len(lengths))), done_h[own])
    return index


def _left_h(lengths_h: Floats, done_h: Floats) -> Floats:
    """Return the inverse of the Gittins index for each amount of work done, from ascending lengths."""
    sums = np.append(0.0, np.cumsum(lengths_h))
    longer_from = np.searchsorted(lengths_h, done_h, side="right")
    until = np.searchsorted(lengths_h, done_h[:, None] + SPANS_H, side="right")
    ended = until - longer_from[:, None]  # jobs that are done within each span
    beyond = lengths_h.size - until
    spent_h = sums[until] - sums[longer_from][:, None] - ended * done_h[:, None] + beyond * SPANS_H
    with np.errstate(divide="ignore", invalid="ignore"):
        left = (spent_h / ended).min(axis=1)  # infinite where none is done within the longest span
    return np.where(longer_from < lengths_h.size, left, done_h)
