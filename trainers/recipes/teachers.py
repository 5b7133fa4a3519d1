"""Teachers for imitation: the policy `consolidate`, and the groups of the exact optimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from policies.placement.consolidate import Consolidate
from policies.placement.optimal.columns import ColumnPool
from policies.placement.optimal.grouping import Before, best_grouping
from policies.placement.planned import running_rows
from policies.placement.scorer import score
from rollmux_env.cluster.candidates import CandidateTable, candidates
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.features import Features, features
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import Scenario

Weights = dict[str, NDArray[np.float32]]
Teacher = Callable[[State, Arrived, CandidateTable], int | None]
"""Function that chooses a row of the candidate table for an arriving job, or None."""
Example = tuple[Features, int]
"""Features of the feasible rows, a new group first, and the position of the teacher's row among them."""


def consolidate_teacher() -> Teacher:
    """Return a teacher that places an arriving job where `consolidate` does, or None if that needs moves first."""
    policy = Consolidate()

    def place(state: State, event: Arrived, table: CandidateTable) -> int | None:
        plan = policy.decide(state, event)
        wanted = [action.placement for action in plan if isinstance(action, Place)]
        return next((int(row) for row in np.flatnonzero(table.feasible) if table.placement(int(row)) in wanted), None)

    return place


def optimum_teacher() -> Teacher:
    """Return a teacher that places an arriving job in the group most similar to its group in the optimum.

    The optimum is that of $ per work-hour over the current jobs. The similarity of two groups is the number of members of both over
    the number of members of either. A new group counts as a group of the job alone. Ties go to the cheapest placement.
    """
    pools: dict[int, ColumnPool] = {}
    before: list[Before] = []

    def place(state: State, event: Arrived, table: CandidateTable) -> int | None:
        pool = pools.setdefault(0, ColumnPool(state, all_periods=True))
        pool.state = state
        newcomer = state.row(event.job.id)
        pool.hold(sorted([*running_rows(state), newcomer]))
        best = best_grouping(pool, "work", None, before)
        if best is None:
            return None
        columns = best.columns.tolist()
        before[:] = [(pool.rows(column), pool.nodes[column]) for column in columns]
        wanted = next({*pool.rows(column)} for column in columns if newcomer in pool.rows(column))
        feasible = np.flatnonzero(table.feasible)

        def alike(row: int) -> float:
            members = {newcomer}
            if table.group[row] >= 0:
                group = state.tables.group_rows.get(int(table.group[row]))
                members |= {int(job) for job in state.tables.groups.members[group, : state.tables.groups.n_members[group]]}
            return len(members & wanted) / len(members | wanted)

        return max(feasible.tolist(), key=lambda row: (alike(row), -table.usd_per_hour[row]), default=None)

    return place


TEACHERS: dict[str, Callable[[], Teacher]] = {"consolidate": consolidate_teacher, "optimum": optimum_teacher}


def collect_examples(scenario: Scenario, teacher: Teacher, weights: Weights | None, most: int) -> list[Example]:
    """Play a stream without moves, and collect the teacher's placement of every job.

    Args:
        scenario: The stream.
        teacher: The teacher.
        weights: Weights of the network that places the jobs, or None to place them as the teacher does.
        most: Largest number of rows of an example: a new group, the teacher's row, and the cheapest others.
    """
    policy = _Student(teacher, weights, most)
    replay(scenario, policy)
    return policy.examples


class _Student:
    """Placement policy that follows a network, or the teacher without one, and records the teacher's choice in each decision."""

    keeps_slo = True

    def __init__(self, teacher: Teacher, weights: Weights | None, most: int) -> None:
        self.examples: list[Example] = []
        self._teacher, self._weights, self._most = teacher, weights, most

    def decide(self, state: State, event: Event) -> Plan:
        """Place an arriving job, and record the teacher's choice."""
        if not isinstance(event, Arrived):
            return ()
        job_id = event.job.id
        table = candidates(state, job_id)
        rows = table.own_first()  # the order of the environment
        rows = rows[table.feasible[rows]]
        if not rows.size:
            return (Wait(job_id),)
        answer = self._teacher(state, event, table)
        if rows.size > self._most:
            first = np.where((rows == answer) | (rows == rows[0]), -np.inf, table.usd_per_hour[rows])
            rows = rows[np.sort(np.argsort(first, kind="stable")[: self._most])]
        inputs = features(state, table, state.first_arrival_s, rows=rows)
        if answer is not None and rows.size > 1:
            self.examples.append((inputs, int(np.flatnonzero(rows == answer)[0])))
        chosen = answer
        if self._weights is not None:
            wide = self._weights["skip.weight"].size
            chosen = int(rows[np.argmax(score(self._weights, inputs.job, inputs.candidates[:, :wide], inputs.cluster))])
        if chosen is None:
            chosen = int(rows[np.argmin(table.usd_per_hour[rows])])
        return (Place(job_id, table.placement(chosen)),)
