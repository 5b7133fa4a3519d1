"""The candidate table: the action space of placement, as columns.

Algorithm 1 is an argmin over it, a learned policy scores it, and an action mask is its feasibility.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import local
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.state import State
from rollmux_env.kernel.candidates import ANY_NODES, FEASIBLE, SLO, candidate_type, enumerate_candidates
from rollmux_env.kernel.lns import choose_part
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Floats, Ints, Records, View

REASONS = (
    "feasible",
    "the group is full",
    "the group has too few training nodes",
    "memory of a rollout node",
    "memory of the training nodes",
    "max_nodes of a pool",
    "an SLO would be broken",
    "the group is on other pools",
)


@dataclass(frozen=True)
class CandidateTable:
    """All ways to place one job, one in each of R rows, in Algorithm 1's order. A new group in each shape comes last.

    A row with `new_nodes` -1 represents a group that the job cannot join in any way. Its cost, period and limit are
    nan.

    Attributes:
        job_id: Id of the job.
        group: Id of the group, -1 for a new one, shape (R,).
        shape: Number of the job's shape (its way to run, as in `Placement.shape`), shape (R,).
        new_nodes: Number of rollout nodes to add, or -1 for a group that the job cannot join, shape (R,).
        nodes: Numbers of the group's rollout nodes to which the job would be pinned, padded with -1, shape (R, N).
        usd_per_hour: Marginal cost, $/h, shape (R,).
        period_s: Period of the group with the job in it, seconds, shape (R,).
        reason: Index into `rollmux_env.cluster.candidates.REASONS`: 0 for feasible, else the first obstacle, shape (R,).
        load_s: T_load of the group without the job, the busiest of its nodes in a period, seconds; 0 for a new group; shape (R,).
        cycle_s: T_cycle of the group without the job, its longest member alone, seconds; 0 for a new group; shape (R,).
        saturated: Whether the group's T_load is at least its T_cycle without the job, shape (R,).
        limit_s: Longest period that keeps every SLO, seconds, shape (R,). If switches are planned, it also keeps every job's SLO
            to the end of its stay, with the cold starts ahead (`rollmux_env.kernel.promises`).
        training_nodes: Training nodes that the shape asks for, which is the number in a new group, shape (R,).
    """

    job_id: str
    group: Ints
    shape: Ints
    new_nodes: Ints
    nodes: Ints
    usd_per_hour: Floats
    period_s: Floats
    reason: Ints
    load_s: Floats
    cycle_s: Floats
    saturated: NDArray[np.bool_]
    limit_s: Floats
    training_nodes: Ints

    def __len__(self) -> int:
        return int(self.group.shape[0])

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Whether each row is allowed, shape (R,)."""
        return np.asarray(self.reason == FEASIBLE)

    @property
    def slack(self) -> Floats:
        """Limit over period, minus 1, shape (R,). A value below 0 breaks an SLO; nan for a group that the job cannot join."""
        return np.asarray(self.limit_s / self.period_s - 1)

    @property
    def physical(self) -> NDArray[np.bool_]:
        """Whether each row is allowed if SLOs of groups are ignored, shape (R,). A new group must still keep the job's own SLO."""
        return np.asarray((self.reason == FEASIBLE) | ((self.reason == SLO) & (self.group >= 0)))

    @property
    def is_group(self) -> NDArray[np.bool_]:
        """Whether each row represents a group that the job cannot join, shape (R,)."""
        return np.asarray(self.new_nodes == ANY_NODES)

    def own_first(self) -> Ints:
        """Return the numbers of all rows, with that of the new group in shape 0 first, shape (R,).

        This is the order of the actions in the placement environment.
        """
        own = (self.group < 0) & (self.shape == 0)
        return np.concatenate([np.flatnonzero(own), np.flatnonzero(~own)])

    def placement(self, row: int) -> Placement:
        """Return the placement of a row."""
        nodes = tuple(int(node) for node in self.nodes[row] if node >= 0)
        new_nodes, shape = int(self.new_nodes[row]), int(self.shape[row])
        if self.group[row] < 0:
            return Placement(None, (), new_nodes, int(self.training_nodes[row]), shape=shape)
        return Placement(int(self.group[row]), nodes, new_nodes, shape=shape)


class _Buffer(local):
    """Output of `enumerate_candidates`, enlarged on overflow. Each thread has its own, because a service looks ahead in one."""

    rows: Records = None


_buffer = _Buffer()


def _fill(view: View, row: int, only_improving: bool, prune: bool) -> Records:
    """Return the candidates of the job in a row. They are valid until the next call."""
    rows, nodes = _buffer.rows, view.jobs["pins"].shape[1]
    if rows is None or rows.dtype["nodes"].shape[0] != nodes:
        rows = _buffer.rows = np.zeros(256 if rows is None else len(rows), dtype=candidate_type(nodes))
    while True:
        count: int = enumerate_candidates(view, row, only_improving, prune, rows)
        if count <= len(rows):
            return rows[:count]
        rows = _buffer.rows = np.zeros(2 * count, dtype=rows.dtype)


def candidates(state: State, job_id: str, order: Ints | None = None) -> CandidateTable:
    """Enumerate the candidates of a waiting job, or those of a running job outside its current group.

    Args:
        state: State of the cluster.
        job_id: Id of the job.
        order: Rows of the groups to examine, in order of creation, or None for all groups.
    """
    view = state.view if order is None else state.view._replace(order=order)
    rows = _fill(view, state.row(job_id), only_improving=False, prune=False)
    jobs, groups = view.jobs, view.groups
    shape = rows["of_shape"].copy()
    shape_row = int(jobs["first_shape"][state.row(job_id)]) + shape
    group_row = rows["group"]
    new = group_row < 0
    period_s = rows["period_s"].copy()
    load_s = cycle_s = np.zeros(len(rows))
    if state.tables.order.size:
        load_s, cycle_s = (np.where(new, 0.0, groups[name][group_row]) for name in ("load_s", "cycle_s"))
        saturated = ~new & (load_s >= cycle_s * (1 - TOLERANCE))
        group_id = np.where(new, -1, groups["id"][group_row])
    else:
        saturated, group_id = np.zeros(len(rows), dtype=bool), np.full(len(rows), -1)
    return CandidateTable(
        job_id=job_id,
        group=group_id,
        shape=shape,
        new_nodes=rows["new_nodes"].copy(),
        nodes=rows["nodes"][:, : int(jobs["rollout_nodes"][shape_row].max())].copy(),
        usd_per_hour=rows["usd"].copy(),
        period_s=period_s,
        reason=rows["reason"].copy(),
        load_s=load_s,
        cycle_s=cycle_s,
        saturated=saturated,
        limit_s=rows["limit_s"].copy(),
        training_nodes=jobs["training_nodes"][shape_row],
    )


def cheapest(state: State, job_id: str, prune: bool) -> Placement | None:
    """Return Algorithm 1's choice, the first of the cheapest feasible candidates, or None if there is none.

    This is the argmin over `candidates` without building the table. The search stops in a group at the first row that fits, and
    skips a group none of whose rows can be cheaper than the best so far.

    Args:
        state: State of the cluster.
        job_id: Id of the job.
        prune: Whether to skip saturated groups, as in the paper.
    """
    rows = _fill(state.view, state.row(job_id), only_improving=True, prune=prune)
    if not len(rows):
        return None
    best = rows[-1]
    group, new_nodes, shape = int(best["group"]), int(best["new_nodes"]), int(best["of_shape"])
    if group < 0:
        row = state.tables.shape_rows(state.row(job_id))[shape]
        return Placement(None, (), new_nodes, int(state.view.jobs["training_nodes"][row]), shape=shape)
    nodes = tuple(node for node in best["nodes"].tolist() if node >= 0)
    return Placement(int(state.view.groups["id"][group]), nodes, new_nodes, shape=shape)


def fits(view: View, row: int) -> bool:
    """Return whether a job without a place has a feasible candidate.

    Args:
        view: Tables of the cluster.
        row: Row of the job.
    """
    return len(_fill(view, row, only_improving=True, prune=False)) > 0


class ConsideredGroups(NamedTuple):
    """The part of a large state that one decision looks at, so that its cost does not grow with the cluster.

    Attributes:
        positions: Positions of the part's groups in `state.tables.order`, ascending. All groups if the state is small.
        cheapest_placement: Cheapest placement of the arriving job in the whole cluster, whose group is in the part. None if the
            part is the whole state, if there is no such placement, or without an arriving job.
    """

    positions: Ints
    cheapest_placement: Placement | None


def part_of(state: State, most: int, newcomer: str | None = None) -> ConsideredGroups:
    """Choose at most `most` groups. The choice varies from event to event, but is the same for equal states.

    `rollmux_env.kernel.lns` describes the choice.

    Args:
        state: State of the cluster.
        most: Largest number of groups.
        newcomer: Id of a waiting job, or None.
    """
    positions = np.arange(state.tables.order.size)
    if positions.size <= most:
        return ConsideredGroups(positions, None)
    row = group = NOWHERE
    placement = None
    if newcomer is not None:
        row, placement = state.row(newcomer), cheapest(state, newcomer, prune=False)
        if placement is not None and placement.group is not None:
            group = state.tables.group_rows.get(placement.group, NOWHERE)
    rng = np.random.default_rng(state.arrived + state.departed)
    return ConsideredGroups(positions[: choose_part(state.view, row, group, rng, positions[:most])], placement)
