"""Co-execution groups as a policy sees them, and counts of their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.cluster.charges import Share
from rollmux_env.cluster.tables import Tables
from rollmux_env.kernel.tables import TOLERANCE


@dataclass(frozen=True)
class Group:
    """A co-execution group at the current instant.

    Attributes:
        id: Number of the group in order of creation.
        jobs: Ids of the members in order of admission.
        rollout_pool: Name of the pool of its rollout nodes.
        training_pool: Name of the pool of its training nodes.
        rollout_nodes: Numbers of its rollout nodes.
        training_nodes: Number of training nodes.
        period_s: Exact round-robin period, seconds.
        cycle_s: T_cycle, seconds.
        load_s: T_load, seconds.
        saturated: Whether T_load >= T_cycle.
        usd_per_hour: Price of its nodes, $/h.
    """

    id: int
    jobs: tuple[str, ...]
    rollout_pool: str
    training_pool: str
    rollout_nodes: tuple[int, ...]
    training_nodes: int
    period_s: float
    cycle_s: float
    load_s: float
    saturated: bool
    usd_per_hour: float


class NodeCounts(NamedTuple):
    """Counts of nodes.

    Attributes:
        rollout_pool: Number of the pool of the rollout nodes.
        training_pool: Number of the pool of the training nodes.
        rollout_nodes: Number of rollout nodes.
        training_nodes: Number of training nodes.
    """

    rollout_pool: int
    training_pool: int
    rollout_nodes: int
    training_nodes: int

    def usd(self, prices: Sequence[float]) -> float:
        """Return the price of the nodes in $/h, given the price of a node of each pool."""
        return self.rollout_nodes * prices[self.rollout_pool] + self.training_nodes * prices[self.training_pool]

    def share(self, prices: Sequence[float], among: int = 1) -> Share:
        """Return the share of each of `among` jobs in these nodes."""
        return Share((self.rollout_nodes + self.training_nodes) / among, self.usd(prices) / among)


def nodes_of(tables: Tables, row: int) -> NodeCounts:
    """Return the current nodes of a group."""
    return NodeCounts(*tables.node_columns[row].item())


def group_at(tables: Tables, row: int, pools: Sequence[str], prices: Sequence[float]) -> Group:
    """Return the group in a row of the group table.

    Args:
        tables: Tables of the state.
        row: Row of the group.
        pools: Names of the pools.
        prices: Price of a node of each pool, $/h.
    """
    groups = tables.group_records
    return Group(
        id=int(groups["id"][row]),
        jobs=tuple(map(tables.job_id, tables.members(row))),
        rollout_pool=pools[groups["rollout_pool"][row]],
        training_pool=pools[groups["training_pool"][row]],
        rollout_nodes=tuple(groups["node_number"][row, : groups["n_nodes"][row]].tolist()),
        training_nodes=int(groups["training_nodes"][row]),
        period_s=float(groups["period_s"][row]),
        cycle_s=float(groups["cycle_s"][row]),
        load_s=float(groups["load_s"][row]),
        saturated=bool(groups["load_s"][row] >= groups["cycle_s"][row] * (1.0 - TOLERANCE)),
        usd_per_hour=nodes_of(tables, row).usd(prices),
    )
