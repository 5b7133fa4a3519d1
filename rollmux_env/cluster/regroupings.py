"""The environments' rows of a chance to move jobs, for a policy that scores them in a `State`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.plan import Move, Plan
from rollmux_env.cluster.state import State
from rollmux_env.kernel.features import CANDIDATE_FEATURES, CLUSTER_FEATURES, JOB_FEATURES, MOVE_FEATURES, cluster_features
from rollmux_env.kernel.horizons import present_rates, stays_table, work_price
from rollmux_env.kernel.looks import look_at_moves
from rollmux_env.kernel.regroupings import choose_groups
from rollmux_env.kernel.rows import GROUPS_MOST, MOVES_MOST, NEW_GROUP, choice_type, move_space
from rollmux_env.kernel.stream import Records, group_records, job_records


class Regroupings(NamedTuple):
    """What may be done after an event: rows as the environments show them with `moves=True`, of A choices.

    Attributes:
        plans: of each row, its moves; the first row is `stop`, with none.
        job, candidates, cluster: (F,), (A, F) and (F,) features, as `rollmux_env.kernel.features` names them.
        feasible: (A,) whether a row keeps every SLO; with `shield` all do.
        truncated: whether there were more rows.
    """

    plans: tuple[Plan, ...]
    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]
    feasible: NDArray[np.bool_]
    truncated: bool


def regroupings(state: State, first_s: float, known_stays: bool = True, limit: int = 32, shield: bool = True) -> Regroupings:
    """The rows with the greatest gain, and `stop`.

    All running jobs are looked at, or in a large cluster those of the groups that `rollmux_env.kernel.regroupings.choose_groups`
    chooses. After a row has been carried out the next rows are of the state that it leads to: jobs that were placed or moved in
    this instant stay where they are.

    Args:
        first_s: when the first job of all arrived, seconds.
        known_stays: whether it is known when jobs leave.
        limit: most rows, `stop` included.
        shield: rows that break an SLO are left out.
    """
    looked = np.zeros(GROUPS_MOST, dtype=np.int64)
    looked = looked[: choose_groups(state.jobs, state.groups, state.order, state.limits, state.now_s, looked)]
    jobs, groups, rows = _excerpt(state, looked)
    space = move_space(groups, limit - 1, jobs.dtype["pins"].shape[0])
    choices = np.zeros(limit, dtype=choice_type(jobs.dtype["pins"].shape[0]))
    candidates = np.zeros((limit, len(CANDIDATE_FEATURES) + len(MOVE_FEATURES)), dtype=np.float32)
    cluster = np.zeros(len(CLUSTER_FEATURES), dtype=np.float32)
    nodes = state.rollout_nodes, state.training_nodes
    waiting = len(state.waiting)
    limits, now_s = state.limits, state.now_s
    cluster_features(state.jobs, state.groups, state.order, limits, now_s, first_s, *nodes, waiting, True, cluster)
    rates = present_rates(state.jobs, state.groups, state.order, limits)
    count, there = look_at_moves(
        jobs,
        groups,
        np.arange(looked.size),
        limits,
        stays_table(len(jobs)),
        work_price(rates),
        rates[1] / max(rates[3], 1),
        *nodes,
        shield,
        state.cluster.migration_s,
        now_s,
        known_stays,
        space,
        choices,
        candidates,
    )
    ids = [state.job_id(row) for row in rows.tolist()]
    plans = tuple(
        tuple(Move(ids[job], placement) for job, placement in placements(choice, jobs, groups)) for choice in choices[: count + 1]
    )
    job = np.zeros(len(JOB_FEATURES), dtype=np.float32)
    return Regroupings(plans, job, candidates[: count + 1], cluster, choices["feasible"][: count + 1] == 1, there > count)


def placements(choice: Records, jobs: Records, groups: Records) -> Iterator[tuple[int, Placement]]:
    """Job rows of a choice's moves, and where they go, in order."""
    for k in range(int(choice["n_moves"])):
        job, group, new_nodes = (int(choice[name][k]) for name in ("job", "group", "new_nodes"))
        if group == NEW_GROUP:
            yield job, Placement(None, (), new_nodes, int(jobs["training_nodes"][job]))
        else:
            nodes = tuple(int(node) for node in choice["nodes"][k] if node >= 0)
            yield job, Placement(int(groups["id"][group]), nodes, new_nodes)


def _excerpt(state: State, looked: NDArray[np.int64]) -> tuple[Records, Records, NDArray[np.int64]]:
    """These groups and their members as records of the environments' types, and the members' rows in the state."""
    parts = [state.groups.members[row, : state.groups.n_members[row]] for row in looked]
    rows = np.concatenate([*parts, np.zeros(0, dtype=np.int64)])
    jobs = job_records((max(1, rows.size),), state.jobs.pins.shape[1], state.jobs.rescale_s.shape[1])
    widest = int(state.jobs.rollout_nodes[rows].max(initial=1))
    members = min(state.limits.group_size_max, max((len(part) for part in parts), default=1) + MOVES_MOST)
    groups = group_records((max(1, looked.size),), members, widest)
    for records, columns, which in ((jobs, state.jobs, rows), (groups, state.groups, looked)):
        for name, column in columns._asdict().items():
            values = column[which]
            if values.ndim == 1:
                records[name][: which.size] = values
            else:
                width = min(values.shape[1], records[name].shape[1])
                records[name][: which.size, :width] = values[:, :width]
    at = 0
    for group, part in enumerate(parts):
        jobs["group"][at : at + len(part)] = group
        groups["members"][group, : len(part)] = np.arange(at, at + len(part))
        at += len(part)
    if state.observed:
        groups["since_s"] = state.now_s
    for row in [state.row(job_id) for job_id in state.resuming(np.inf)]:
        jobs["paused_until_s"][: rows.size][rows == row] = max(state.now_s, float(state.jobs.paused_until_s[row]))
    return jobs, groups, rows
