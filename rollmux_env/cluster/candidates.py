"""The candidate table: the action space of placement, as columns.

Algorithm 1 is an argmin over it, a learned policy scores it, an action mask is its feasibility.
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
from rollmux_env.kernel.tables import NOWHERE, TOLERANCE, Floats, Ints, Records

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
    """Ways to place one job, a row each, in Algorithm 1's order; the last are a new group, in each shape.

    Attributes:
        job_id: the job.
        group: (R,) id of the group, -1 for a new one.
        shape: (R,) number of the job's shape.
        new_nodes: (R,) rollout nodes to add; -1 where the group as a whole is out.
        nodes: (R, N) numbers of the existing rollout nodes, padded with -1.
        usd_per_hour: (R,) marginal cost, $/h; nan where the group as a whole is out.
        period_s: (R,) period of the group with the job in it, seconds; nan likewise.
        reason: (R,) index into `REASONS`: 0, or the first reason against it.
        saturated: (R,) whether the group's T_load is at least its T_cycle without the job.
        limit_s: (R,) longest period that keeps every SLO, and where switches are planned every promise; nan likewise.
        training_nodes: (R,) training nodes that the shape asks for: those of a new group.
    """

    job_id: str
    group: Ints
    shape: Ints
    new_nodes: Ints
    nodes: Ints
    usd_per_hour: Floats
    period_s: Floats
    reason: Ints
    saturated: NDArray[np.bool_]
    limit_s: Floats
    training_nodes: Ints

    def __len__(self) -> int:
        return int(self.group.shape[0])

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """(R,) rows that break nothing."""
        return np.asarray(self.reason == FEASIBLE)

    @property
    def slack(self) -> Floats:
        """(R,) limit over period, less 1: below 0 an SLO is broken; nan where the group as a whole is out."""
        return np.asarray(self.limit_s / self.period_s - 1)

    @property
    def physical(self) -> NDArray[np.bool_]:
        """(R,) rows that break nothing but SLOs, and open no group in which the job alone would break its own."""
        return np.asarray((self.reason == FEASIBLE) | ((self.reason == SLO) & (self.group >= 0)))

    @property
    def is_group(self) -> NDArray[np.bool_]:
        """(R,) rows that stand for a group as a whole, which is out."""
        return np.asarray(self.new_nodes == ANY_NODES)

    def own_first(self) -> Ints:
        """(R,) rows with the new group for the job as it is written before all others, as the environments show them."""
        own = (self.group < 0) & (self.shape == 0)
        return np.concatenate([np.flatnonzero(own), np.flatnonzero(~own)])

    def placement(self, row: int) -> Placement:
        """The placement of a row."""
        nodes = tuple(int(node) for node in self.nodes[row] if node >= 0)
        new_nodes, shape = int(self.new_nodes[row]), int(self.shape[row])
        if self.group[row] < 0:
            return Placement(None, (), new_nodes, int(self.training_nodes[row]), shape=shape)
        return Placement(int(self.group[row]), nodes, new_nodes, shape=shape)


class _Buffer(local):
    """What `enumerate_candidates` writes, made larger when it overflows: a thread's own, since a service looks ahead in one."""

    rows: Records = None


_buffer = _Buffer()


def _fill(state: State, job_id: str, only_improving: bool, prune: bool, order: Ints | None = None) -> Records:
    """The rows of a job's candidates, until the next call."""
    view, rows = state.view if order is None else state.view._replace(order=order), _buffer.rows
    nodes = view.jobs["pins"].shape[1]
    if rows is None or rows.dtype["nodes"].shape[0] != nodes:
        rows = _buffer.rows = np.zeros(256 if rows is None else len(rows), dtype=candidate_type(nodes))
    while True:
        count: int = enumerate_candidates(view, state.row(job_id), only_improving, prune, rows)
        if count <= len(rows):
            return rows[:count]
        rows = _buffer.rows = np.zeros(2 * count, dtype=rows.dtype)


def candidates(state: State, job_id: str, order: Ints | None = None) -> CandidateTable:
    """Every candidate of a waiting job; of a running one, every candidate outside its own group.

    Args:
        order: rows of the groups that are looked at, in order of creation; all of them without it.
    """
    rows = _fill(state, job_id, only_improving=False, prune=False, order=order)
    view = state.view
    jobs, groups = view.jobs, view.groups
    shape = rows["of_shape"].copy()
    shape_row = int(jobs["first_shape"][state.row(job_id)]) + shape
    group_row = rows["group"]
    new = group_row < 0
    period_s = rows["period_s"].copy()
    if state.tables.order.size:
        saturated = ~new & (groups["load_s"][group_row] >= groups["cycle_s"][group_row] * (1 - TOLERANCE))
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
        saturated=saturated,
        limit_s=rows["limit_s"].copy(),
        training_nodes=jobs["training_nodes"][shape_row],
    )


def cheapest(state: State, job_id: str, prune: bool) -> Placement | None:
    """Algorithm 1's choice: the first of the cheapest feasible candidates, None where there is none.

    The argmin over `candidates` without building them: the search stops in a group at the first row that fits and leaves a group
    out where no row of it can be cheaper than the best so far.

    Args:
        prune: leave saturated groups out, as printed in the paper.
    """
    rows = _fill(state, job_id, only_improving=True, prune=prune)
    if not len(rows):
        return None
    best = rows[-1]
    group, new_nodes, shape = int(best["group"]), int(best["new_nodes"]), int(best["of_shape"])
    if group < 0:
        row = state.tables.shape_rows(state.row(job_id))[shape]
        return Placement(None, (), new_nodes, int(state.view.jobs["training_nodes"][row]), shape=shape)
    nodes = tuple(node for node in best["nodes"].tolist() if node >= 0)
    return Placement(int(state.view.groups["id"][group]), nodes, new_nodes, shape=shape)


class Part(NamedTuple):
    """The groups of a large state that a decision looks at, so that it costs what it may change and not what there is.

    Attributes:
        positions: of the groups in `state.tables.order`, ascending; all of them where there are no more than are asked for.
        host: the cheapest place of a newcomer in the whole cluster, whose group is one of them; None where all are, where there is
            no such place, or no newcomer.
    """

    positions: Ints
    host: Placement | None


def part_of(state: State, most: int, newcomer: str | None = None) -> Part:
    """At most so many groups, others at every event; equal states give equal parts. See `rollmux_env.kernel.lns`.

    Args:
        newcomer: a job that waits for a place.
    """
    positions = np.arange(state.tables.order.size)
    if positions.size <= most:
        return Part(positions, None)
    row = group = NOWHERE
    host = None
    if newcomer is not None:
        row, host = state.row(newcomer), cheapest(state, newcomer, prune=False)
        if host is not None and host.group is not None and (known := state.tables.group_rows.get(host.group)) is not None:
            group = known
    rng = np.random.default_rng(state.arrived + state.departed)
    return Part(positions[: choose_part(state.view, row, group, rng, positions[:most])], host)
