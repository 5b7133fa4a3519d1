"""Moves of running jobs that gain weighted progress, for the policy `fleet`.

The gain of a move is what the group gains that the job leaves, plus what V gains with its best place elsewhere. Most jobs have no
good place to go to. So the gain is first bounded from above for all jobs at once, from the least periods that groups could have
with a job in them, and places are enumerated only where the bound is above the best gain found so far.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.placement.weighted_progress import GroupProgress, Urgency, joining_gains, largest, pace
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.candidates import candidates
from rollmux_env.cluster.events import Moved, Placement
from rollmux_env.cluster.plan import Move, may_each_move
from rollmux_env.cluster.state import State
from rollmux_env.kernel.membership import remove_member
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints, Records

MOST = 8  # number of moves in an instant
_LEAST = 0.05  # gain of a move, relative to the job's urgency, below which it is not worth its pause


class _Gain(NamedTuple):
    gain: float
    row: int
    placement: Placement


def best_moves(state: State, urgency: Urgency) -> tuple[Move, ...]:
    """Return at most `MOST` moves, each the one that gains most after those before it.

    Args:
        state: State of the cluster.
        urgency: Urgency of the jobs.
    """
    moves: list[Move] = []
    while len(moves) < MOST and (best := _best_move(state, urgency)) is not None:
        job_id = state.tables.job_id(best.row)
        moves.append(Move(job_id, best.placement))
        state = state if len(moves) > 1 else state.copy()
        apply(state, Moved(state.now_s, job_id, best.placement))
    return tuple(moves)


def _best_move(state: State, urgency: Urgency) -> _Gain | None:
    """Return the move that gains most, of several the one of the lowest job row, or None if none gains enough."""
    now = pace(state, urgency)
    movers = _movers(state, now)
    if not movers.size:
        return None
    own_s = now.urgency * state.view.jobs["solo_s"][now.rows]
    freed = _freed(state, now, movers, own_s[movers])
    most = freed + _most_joining(state, now, movers, own_s[movers])
    best: _Gain | None = None
    for k in np.argsort(-most, kind="stable").tolist():
        row, least = int(now.rows[movers[k]]), _LEAST * float(now.urgency[movers[k]])
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
            best = _Gain(gain, row, table.placement(to))
    return best


def _movers(state: State, now: GroupProgress) -> Ints:
    """Return the positions of the jobs that share their group, may move, and have had their place for long enough."""
    shared = np.flatnonzero(now.members[now.group] > 1)
    shared = shared[may_each_move(state, now.rows[shared])]
    since_s = np.array([state.stays.placed_at_s[state.tables.job_id(row)] for row in now.rows[shared].tolist()])
    return np.asarray(shared[state.now_s - since_s >= state.cluster.min_run_s])


def _freed(state: State, now: GroupProgress, movers: Ints, own_s: Floats) -> Floats:
    """Return what V gains when each job leaves its group, shape (k,)."""
    view, group = state.view, now.group[movers]
    without = view.groups.take(state.tables.order[group])
    for k, row in enumerate(now.rows[movers].tolist()):
        remove_member(view.jobs, without, k, row, 0)
    return np.asarray((now.weight_s[group] - own_s) / without["period_s"] - now.weight_s[group] / now.period_s[group])


def _most_joining(state: State, now: GroupProgress, movers: Ints, own_s: Floats) -> Floats:
    """Return an upper bound of what V gains with each job in another group, shape (k,)."""
    view, order, rows = state.view, state.tables.order, now.rows[movers]
    groups, shapes = view.groups.take(order), [state.tables.shape_rows(row) for row in rows.tolist()]
    of_mover = np.repeat(np.arange(movers.size), [len(some) for some in shapes])
    jobs, own_s = view.jobs.take(np.concatenate(shapes)), own_s[of_mover]
    free = view.limits.pools["nodes_max"] - state.nodes.sum(axis=1)
    period_s = _least_period_s(jobs, groups, free)
    limit_s = np.minimum(jobs["limit_s"][:, None], groups["limit_s"]) * (1 + TOLERANCE)
    is_home = now.group[movers][of_mover][:, None] == np.arange(order.size)
    closed = is_home | (groups["n_members"] >= state.limits.group_size_max) | (groups["exclusive"] != 0) | (period_s > limit_s)
    joined = np.where(closed, -np.inf, (now.weight_s + own_s[:, None]) / period_s - now.weight_s / now.period_s)
    has_room = (jobs["rollout_nodes"] <= free[jobs["rollout_pool"]]) & (jobs["training_nodes"] <= free[jobs["training_pool"]])
    most = np.maximum(joined.max(axis=1, initial=-np.inf), np.where(has_room, own_s / jobs["alone_s"], -np.inf))
    of_shapes = np.full(movers.size, -np.inf)
    np.maximum.at(of_shapes, of_mover, most)
    return of_shapes * (1 + TOLERANCE)


def _least_period_s(jobs: Records, groups: Records, free: Floats) -> Floats:
    """Return a lower bound of the period of each of G groups with each of J jobs in it, infinite where it cannot be, shape (J, G).

    Args:
        jobs: Records of jobs in a shape.
        groups: Records of groups.
        free: Number of nodes of each pool that are free.
    """
    training_s = np.repeat(jobs["training_s"][:, None], len(groups), axis=1)
    for nodes, seconds in zip(jobs["rescale_nodes"].T, jobs["rescale_s"].T, strict=True):
        training_s = np.where(nodes[:, None] <= groups["training_nodes"], seconds[:, None], training_s)
    rollout_s, stale = jobs["rollout_s"][:, None], jobs["staleness"][:, None]
    cycle_s = (rollout_s + training_s + jobs["sync_s"][:, None]) / (1 + stale)
    cycle_s = np.maximum(cycle_s, np.where(stale > 0, np.maximum(rollout_s, training_s), 0.0))
    least_s = np.maximum(np.maximum(cycle_s, groups["period_s"]), groups["training_load_s"] + training_s)
    # `own` is the least number of the group's rollout nodes that the job needs. The last of these bears at least this load.
    own = jobs["rollout_nodes"] - np.minimum(jobs["rollout_nodes"], free[jobs["rollout_pool"]]).astype(int)
    is_node = np.arange(groups["node_load_s"].shape[1]) < groups["n_nodes"][:, None]
    load_s = np.sort(np.where(is_node, groups["node_load_s"], np.inf), axis=1)
    load_s = load_s.T[np.minimum(np.maximum(own, 1) - 1, load_s.shape[1] - 1)]
    return np.where(own[:, None] > 0, np.maximum(least_s, load_s + rollout_s), least_s)
