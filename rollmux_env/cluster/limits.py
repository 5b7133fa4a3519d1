"""What holds for the whole cluster, as the kernel wants it."""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.tables import POOL, Limits
from rollmux_env.keys.cluster import Cluster


def limits_of(cluster: Cluster) -> Limits:
    """Prices and limits of a cluster's pools, in their order, and of its groups."""
    pools = np.zeros(len(cluster.pools), dtype=POOL)
    for record, pool in zip(pools, cluster.pools.values(), strict=True):
        record["usd"] = pool.usd_per_node_hour
        record["nodes_max"] = _or_infinite(pool.max_nodes)
        record["node_gb"] = _or_infinite(pool.node_memory_gb)
        record["device_gb"] = _or_infinite(pool.device_memory_gb)
    return Limits(pools, cluster.max_group_size)


def _or_infinite(limit: float | None) -> float:
    return np.inf if limit is None else float(limit)
