"""The placement of OpenRL (gke-labs/open-rl), a service in which fine-tuning jobs share GPUs in turns.

The rule is that of `SelectClaim`, `claimLess` and `Strategy` in `scheduler/controller/internal/placement/placement.go` at 0ef0af34.
A claim is a bundle of GPUs whose workers are resident one at a time; here it is a group. Host memory is the only limit on the
workers of a claim, beside the cluster's own on the members of a group. SLOs, seconds and prices play no part.
"""

from __future__ import annotations

import numpy as np

from policies.api import ArrivalPolicy, CandidateTable, Placement, State, candidates
from rollmux_env.keys.job import Job

BINPACK, SPREAD = "binpack", "spread"


class OpenRL(ArrivalPolicy):
    """Placement policy that seats a job in the group with the fewest members, of those with room the one that was opened first.

    OpenRL takes the claim with the fewest owners, then the fewest workers, then the first name. A job is one owner with a worker
    for each phase, so the first two agree. Only workers on one device share, so a job of several nodes has a group of its own. A
    group never grows.

    Args:
        strategy: `binpack`, OpenRL's default, to open a new group only if no group has room, or `spread` to share only if there are
            no nodes for a new group.

    Raises:
        ValueError: The strategy is neither.
    """

    keeps_slo = False

    def __init__(self, strategy: str = BINPACK) -> None:
        if strategy not in (BINPACK, SPREAD):
            raise ValueError(f"strategy must be {BINPACK} or {SPREAD}, not {strategy}")
        self._shares_first = strategy == BINPACK

    def place(self, state: State, job: Job) -> Placement | None:
        """Return a seat in a group or nodes of the job's own, or None if there are neither."""
        table = candidates(state, job.id)
        own = np.flatnonzero(table.physical & (table.shape == 0) & (table.group < 0)).tolist()
        shared = _seats(state, job, table)
        rows = [*shared, *own] if self._shares_first else [*own, *shared]
        return table.placement(rows[0]) if rows else None


def _seats(state: State, job: Job, table: CandidateTable) -> list[int]:
    """Return the rows of groups of one node in each pool that the job can join as they are, in OpenRL's order."""
    if job.rollout.nodes > 1 or job.training.nodes > 1:
        return []
    groups, group_rows = state.tables.groups, state.tables.group_rows
    seats = []
    for row in np.flatnonzero(table.physical & (table.shape == 0) & (table.group >= 0) & (table.new_nodes == 0)).tolist():
        group = int(table.group[row])
        number = group_rows.get(group)
        assert number is not None
        if groups.n_nodes[number] == 1 and groups.training_nodes[number] == 1:
            seats.append((int(groups.n_members[number]), group, row))
    return [row for _, _, row in sorted(seats)]
