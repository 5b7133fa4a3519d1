"""Baselines: `solo`, `colocated`, `random`, `most-idle`, `first-fit`, and the yardstick `naive`.

`solo` (standard disaggregation) and `colocated` (as in veRL) give every job separate nodes. `random` and `most-idle` share nodes
but ignore SLOs (paper, section 6.5). They respect physical limits: group size, training nodes, host memory and `max_nodes`. They
add rollout nodes to a group only if too few existing nodes have room.
"""

from __future__ import annotations

import numpy as np

from policies.api import ArrivalPolicy, CandidateTable, Placement, State, candidates, isolated
from policies.placement.algorithm1 import Algorithm1
from policies.placement.weighted_progress import TimePrice
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.replay.outcome import Outcome, outcome
from rollmux_env.replay.unordered import replay_unordered
from rollmux_env.scenario import Scenario


class Solo(ArrivalPolicy):
    """Placement policy that gives every job its own rollout and training nodes."""

    timeless = True  # whether a job has a place depends only on the free nodes

    def place(self, state: State, job: Job) -> Placement | None:
        """Return a new group for the job, or None if there are not enough nodes."""
        return _place_if_room(state, job, isolated(job, state.cluster))


class ColocatedJobs(ArrivalPolicy):
    """Placement policy that runs every job on its own training nodes, with rollout and training in turn.

    The nodes and phases are those of the job's `colocated` block. Without one they are `training.nodes` and the usual phases.
    Rollouts on training nodes may be slower than on rollout nodes, so SLOs can be broken.
    """

    keeps_slo = False

    def place(self, state: State, job: Job) -> Placement | None:
        """Return training nodes for the job alone, or None if there are not enough.

        Raises:
            InputError: The job's `colocated.nodes` exceed the pool, or the job is stale. On shared nodes its phases take turns, so
                staleness cannot help.
        """
        if job.staleness:
            raise InputError(f"job {job.id}: staleness: does not go with --policy colocated, where phases take turns on one pool")
        nodes = job.colocated.nodes if job.colocated else job.training.nodes
        pool = state.cluster.pools[job.training.pool]
        if pool.max_nodes is not None and nodes > pool.max_nodes:
            raise InputError(f"job {job.id}: colocated.nodes: {nodes} nodes; the {job.training.pool} pool has {pool.max_nodes}")
        return _place_if_room(state, job, Placement(None, training_nodes=nodes, colocated=True))


def _place_if_room(state: State, job: Job, placement: Placement) -> Placement | None:
    return placement if state.has_room({job.id: placement}) else None


class Random(ArrivalPolicy):
    """Placement policy that chooses uniformly among a new group and the groups with room, then among nodes of the group.

    Args:
        seed: Seed of the choices.
    """

    keeps_slo = False

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def place(self, state: State, job: Job) -> Placement | None:
        """Return a random physical placement, or None if there is none."""
        table = candidates(state, job.id)
        groups = np.unique(table.group[table.physical])
        if not groups.size:
            return None
        rows = _fewest_new_nodes(table, int(self._random.choice(groups)))
        return table.placement(int(self._random.choice(rows)))


class MostIdle(ArrivalPolicy):
    """Placement policy that chooses the group with the largest idle share, and its least loaded nodes.

    It opens a new group only if no group has room.
    """

    keeps_slo = False

    def place(self, state: State, job: Job) -> Placement | None:
        """Return the most idle placement, or None if there is none."""
        table = candidates(state, job.id)
        open_groups = np.unique(table.group[table.physical])
        if not open_groups.size:
            return None
        shared = [int(group) for group in open_groups if group >= 0]
        group = max(shared, key=lambda g: (idle_share(state, g), -g), default=-1)
        rows = _fewest_new_nodes(table, group)
        row = min(rows.tolist(), key=lambda r: (_load_s(state, table, r), r))
        return table.placement(row)


class FirstFit(ArrivalPolicy):
    """Placement policy that chooses the first placement that keeps every SLO, regardless of its cost.

    Groups are tried in order of their numbers, a new group last.

    Args:
        most_new_nodes: Largest number of rollout nodes that may be added to an existing group.
        time_usd: Dollars that an hour of a job's progress is worth (see `policies.placement.weighted_progress`). Above 0 the
            placement with the lowest price is taken instead of the first one.
        alpha: Exponent of the remaining length in the urgency of a job, for `time_usd`.
    """

    def __init__(self, most_new_nodes: int = 1, time_usd: float = 0.0, alpha: float = 0.5) -> None:
        if most_new_nodes < 0:
            raise ValueError(f"most_new_nodes must be at least 0, not {most_new_nodes}")
        self._most_new_nodes = most_new_nodes
        self._time = TimePrice(time_usd, alpha)

    def place(self, state: State, job: Job) -> Placement | None:
        """Return the first feasible placement, with `time_usd` the cheapest one, or None if there is none."""
        table = candidates(state, job.id)
        rows = np.flatnonzero(table.feasible & ((table.group < 0) | (table.new_nodes <= self._most_new_nodes)))
        if not rows.size:
            return None
        row = self._time.cheapest(state, table, rows) if self._time.usd else int(rows[0])
        return None if row is None else table.placement(row)


def idle_share(state: State, group_id: int) -> float:
    """Return the share of a group's node-seconds in one period during which no phase runs."""
    row = state.tables.group_rows.get(group_id)
    assert row is not None
    groups = state.tables.groups
    rollout_nodes, training_nodes = int(groups.n_nodes[row]), int(groups.training_nodes[row])
    busy_s = groups.node_load_s[row, :rollout_nodes].sum() + groups.training_load_s[row] * training_nodes
    return 1.0 - float(busy_s / (groups.period_s[row] * (rollout_nodes + training_nodes)))


def _fewest_new_nodes(table: CandidateTable, group: int) -> Ints:
    """Return the physical candidates of a group that add the fewest rollout nodes."""
    rows = np.flatnonzero(table.physical & (table.group == group))
    new_nodes = table.new_nodes[rows]
    return np.asarray(rows[new_nodes == new_nodes.min()])


def _load_s(state: State, table: CandidateTable, row: int) -> float:
    """Return the summed rollout seconds per period on the existing nodes that a candidate pins the job to."""
    group_row = state.tables.group_rows.get(int(table.group[row]))
    if group_row is None:
        return 0.0
    numbers = state.tables.groups.node_number[group_row, : state.tables.groups.n_nodes[group_row]]
    return float(state.tables.groups.node_load_s[group_row, : numbers.size][np.isin(numbers, table.nodes[row])].sum())


class Naive:
    """Placement policy that shares nodes as `rollmux` does, but runs every phase as soon as it is ready.

    `rollmux_env.replay.unordered` replays it.

    Args:
        prune: Whether to skip saturated groups, as in `Algorithm1`.
    """

    def __init__(self, prune: bool = True) -> None:
        self._planner = Algorithm1(prune=prune)

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure the result."""
        return outcome(replay_unordered(scenario, self._planner, check))
