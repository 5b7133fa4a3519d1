"""The state as policies see it where owners have stated the lengths of their jobs (`estimate`)."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.apply import keep_promises
from rollmux_env.cluster.remaining import iterations_done
from rollmux_env.cluster.state import State
from rollmux_env.kernel.membership import refresh
from rollmux_env.kernel.tables import NOWHERE


def as_estimated(state: State) -> State:
    """Return a copy of a state in which jobs have their estimated iterations, or the state itself if no job has an estimate.

    A job that has done more than its estimate has nothing left.
    """
    estimated = state.tables.estimated
    if not estimated:
        return state
    twin = state.copy()
    tables, twin.tables.estimated = twin.tables, {}
    jobs, groups = tables.job_records, tables.group_records
    rows = np.fromiter(estimated, np.int64, len(estimated))
    stated = np.fromiter((job.iterations or np.inf for job in estimated.values()), float, rows.size)
    jobs["iterations"][rows] = np.maximum(stated, iterations_done(state, rows))
    for row, job in estimated.items():
        tables.models[row] = job
    for group in {*jobs["group"][rows].tolist()} - {NOWHERE}:
        refresh(jobs, groups, group)
        tables.departs_s[group] = groups["departs_s"][group]
    keep_promises(twin)
    return twin
