"""Columns of the set partitioning program: every feasible group of active jobs, maintained from event to event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.kernel.groups import CHEAPEST, ON_NODES, PERIODS, Choices, Columns, Criterion, enumerate_groups, load_members
from rollmux_env.kernel.packing import least_period, packing
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints

MAX_COLUMNS = 2_000_000
MAX_TRIES = 20_000_000  # largest number of shape combinations to try for one arrival, about ten seconds
_FIRST_ROOM = 4096  # columns for which the first enumeration has room
_MAX_MEMBERS = 62  # limit of group size, because the members that use a class of nodes are bits of an integer


class ColumnPool:
    """Feasible groups of the active jobs, as N columns of up to M members.

    For each set of jobs the pool keeps the variants that no other variant beats on rollout nodes, training nodes and, with
    `all_periods`, period. An arrival adds the groups that contain the new job, and a departure drops those that contain the leaver.

    Args:
        state: State whose jobs are grouped.
        all_periods: Whether the period counts in the comparison of variants.
        max_columns: Largest number of columns. If an arrival would exceed it, or `MAX_TRIES`, the groups of the new job are kept up
            to a smaller size only.
        reshapes: Whether jobs may take any of their shapes instead of the one they have. If then neither the period nor
            `max_nodes` counts, only the cheapest variant of each set is kept, and only if it costs less than its members apart.

    Attributes:
        members: Rows of the members in the state's job table, ascending, left-padded with -1, shape (N, M).
        shapes: Rows of the members' shapes in the same places, shape (N, M).
        nodes: Rollout and training nodes of each column, shape (N, 2).
        pools: Numbers of the pools of these nodes, shape (N, 2).
        period_s: Period of each column in seconds, shape (N,).
        active: Rows of the active jobs, ascending.
    """

    def __init__(self, state: State, all_periods: bool, max_columns: int = MAX_COLUMNS, reshapes: bool = False) -> None:
        self.state = state
        self.all_periods = all_periods
        self.max_columns = max_columns
        self.reshapes = reshapes
        self.active: list[int] = []
        self.members: Ints = np.zeros((0, 1), np.int64)
        self.shapes: Ints = np.zeros((0, 1), np.int64)
        self.nodes: Ints = np.zeros((0, 2), np.int64)
        self.pools: Ints = np.zeros((0, 2), np.int64)
        self.period_s: Floats = np.zeros(0)
        self._truncated: set[int] = set()
        self._room = _FIRST_ROOM

    @property
    def complete(self) -> bool:
        """Whether the pool contains every feasible group of the active jobs. Otherwise its optimum is no bound."""
        return not self._truncated

    def hold(self, rows: Sequence[int]) -> None:
        """Make exactly these jobs the active ones."""
        before = set(self.active)
        for row in sorted(before - set(rows)):
            self.drop(row)
        for row in rows:
            if row not in before:
                self.add(row)

    def add(self, row: int) -> None:
        """Make one more job of the state's job table active."""
        largest = min(int(self.state.limits.group_size_max), len(self.active) + 1, _MAX_MEMBERS)
        size = largest
        while (columns := self._enumerate(row, size)) is None:
            size -= 1
            self._truncated.add(row)
        shapes, nodes, period_s = columns
        shapes = np.sort(shapes, axis=1)  # rows of shapes ascend in the same order as rows of jobs
        self.members = np.concatenate(widened(self.members, self._jobs_of(shapes)))
        self.shapes = np.concatenate(widened(self.shapes, shapes))
        self.nodes = np.concatenate([self.nodes, nodes])
        jobs = self.state.view.jobs
        pools = np.stack([jobs["rollout_pool"][shapes[:, -1]], jobs["training_pool"][shapes[:, -1]]], axis=1)
        self.pools = np.concatenate([self.pools, pools])
        self.period_s = np.concatenate([self.period_s, period_s])
        self.active = sorted([*self.active, row])

    def drop(self, row: int) -> None:
        """Remove an active job and the columns that contain it."""
        others = (self.members != row).all(axis=1)
        self.members, self.shapes = self.members[others], self.shapes[others]
        self.nodes, self.pools, self.period_s = self.nodes[others], self.pools[others], self.period_s[others]
        self.active.remove(row)
        self._truncated.discard(row)

    def usd_per_hour(self) -> Floats:
        """Return the price of each column's nodes in $/h, shape (N,)."""
        usd = self.state.limits.pools["usd"][self.pools]
        return np.asarray(self.nodes[:, 0] * usd[:, 0] + self.nodes[:, 1] * usd[:, 1])

    def work_rate(self) -> Floats:
        """Return the work of each column in work-hours per hour, T_solo over period summed over the members, shape (N,)."""
        solo_s = np.append(self.state.tables.jobs.solo_s, 0.0)  # index -1 of the padding reads this 0
        return np.asarray(solo_s[self.members].sum(axis=1) / self.period_s)

    def positions(self, members: Ints) -> Ints:
        """Convert rows of active jobs to positions in `active`, shape (N, M). The padding becomes len(active)."""
        position = np.full(len(self.state.tables.jobs.solo_s) + 1, len(self.active))
        position[self.active] = np.arange(len(self.active))
        return np.asarray(position[members])

    def find(self, rows: list[int]) -> Ints:
        """Return the indices of the columns whose members are exactly these jobs."""
        padding = len(self.members.T) - len(rows)
        if padding < 0:
            return np.zeros(0, np.int64)
        return np.flatnonzero((self.members == [-1] * padding + sorted(rows)).all(axis=1))

    def rows(self, column: int) -> list[int]:
        """Return the rows of a column's members, ascending."""
        return [int(row) for row in self.members[column] if row >= 0]

    def shape_of(self, column: int, row: int) -> int:
        """Return the row of the shape that a member has in a column."""
        return int(self.shapes[column, np.flatnonzero(self.members[column] == row)[0]])

    def choices(self, row: int) -> list[int]:
        """Return the rows of the shapes that a job may take."""
        return [*self.state.tables.shape_rows(row)] if self.reshapes else [row]

    def realise(self, column: int) -> tuple[list[int], list[tuple[int, ...]]]:
        """Find an order of members and pinned nodes that give a column its period.

        Returns:
            Rows of the members' shapes in round-robin order, and for each the numbers of its rollout nodes, ascending from 0.
        """
        rows = [int(row) for row in self.shapes[column] if row >= 0]
        jobs, rollout = self.state.tables.jobs, self.state.limits.pools[self.pools[column, 0]]
        room = packing(len(rows), int(jobs.rollout_nodes[rows].sum()))
        load_members(self.state.view.jobs, np.array(rows), len(rows), int(self.nodes[column, 1]), room)
        least_period(room, len(rows), int(self.nodes[column, 0]), rollout, float(jobs.limit_s[rows].min()))
        order = room.members["order"].tolist()
        classes = [
            (tuple(k for k, i in enumerate(order) if mask >> i & 1), nodes)
            for mask, nodes in room.best[["mask", "nodes"]][: int(room.best_count[0])].tolist()
        ]
        pins: list[list[int]] = [[] for _ in rows]
        number = 0
        for held_by, nodes in sorted(classes):
            for k in held_by:
                pins[k] += range(number, number + nodes)
            number += nodes
        return [rows[i] for i in order], [tuple(numbers) for numbers in pins]

    def _enumerate(self, row: int, size: int) -> tuple[Ints, Ints, Floats] | None:
        """Enumerate the groups of up to `size` jobs that contain a job. Return None if there are too many."""
        view = self.state.view
        of_jobs = [self.choices(job) for job in (row, *self.active)]
        starts = np.cumsum([0, *(len(shapes) for shapes in of_jobs)])
        choices = Choices(np.array([shape for shapes in of_jobs for shape in shapes], dtype=np.int64), starts)
        asked = np.sort([max(view.jobs["rollout_nodes"][shapes]) for shapes in of_jobs])[::-1]
        room = packing(size, int(asked[:size].sum()))
        wanted = self._select_variants(of_jobs)
        free = self.max_columns - self.period_s.size
        while True:
            n = max(1, min(self._room, free)) if size > 1 else self._room
            columns = Columns(np.empty((n, size), np.int64), np.empty((n, 2), np.int64), np.empty(n))
            count = enumerate_groups(view.jobs, view.limits, choices, size, wanted, room, columns)
            if 0 <= count <= n:
                return columns.members[:count], columns.nodes[:count], columns.period_s[:count]
            if size > 1 and (count < 0 or n >= free):
                return None
            self._room *= 4

    def _select_variants(self, of_jobs: list[list[int]]) -> Criterion:
        """Return which variants to keep of groups of jobs, given the shapes that each may take."""
        jobs, limits = self.state.view.jobs, self.state.limits
        rows = [row for shapes in of_jobs for row in shapes]
        pools = np.unique([jobs["rollout_pool"][rows], jobs["training_pool"][rows]])
        limited = np.isfinite(limits.pools["nodes_max"][pools]).any()
        tries = MAX_TRIES if max(map(len, of_jobs)) > 1 else np.iinfo(np.int64).max
        if self.all_periods or limited or not self.reshapes or max(map(len, of_jobs)) == 1:
            return Criterion(PERIODS if self.all_periods else ON_NODES, np.zeros(len(of_jobs)), tries)
        prices = limits.pools["usd"]
        usd = jobs["rollout_nodes"] * prices[jobs["rollout_pool"]] + jobs["training_nodes"] * prices[jobs["training_pool"]]
        usd[jobs["alone_s"] > jobs["limit_s"] * (1 + TOLERANCE)] = np.inf
        return Criterion(CHEAPEST, np.array([usd[shapes].min() for shapes in of_jobs]), tries)

    def _jobs_of(self, shapes: Ints) -> Ints:
        """Map rows of shapes to rows of their jobs. The padding stays -1."""
        if not self.reshapes:
            return shapes
        owner = np.full(len(self.state.view.jobs) + 1, -1)
        for row in np.unique(shapes[shapes >= 0]).tolist():
            owner[row] = self.state.row(self.state.tables.job_id(row))
        return np.asarray(owner[shapes])


def widened(*tables: Ints) -> list[Ints]:
    """Left-pad tables of members, shape (N, M), with -1 to the width of the widest."""
    width = max(len(table.T) for table in tables)
    return [np.pad(table, ((0, 0), (width - len(table.T), 0)), constant_values=-1) for table in tables]
