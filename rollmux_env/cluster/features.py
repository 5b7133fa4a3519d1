"""Features of a decision as in the environments, for a policy that scores the candidate table of a `State`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.candidates import CandidateTable
from rollmux_env.cluster.state import State
from rollmux_env.kernel.candidates import candidate_type
from rollmux_env.kernel.feature_tables import Names, features_of_places, make_workspace, observation_table
from rollmux_env.kernel.features import CANDIDATE_FEATURES, CLUSTER_FEATURES, JOB_FEATURES, SHAPE_FEATURES
from rollmux_env.kernel.tables import Ints


class Features(NamedTuple):
    """Observation of a placement decision. `rollmux_env.kernel.features` names the columns.

    Attributes:
        job: Features of the job, shape (F,).
        candidates: Features of the requested rows, zero for whole groups that the job cannot join, shape (R, F).
        cluster: Features of the cluster, shape (F,).
        shapes: The features `SHAPE_FEATURES` of the same rows, shape (R, F).
    """

    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]
    shapes: NDArray[np.float32]


def features(state: State, table: CandidateTable, first_s: float, known_stays: bool = True, rows: Ints | None = None) -> Features:
    """Compute the features of a waiting job's candidates.

    Args:
        state: State of the cluster.
        table: All candidates of the job.
        first_s: Time at which the very first job arrived, seconds.
        known_stays: Whether the features show when jobs will leave.
        rows: Rows of the table to compute, in this order, or None for all, shape (R,).
    """
    rows = np.arange(len(table)) if rows is None else rows
    view, job = state.view, state.row(table.job_id)
    shown = observation_table(1, rows.size, Names(JOB_FEATURES, CANDIDATE_FEATURES + SHAPE_FEATURES, CLUSTER_FEATURES))
    places = np.zeros(rows.size, dtype=candidate_type(view.jobs["pins"].shape[1]))
    places["group"] = [-1 if number < 0 else state.tables.group_rows.get(int(number)) for number in table.group[rows]]
    places["nodes"], places["of_shape"] = -1, table.shape[rows]
    places["nodes"][:, : table.nodes.shape[1]] = table.nodes[rows]
    places["new_nodes"], places["usd"], places["period_s"] = table.new_nodes[rows], table.usd_per_hour[rows], table.period_s[rows]
    features_of_places(view, known_stays, first_s, job, places, make_workspace(view.jobs, view.groups), shown)
    candidates, shapes = np.split(shown.candidates[0], [len(CANDIDATE_FEATURES)], axis=1)
    return Features(shown.job[0], candidates, shown.cluster[0], shapes)
