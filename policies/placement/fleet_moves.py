"""Moves of running jobs that gain weighted progress, for the policy `fleet`.

V is the weighted progress of all groups. A move changes it twice: the job leaves its group, and it joins the best place elsewhere.
The gain of the move is the sum of both changes. Most jobs have no good place elsewhere, and enumerating places is slow. So a first
step computes an upper bound of the gain for all jobs at once, from the shortest periods that groups could have with the job in
them. Places are then enumerated only for jobs whose bound exceeds the best gain found so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from policies.placement.weighted_progress import GroupProgress, Urgency, joining_gains, largest, pace
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Moved, Placement
from rollmux_env.cluster.plan import Move, may_each_move
from rollmux_env.cluster.state import State
from rollmux_env.kernel.membership import remove_member
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints
from rollmux_env.scheduler.quotas import exceeded
from rollmux_env.scheduler.room import free_nodes, least_periods_s

MAX_MOVES = 8  # largest number of moves in an instant
MIN_RELATIVE_GAIN = 0.05  # smallest gain of a move, relative to the job's urgency, that is worth its pause


class _Gain(NamedTuple):
    gain: float
    row: int
    placement: Placement


def best_moves(state: State, urgency: Urgency) -> tuple[Move, ...]:
    """Return at most `MAX_MOVES` moves, each the one that gains most after those before it.

    A plan that breaks a quota is refused as a whole. So a move that would break one, after those before it, is left out.

    Args:
        state: State of the cluster.
        urgency: Urgency of the jobs.
    """
    moves: list[Move] = []
    before, moved = state, set[str]()

    def is_allowed(gain: _Gain) -> bool:
        if not state.cluster.quotas:
            return True
        job_id = state.tables.job_id(gain.row)
        after = state.copy()
        apply(after, Moved(state.now_s, job_id, gain.placement))
        return not exceeded(before, after, moved | {state.job(job_id).user})

    while len(moves) < MAX_MOVES and (best := _best_move(state, urgency, is_allowed)) is not None:
        job_id = state.tables.job_id(best.row)
        state = state if moves else state.copy()
        apply(state, Moved(state.now_s, job_id, best.placement))
        moved.add(state.job(job_id).user)
        moves.append(Move(job_id, best.placement))
    return tuple(moves)


def _best_move(state: State, urgency: Urgency, is_allowed: Callable[[_Gain], bool]) -> _Gain | None:
    """Return the move that gains most, of several the one of the lowest job row, or None if none gains enough.

    Args:
        state: State of the cluster.
        urgency: Urgency of the jobs.
        is_allowed: Function that returns whether a move may be made. Of each job only the move that gains most is tried.
    """
    now = pace(state, urgency)
    movers = _find_movers(state, now)
    if not movers.size:
        return None
    own_s = now.urgency * state.view.jobs["solo_s"][now.rows]
    freed = _compute_leaving_gains(state, now, movers, own_s[movers])
    most = freed + _bound_joining_gains(state, now, movers, own_s[movers])
    best: _Gain | None = None
    for k in np.argsort(-most, kind="stable").tolist():
        row, least = int(now.rows[movers[k]]), MIN_RELATIVE_GAIN * float(now.urgency[movers[k]])
        if best is not None and most[k] < best.gain:
            break
        if most[k] <= least:
            continue
        table = candidates(state, state.tables.job_id(row))
        joining = joining_gains(state, table, now, float(own_s[movers[k]]))
        if (to := largest(joining)) is None:
            continue
        gain = float(freed[k] + joining[to])
        if gain > least and (best is None or (-gain, row) < (-best.gain, best.row)):
            move = _Gain(gain, row, table.placement(to))
            best = move if is_allowed(move) else best
    return best


def _find_movers(state: State, now: GroupProgress) -> Ints:
    """Return the positions of the jobs that share their group, may move, and have had their place for long enough."""
    shared = np.flatnonzero(now.members[now.group] > 1)
    placed_s = np.array([state.stays.placed_at_s[state.tables.job_id(row)] for row in now.rows[shared].tolist()])
    shared = shared[state.now_s - placed_s >= state.cluster.min_run_s]
    return np.asarray(shared[may_each_move(state, now.rows[shared])])


def _compute_leaving_gains(state: State, now: GroupProgress, movers: Ints, own_s: Floats) -> Floats:
    """Return what V gains when each job leaves its group, shape (k,)."""
    view, group = state.view, now.group[movers]
    without = view.groups.take(state.tables.order[group])
    for k, row in enumerate(now.rows[movers].tolist()):
        remove_member(view.jobs, without, k, row, 0)
    return np.asarray((now.weight_s[group] - own_s) / without["period_s"] - now.weight_s[group] / now.period_s[group])


def _bound_joining_gains(state: State, now: GroupProgress, movers: Ints, own_s: Floats) -> Floats:
    """Return an upper bound of what V gains with each job in another group, shape (k,)."""
    view, order, rows = state.view, state.tables.order, now.rows[movers]
    groups, shapes = view.groups.take(order), [state.tables.shape_rows(row) for row in rows.tolist()]
    of_mover = np.repeat(np.arange(movers.size), [len(some) for some in shapes])
    jobs, own_s = view.jobs.take(np.concatenate(shapes)), own_s[of_mover]
    free = free_nodes(state)
    period_s = least_periods_s(jobs, groups, free, state.limits)
    limit_s = np.minimum(jobs["limit_s"][:, None], groups["limit_s"]) * (1 + TOLERANCE)
    is_home = now.group[movers][of_mover][:, None] == np.arange(order.size)
    joined = np.where(
        is_home | (period_s > limit_s), -np.inf, (now.weight_s + own_s[:, None]) / period_s - now.weight_s / now.period_s
    )
    has_room = (jobs["rollout_nodes"] <= free[jobs["rollout_pool"]]) & (jobs["training_nodes"] <= free[jobs["training_pool"]])
    most = np.maximum(joined.max(axis=1, initial=-np.inf), np.where(has_room, own_s / jobs["alone_s"], -np.inf))
    of_shapes = np.full(movers.size, -np.inf)
    np.maximum.at(of_shapes, of_mover, most)
    return of_shapes * (1 + TOLERANCE)
