"""Co-execution groups as a policy sees them, and their nodes as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.cluster.charges import Share
from rollmux_env.cluster.tables import Tables
from rollmux_env.kernel.tables import TOLERANCE


@dataclass(frozen=True)
class Group:
    """A co-execution group as it is now.

    Attributes:
        id: number in order of creation.
        jobs: members' ids in order of admission.
        rollout_pool, training_pool: names of the pools that its nodes are of.
        rollout_nodes: numbers of its rollout nodes.
        training_nodes: how many training nodes it has.
        period_s: exact round-robin period, seconds.
        cycle_s, load_s: T_cycle and T_load, seconds; saturated: T_load >= T_cycle.
        usd_per_hour: price of its nodes, $/h.
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


class Nodes(NamedTuple):
    """So many nodes of the pools of a group, as numbers."""

    rollout_pool: int
    training_pool: int
    rollout_nodes: int
    training_nodes: int

    def usd(self, prices: Sequence[float]) -> float:
        """Their price, $/h, at those of the pools' nodes."""
        return self.rollout_nodes * prices[self.rollout_pool] + self.training_nodes * prices[self.training_pool]

    def share(self, prices: Sequence[float], among: int = 1) -> Share:
        """What each of so many jobs holds of them."""
        return Share((self.rollout_nodes + self.training_nodes) / among, self.usd(prices) / among)


def nodes_of(tables: Tables, row: int) -> Nodes:
    """All nodes of a group, as they are."""
    return Nodes(*tables.node_columns[row].item())


def group_at(tables: Tables, row: int, pools: Sequence[str], prices: Sequence[float]) -> Group:
    """The group of a row.

    Args:
        pools: their names. prices: of their nodes, $/h.
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
