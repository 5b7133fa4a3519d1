"""Columns of the set partitioning program: every feasible group of active jobs, kept from event to event."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.kernel.groups import Columns, enumerate_groups, load_members
from rollmux_env.kernel.packing import least_period, packing
from rollmux_env.kernel.tables import Floats, Ints

MAX_COLUMNS = 2_000_000
_FIRST_ROOM = 4096
_MOST_MEMBERS = 62  # members of a class of nodes are bits


class ColumnPool:
    """Feasible groups of the active jobs; of each set, the ways that none beats on rollout nodes, training nodes (and period).

    An arrival adds the groups that hold the newcomer, a departure drops those that hold the leaver.

    Attributes:
        members: (N, M) rows of the members in the state's job table, ascending, padded with -1 in front.
        nodes: (N, 2) rollout and training nodes. pools: (N, 2) of which pools, as numbers.
        period_s: (N,) seconds.
        active: rows of the active jobs, ascending.
        max_columns: where an arrival would make more, its groups are kept up to a smaller size only.
    """

    def __init__(self, state: State, all_periods: bool, max_columns: int = MAX_COLUMNS) -> None:
        self.state = state
        self.all_periods = all_periods
        self.max_columns = max_columns
        self.active: list[int] = []
        self.members: Ints = np.zeros((0, 1), np.int64)
        self.nodes: Ints = np.zeros((0, 2), np.int64)
        self.pools: Ints = np.zeros((0, 2), np.int64)
        self.period_s: Floats = np.zeros(0)
        self._truncated: set[int] = set()
        self._room = _FIRST_ROOM

    @property
    def complete(self) -> bool:
        """Whether every feasible group of the active jobs is in the pool: else what is read off it is no bound."""
        return not self._truncated

    def add(self, row: int) -> None:
        """Make a job of the state's job table active."""
        largest = min(int(self.state.limits.group_size_max), len(self.active) + 1, _MOST_MEMBERS)
        size = largest
        while (columns := self._enumerate(row, size)) is None:
            size -= 1
            self._truncated.add(row)
        members, nodes, period_s = columns
        width = max(self.members.shape[1], members.shape[1])
        self.members = np.concatenate([_widened(self.members, width), _widened(np.sort(members, axis=1), width)])
        self.nodes = np.concatenate([self.nodes, nodes])
        jobs = self.state.view.jobs
        pools = np.array([jobs["rollout_pool"][row], jobs["training_pool"][row]])
        self.pools = np.concatenate([self.pools, np.broadcast_to(pools, nodes.shape)])
        self.period_s = np.concatenate([self.period_s, period_s])
        self.active = sorted([*self.active, row])

    def drop(self, row: int) -> None:
        """Take an active job out."""
        others = (self.members != row).all(axis=1)
        self.members, self.nodes, self.pools = self.members[others], self.nodes[others], self.pools[others]
        self.period_s = self.period_s[others]
        self.active.remove(row)
        self._truncated.discard(row)

    def usd_per_hour(self) -> Floats:
        """(N,) price of each column's nodes, $/h."""
        usd = self.state.limits.pools["usd"][self.pools]
        return np.asarray(self.nodes[:, 0] * usd[:, 0] + self.nodes[:, 1] * usd[:, 1])

    def work_rate(self) -> Floats:
        """(N,) work of each column: T_solo over period, summed over its members, in work-hours per hour."""
        solo_s = np.append(self.state.jobs.solo_s, 0.0)  # the padding's -1 finds the 0
        return np.asarray(solo_s[self.members].sum(axis=1) / self.period_s)

    def positions(self) -> Ints:
        """(N, M) members as positions in `active`, padded with len(active)."""
        position = np.full(self.state.jobs.solo_s.shape[0] + 1, len(self.active))
        position[self.active] = np.arange(len(self.active))
        return np.asarray(position[self.members])

    def find(self, rows: list[int]) -> Ints:
        """Indices of the columns of a set of jobs."""
        if len(rows) > self.members.shape[1]:
            return np.zeros(0, np.int64)
        wanted = np.full(self.members.shape[1], -1)
        wanted[self.members.shape[1] - len(rows) :] = sorted(rows)
        return np.flatnonzero((self.members == wanted).all(axis=1))

    def rows(self, column: int) -> list[int]:
        """Rows of a column's members, ascending."""
        return [int(row) for row in self.members[column] if row >= 0]

    def realise(self, column: int) -> tuple[list[int], list[tuple[int, ...]]]:
        """A member order and pins that give a column its period on its nodes.

        Returns:
            Rows of the members in round-robin order, and for each the numbers of its rollout nodes, ascending from 0.
        """
        rows = self.rows(column)
        jobs, rollout = self.state.jobs, self.state.limits.pools[self.pools[column, 0]]
        room = packing(len(rows), int(jobs.rollout_nodes[rows].sum()))
        load_members(self.state.view.jobs, np.array(rows), len(rows), int(self.nodes[column, 1]), room)
        least_period(room, len(rows), int(self.nodes[column, 0]), rollout, float(jobs.limit_s[rows].min()))
        order = room.order.tolist()
        classes = [
            (tuple(k for k, i in enumerate(order) if mask >> i & 1), nodes)
            for mask, nodes in zip(room.best_mask.tolist(), room.best_nodes.tolist(), strict=True)
        ][: int(room.classes[0])]
        pins: list[list[int]] = [[] for _ in rows]
        number = 0
        for held_by, nodes in sorted(classes):
            for k in held_by:
                pins[k] += range(number, number + nodes)
            number += nodes
        return [rows[i] for i in order], [tuple(numbers) for numbers in pins]

    def _enumerate(self, row: int, size: int) -> tuple[Ints, Ints, Floats] | None:
        """The columns of groups of up to `size` jobs that hold a job, or None where they are too many."""
        jobs = self.state.view.jobs
        asked = np.sort(jobs["rollout_nodes"][[*self.active, row]])[::-1]
        room = packing(size, int(asked[:size].sum()))
        others = np.array(self.active, dtype=np.int64)
        free = self.max_columns - self.period_s.shape[0]
        while True:
            n = max(1, min(self._room, free)) if size > 1 else self._room
            columns = Columns(np.empty((n, size), np.int64), np.empty((n, 2), np.int64), np.empty(n))
            count = enumerate_groups(jobs, self.state.limits, row, others, size, self.all_periods, room, columns)
            if count <= n:
                return columns.members[:count], columns.nodes[:count], columns.period_s[:count]
            if size > 1 and n >= free:
                return None
            self._room *= 4


def _widened(members: Ints, width: int) -> Ints:
    """The same rows with more padding in front."""
    return np.pad(members, ((0, 0), (width - members.shape[1], 0)), constant_values=-1)
