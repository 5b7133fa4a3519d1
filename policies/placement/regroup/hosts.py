"""Which groups of a set partition are reachable: possible host groups and the dollars of the moves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from policies.placement.optimal.columns import ColumnPool
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import Floats, Ints

_BESIDES_USD = 0.01  # of a move, so that none is made for nothing


def move_usd(state: State, rows: Sequence[int]) -> Floats:
    """(A,) dollars of moving each job: the price of the nodes that it asks for, during two pauses.

    One for the nodes that it leaves, which are held until the pause ends; one because it stays longer by the pause.
    """
    jobs, usd = state.jobs, state.limits.pools["usd"]
    usd_per_hour = (
        jobs.rollout_nodes[rows] * usd[jobs.rollout_pool[rows]] + jobs.training_nodes[rows] * usd[jobs.training_pool[rows]]
    )
    return np.asarray(2 * usd_per_hour * state.cluster.migration_s / 3600 + _BESIDES_USD)


class Hosts:
    """For every feasible group of the active jobs (a column): which present groups can become it.

    A present group can host a column if some of its members stay, the training pool has the column's size, and the members of both
    that may not move are the same. Any column whose members may all move can also be a new group. Beside the pool's columns there
    is one for each present group as it is, so a partition that moves nobody always exists.

    Attributes:
        groups: rows of the present groups in the state's group table.
        members: (N, M) rows of the columns' members, padded with -1; positions: (N, M) as positions in the pool's active jobs.
        nodes: (N, 2) rollout and training nodes. pools: (N, 2) of which pools, as numbers.
        as_it_is: (G,) the columns of the present groups.
        allowed: (N, G) which group can host which column.
    """

    def __init__(self, state: State, pool: ColumnPool, fixed: Collection[int]) -> None:
        groups = state.groups
        self.groups = [int(group) for group in state.order if not groups.exclusive[group]]
        size = len(self.groups)
        width = max(pool.members.shape[1], int(groups.n_members[self.groups].max()))
        present = np.full((size, width), -1)
        for k, group in enumerate(self.groups):
            n = int(groups.n_members[group])
            present[k, width - n :] = np.sort(groups.members[group, :n])
        own_nodes = np.stack([groups.n_nodes[self.groups], groups.training_nodes[self.groups]], axis=1)
        known = np.pad(pool.members, ((0, 0), (width - pool.members.shape[1], 0)), constant_values=-1)
        self.members: Ints = np.concatenate([known, present])
        own_pools = np.stack([groups.rollout_pool[self.groups], groups.training_pool[self.groups]], axis=1)
        self.nodes: Ints = np.concatenate([pool.nodes, own_nodes])
        self.pools: Ints = np.concatenate([pool.pools, own_pools])
        self.as_it_is: Ints = np.arange(known.shape[0], known.shape[0] + size)
        count = self.members.shape[0]
        position = np.full(state.jobs.solo_s.shape[0] + 1, len(pool.active))
        position[pool.active] = np.arange(len(pool.active))
        self.positions: Ints = position[self.members]
        home = np.full(len(pool.active) + 1, size)
        for k in range(size):
            home[position[present[k][present[k] >= 0]]] = k
        usd = np.append(move_usd(state, pool.active), 0.0)
        bound = np.append(np.isin(pool.active, list(fixed)), False)
        self._stay_usd = np.zeros((count, size + 1))
        fixed_here = np.zeros((count, size + 1), dtype=np.int8)
        for column in self.positions.T:
            homes = home[column]
            self._stay_usd[np.arange(count), homes] += usd[column]
            fixed_here[np.arange(count), homes] += bound[column]
        self._all_usd: Floats = self._stay_usd.sum(axis=1)
        self._stay_usd, fixed_here = self._stay_usd[:, :size], fixed_here[:, :size]
        all_fixed = fixed_here.sum(axis=1)
        fixed_of = fixed_here[self.as_it_is, np.arange(size)]
        self.allowed: NDArray[np.bool_] = (
            (self._stay_usd > 0)
            & (self.nodes[:, 1:] == own_nodes[:, 1])
            & (self.pools[:, None] == own_pools).all(axis=2)
            & (fixed_here == fixed_of)
            & (all_fixed[:, None] == fixed_of)
        )
        self._free = all_fixed == 0

    def moves_usd(self) -> Floats:
        """(N,) dollars of the moves that make each column, by its best host or as a new group; infinite where it cannot be had."""
        stay_usd = np.where(self.allowed, self._stay_usd, -np.inf).max(axis=1, initial=-np.inf)
        return np.asarray(np.where(self._free | np.isfinite(stay_usd), self._all_usd - np.maximum(stay_usd, 0.0), np.inf))

    def assign(self, columns: Ints) -> tuple[list[int | None], float]:
        """Give chosen columns to hosts so that the moves are the cheapest; each group hosts at most one.

        Returns:
            Of each column the position of its host in `groups`, or None for a new group; and the dollars of all moves.
        """
        must = np.where(self._free[columns], 0.0, 2 * self._all_usd.max() * len(columns))[:, None]
        worth = np.where(self.allowed[columns], self._stay_usd[columns] + must, 0.0)
        hosts: list[int | None] = [None] * len(columns)
        stay_usd = 0.0
        for k, group in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
            if worth[k, group] > 0:
                hosts[k] = int(group)
                stay_usd += float(self._stay_usd[columns[k], group])
        return hosts, float(self._all_usd[columns].sum()) - stay_usd
