"""The choices to move running jobs, as the environments offer them, for a policy that scores them in a `State`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.plan import Move, Plan
from rollmux_env.cluster.state import State
from rollmux_env.kernel.feature_tables import features_of_moves
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    CLUSTER_FEATURES,
    JOB_FEATURES,
    MOVE_FEATURES,
    SHAPE_FEATURES,
    cluster_features,
)
from rollmux_env.kernel.membership import shape_row
from rollmux_env.kernel.neighbourhood.enumerate import choose_groups
from rollmux_env.kernel.neighbourhood.table import GROUPS_MOST, MOVES_MOST, NEW_GROUP, choice_type, make_scratch
from rollmux_env.kernel.tables import Records, begin_with, group_table, group_width, job_table, rows_of_shapes
from rollmux_env.kernel.valuation import make_valuation, present_rates, work_price

_COLUMNS = len(CANDIDATE_FEATURES + MOVE_FEATURES + SHAPE_FEATURES)


class Plans(Sequence[Plan]):
    """Plan of each row, built on access. The first row is `stop`, whose plan is empty.

    Args:
        ids: Id of each job, by row of `jobs`.
        choices: Records of the rows, shape (A,).
        jobs: Job table to which the records refer.
        groups: Group table to which the records refer.
    """

    def __init__(self, ids: list[str], choices: Records, jobs: Records, groups: Records) -> None:
        self._ids, self._choices, self._jobs, self._groups = ids, choices, jobs, groups

    def __len__(self) -> int:
        return len(self._choices)

    def __getitem__(self, row: int) -> Plan:  # type: ignore[override]
        moves = placements(self._choices[row], self._jobs, self._groups)  # its IndexError ends an iteration over the rows
        return tuple(Move(self._ids[job], placement) for job, placement in moves)


class Regroupings(NamedTuple):
    """The A choices to move running jobs after an event, one per row, as the environments with `moves=True` offer them.

    `rollmux_env.kernel.features` names the features; those of shapes come last.

    Attributes:
        plans: Plan of each row.
        job: Features of the job, which are zero here, shape (F,).
        candidates: Features of the rows, shape (A, F).
        cluster: Features of the cluster, shape (F,).
        feasible: Whether each row keeps every SLO, shape (A,). With `shield` all rows do.
        truncated: Whether there were more rows than `limit`.
    """

    plans: Plans
    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]
    feasible: NDArray[np.bool_]
    truncated: bool


def regroupings(
    state: State, first_s: float, known_stays: bool = True, limit: int = 32, shield: bool = True, groups_most: int = GROUPS_MOST
) -> Regroupings:
    """Return the choices with the greatest gain, and `stop`, which moves no job.

    All running jobs are considered. In a large cluster they are those of the groups that
    `rollmux_env.kernel.neighbourhood.enumerate.choose_groups` chooses. After a row has been carried out, the next rows start from
    the resulting state. Jobs that were placed or moved in this instant stay where they are.

    Args:
        state: State of the cluster.
        first_s: Time at which the first job arrived, seconds.
        known_stays: Whether the features show when jobs will leave.
        limit: Largest number of rows, including `stop`.
        shield: Whether to leave out rows that break an SLO.
        groups_most: Number of groups to consider, at most GROUPS_MOST. The environments use GROUPS_MOST.
    """
    whole = state.view
    looked = np.zeros(groups_most, dtype=np.int64)
    looked = looked[: choose_groups(whole, looked)]
    jobs, groups, rows = _excerpt(state, looked)
    view = whole._replace(jobs=jobs, groups=groups, order=np.arange(looked.size))
    nodes = jobs.dtype["pins"].shape[0]
    choices = np.zeros(limit, dtype=choice_type(nodes))
    candidates = np.zeros((limit, _COLUMNS), dtype=np.float32)
    cluster = np.zeros(len(CLUSTER_FEATURES), dtype=np.float32)
    cluster_features(whole, first_s, True, cluster)
    rates = present_rates(whole)
    valuation = make_valuation(len(jobs), groups.dtype["node_number"].shape[0], nodes)
    valuation.terms[0] = work_price(rates), state.cluster.migration_s / 3600.0, shield
    scratch = make_scratch(jobs, groups, limit - 1)
    unit_usd = rates[1] / max(rates[3], 1)
    count, total = features_of_moves(view, known_stays, unit_usd, valuation, scratch, choices, candidates)
    ids = [state.tables.job_id(row) for row in rows.tolist()]
    plans = Plans(ids, choices[: count + 1], jobs, groups)
    job = np.zeros(len(JOB_FEATURES), dtype=np.float32)
    return Regroupings(plans, job, candidates[: count + 1], cluster, choices["feasible"][: count + 1] == 1, total > count)


def placements(choice: Records, jobs: Records, groups: Records) -> Iterator[tuple[int, Placement]]:
    """Yield the job row and the placement of each move of a choice, in order."""
    for k in range(int(choice["n_moves"])):
        job, group, new_nodes = (int(choice[name][k]) for name in ("job", "group", "new_nodes"))
        row = shape_row(jobs[job], job, int(choice["of_shape"][k]))
        if group == NEW_GROUP:
            yield job, Placement(None, (), new_nodes, int(jobs["training_nodes"][row]), shape=int(jobs["of_shape"][row]))
        else:
            nodes = tuple(int(node) for node in choice["nodes"][k] if node >= 0)
            yield job, Placement(int(groups["id"][group]), nodes, new_nodes, shape=int(jobs["of_shape"][row]))


def _excerpt(state: State, looked: NDArray[np.int64]) -> tuple[Records, Records, NDArray[np.int64]]:
    """Copy groups with their members and, after these, the members' shapes. Also return the members' rows in the state."""
    parts = [state.tables.groups.members[row, : state.tables.groups.n_members[row]] for row in looked]
    rows = np.concatenate([*parts, np.zeros(0, dtype=np.int64)])
    table = state.view
    own = table.jobs.take(rows)
    of_shapes, of_job, starts = rows_of_shapes(own)
    shapes = table.jobs.take(of_shapes)
    widest = max(int(part["rollout_nodes"].max(initial=1)) for part in (own, shapes))
    members = min(state.limits.group_size_max, max((len(part) for part in parts), default=1) + MOVES_MOST)
    jobs = job_table(max(1, rows.size + shapes.size), table.jobs["pins"].shape[1], table.jobs["rescale_s"].shape[1])
    width, long = group_width(members, widest)
    groups = group_table(max(1, looked.size), width, max(long, int(table.groups["n_nodes"][looked].max(initial=1))))
    begin_with(jobs, own)
    begin_with(jobs[rows.size :], shapes)
    jobs["first_shape"][: rows.size] = np.where(own["more_shapes"] > 0, rows.size + starts, np.arange(rows.size))
    jobs["first_shape"][rows.size : rows.size + shapes.size] = rows.size + starts[of_job]
    begin_with(groups, table.groups.take(looked))
    at = 0
    for group, part in enumerate(parts):
        jobs["group"][at : at + len(part)] = group
        groups["members"][group, : len(part)] = np.arange(at, at + len(part))
        at += len(part)
    if state.observed:
        groups["settled_s"] = state.now_s
    for row in [state.row(job_id) for job_id in state.pauses.ending(np.inf)]:
        jobs["paused_until_s"][: rows.size][rows == row] = max(state.now_s, float(state.tables.jobs.paused_until_s[row]))
    return jobs, groups, rows
