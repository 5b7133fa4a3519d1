"""A quick look at which waiting jobs could be placed at all, so that a pass over a long queue need not ask about each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import TOLERANCE, UNUSED, Floats, Ints

_MORE = 1 + 2 * TOLERANCE  # more lenient than the checks of plans


def may_fit(state: State, rows: Ints) -> NDArray[np.bool_]:
    """Return whether each waiting job may have a place that keeps every rule, while all other jobs stay in theirs, shape (n,).

    False is certain. True may be wrong: the bounds are those of a job that gets the best nodes of a group, and jobs with several
    shapes always may fit.

    Args:
        state: State of the cluster.
        rows: Rows of the jobs in the job table, shape (n,).
    """
    if state.cluster.network is not None:
        return np.ones(rows.size, dtype=bool)
    jobs, pools = state.tables.job_records, state.limits.pools
    rollout_pool, training_pool = jobs["rollout_pool"][rows], jobs["training_pool"][rows]
    rollout_nodes, training_nodes = jobs["rollout_nodes"][rows], jobs["training_nodes"][rows]
    free = pools["nodes_max"] - state.nodes.sum(axis=1)
    both = np.where(rollout_pool == training_pool, training_nodes, 0)
    alone = (rollout_nodes + both <= free[rollout_pool]) & (training_nodes <= free[training_pool])
    return np.asarray(alone | (jobs["more_shapes"][rows] > 0) | _joins(state, rows, rollout_nodes - free[rollout_pool]))


def _joins(state: State, rows: Ints, lacking: Floats) -> NDArray[np.bool_]:
    """Return whether each job may join a group, of whose rollout nodes it needs at least `lacking`, shape (n,)."""
    order = state.tables.order
    if not order.size:
        return np.zeros(rows.size, dtype=bool)
    jobs, groups, pools = state.tables.job_records, state.tables.group_records[order], state.limits.pools
    own = {name: jobs[name][rows][:, None] for name in ("rollout_pool", "training_pool", "training_nodes", "rollout_s", "limit_s")}
    training_s = np.where(jobs["rescale_nodes"][rows] == UNUSED, np.inf, jobs["rescale_s"][rows]).min(axis=1)
    training_s = np.minimum(training_s, jobs["training_s"][rows])[:, None]
    limit_s = np.minimum(own["limit_s"], groups["limit_s"]) * _MORE
    loads_s = np.sort(
        np.where(np.arange(groups["node_load_s"].shape[1]) < groups["n_nodes"][:, None], groups["node_load_s"], np.inf)
    )
    needed = np.clip(lacking, 0, None).astype(np.int64)[:, None]
    last = np.clip(needed - 1, 0, loads_s.shape[1] - 1)
    busiest_s = np.where(needed > 0, loads_s[np.arange(order.size)[None, :], last], 0.0)  # of the least busy nodes that it needs
    gb = jobs["training_gb"][rows][:, None] + groups["training_gb"]
    joins = (groups["n_members"] < state.limits.group_size_max) & (groups["exclusive"] == 0)
    joins = joins & (groups["rollout_pool"] == own["rollout_pool"]) & (groups["training_pool"] == own["training_pool"])
    joins &= (groups["training_nodes"] >= own["training_nodes"]) & (needed <= groups["n_nodes"])
    joins &= (groups["period_s"] <= limit_s) & (gb <= pools["node_gb"][groups["training_pool"]] * _MORE)
    joins &= (groups["training_load_s"] + training_s <= limit_s) & (busiest_s + own["rollout_s"] <= limit_s)
    return np.asarray(joins.any(axis=1))
