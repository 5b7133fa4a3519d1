"""The environments' features of a decision, for a policy that scores the candidate table of a `State`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.candidates import CandidateTable
from rollmux_env.cluster.state import State
from rollmux_env.kernel.features import CANDIDATE_FEATURES, CLUSTER_FEATURES, JOB_FEATURES
from rollmux_env.kernel.looks import features_of_table, make_desk
from rollmux_env.kernel.tables import Ints


class Features(NamedTuple):
    """What the environments show of a decision: `rollmux_env.kernel.features` names the columns.

    Attributes:
        job: (F,). candidates: (R, F), of the rows that were asked for; zeros for groups that are out as a whole. cluster: (F,).
    """

    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]


def features(state: State, table: CandidateTable, first_s: float, known_stays: bool = True, rows: Ints | None = None) -> Features:
    """Features of the places of a waiting job.

    Args:
        table: all its candidates.
        first_s: when the first job of all arrived, seconds.
        known_stays: whether it is known when jobs leave.
        rows: (R,) of the table, in this order; all without it.
    """
    rows = np.arange(len(table)) if rows is None else rows
    job = state.job(table.job_id)
    seen = Features(
        np.zeros(len(JOB_FEATURES), dtype=np.float32),
        np.zeros((rows.size, len(CANDIDATE_FEATURES)), dtype=np.float32),
        np.zeros(len(CLUSTER_FEATURES), dtype=np.float32),
    )
    group = np.array([-1 if number < 0 else state.group_row(int(number)) for number in table.group[rows]], dtype=np.int64)
    features_of_table(
        state.jobs,
        state.groups,
        state.order,
        state.limits,
        state.now_s,
        first_s,
        state.rollout_nodes,
        state.training_nodes,
        len(state.waiting),
        known_stays,
        np.inf if job.duration_s is None else job.duration_s,
        np.inf if job.iterations is None else float(job.iterations),
        state.row(table.job_id),
        group,
        table.new_nodes[rows],
        table.nodes[rows],
        table.usd_per_hour[rows],
        table.period_s[rows],
        make_desk(len(state.jobs.group), state.groups.node_number.shape[1]),
        seen.job,
        seen.candidates,
        seen.cluster,
    )
    return seen
