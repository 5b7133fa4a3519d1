"""Bounds on the places of jobs, so that a policy need not be asked, or places enumerated, for jobs that fit nowhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints, Limits, Records

_MORE = 1 + 2 * TOLERANCE  # more lenient than the checks of plans
_OWN = ("rollout_pool", "training_pool", "training_nodes", "rollout_s", "training_s", "sync_s", "staleness", "training_gb")


def may_fit(state: State, rows: Ints) -> NDArray[np.bool_]:
    """Test quickly whether each waiting job may have a place that keeps every rule, while all other jobs stay in theirs.

    Args:
        state: State of the cluster.
        rows: Rows of the jobs in the job table, shape (n,).

    Returns:
        Booleans of shape (n,). A job with False has no such place. A job with True may have none either: the bounds are those of a
        job that gets the best nodes of a group, and a job with several shapes is always True.
    """
    if state.cluster.network is not None:
        return np.ones(rows.size, dtype=bool)
    jobs, free = state.tables.job_records.take(rows), free_nodes(state)
    rollout_pool, training_pool = jobs["rollout_pool"], jobs["training_pool"]
    both = np.where(rollout_pool == training_pool, jobs["training_nodes"], 0)
    alone = (jobs["rollout_nodes"] + both <= free[rollout_pool]) & (jobs["training_nodes"] <= free[training_pool])
    groups = state.tables.group_records.take(state.tables.order)
    limit_s = np.minimum(jobs["limit_s"][:, None], groups["limit_s"]) * _MORE
    periods_s = least_periods_s(jobs, groups, free, state.limits)
    joins = (np.isfinite(periods_s) & (periods_s <= limit_s)).any(axis=1)
    return np.asarray(alone | (jobs["more_shapes"] > 0) | joins)


def free_nodes(state: State) -> Floats:
    """Return the number of nodes of each pool that are free, possibly infinite, shape (P,)."""
    return np.asarray(state.limits.pools["nodes_max"] - state.nodes.sum(axis=1))


def least_periods_s(jobs: Records, groups: Records, free: Floats, limits: Limits) -> Floats:
    """Return a lower bound of the period of each of G groups with each of J jobs in it, infinite if it cannot join, shape (J, G).

    Args:
        jobs: Records of jobs in a shape.
        groups: Records of groups.
        free: Number of nodes of each pool that are free, shape (P,).
        limits: Limits of the cluster.
    """
    own = {name: jobs[name][:, None] for name in _OWN}
    training_s = np.repeat(own["training_s"], len(groups), axis=1)
    for nodes, seconds in zip(jobs["rescale_nodes"].T, jobs["rescale_s"].T, strict=True):
        training_s = np.where(nodes[:, None] <= groups["training_nodes"], seconds[:, None], training_s)
    rollout_s, stale = own["rollout_s"], own["staleness"]
    cycle_s = (rollout_s + training_s + own["sync_s"]) / (1 + stale)
    cycle_s = np.maximum(cycle_s, np.where(stale > 0, np.maximum(rollout_s, training_s), 0.0))
    least_s = np.maximum(np.maximum(cycle_s, groups["period_s"]), groups["training_load_s"] + training_s)
    # Rollout nodes of the group that the job needs at least. The last of them bears at least this load.
    needed = jobs["rollout_nodes"] - np.minimum(jobs["rollout_nodes"], free[jobs["rollout_pool"]]).astype(int)
    is_node = np.arange(groups["node_load_s"].shape[1]) < groups["n_nodes"][:, None]
    load_s = np.sort(np.where(is_node, groups["node_load_s"], np.inf), axis=1)
    load_s = load_s.T[np.minimum(np.maximum(needed, 1) - 1, load_s.shape[1] - 1)]
    least_s = np.where(needed[:, None] > 0, np.maximum(least_s, load_s + rollout_s), least_s)
    joins = (groups["n_members"] < limits.group_size_max) & (groups["exclusive"] == 0)
    joins = joins & (groups["rollout_pool"] == own["rollout_pool"]) & (groups["training_pool"] == own["training_pool"])
    joins &= (groups["training_nodes"] >= own["training_nodes"]) & (needed[:, None] <= groups["n_nodes"])
    joins &= own["training_gb"] + groups["training_gb"] <= limits.pools["node_gb"][groups["training_pool"]] * _MORE
    return np.where(joins, least_s, np.inf)
