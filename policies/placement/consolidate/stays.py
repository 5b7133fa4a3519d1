"""How long jobs will still stay: read from their files, or estimated from departures.

The estimate is the hazard of leaving by age: departures over exposure, in buckets of ages that double in width. Running
jobs count for their exposure so far (the actuarial form of the Kaplan-Meier estimator, 1958). Every bucket has a gamma
prior of one departure in `_PRIOR_H` hours. Ages are hours for jobs with a fixed stay, and work-hours (T_solo / 3600 per
iteration) for jobs with a number of iterations. The kind of a job's stay counts as known, its length does not.
"""

from __future__ import annotations

import math

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import Floats

_PRIOR_H = 24.0
_EDGES_H = np.array([0.0, *(2.0**k for k in range(9))])  # 0, 1, 2, 4, ..., 256
_WIDTH_H = np.append(np.diff(_EDGES_H), np.inf)


def is_fixed(state: State, rows: list[int]) -> np.ndarray:
    """(n,) whether each job stays for a time, not for a number of iterations."""
    return np.array([state.job(state.job_id(row)).iterations is None for row in rows], dtype=bool)


def known_stays(state: State, rows: list[int]) -> tuple[Floats, Floats]:
    """What the jobs' files say.

    Returns:
        (n,) hours that jobs of fixed stay still have, and (n,) iterations that others still have to do; else infinite.
    """
    stay_h = np.full(len(rows), np.inf)
    iterations = np.full(len(rows), np.inf)
    for k, row in enumerate(rows):
        job_id = state.job_id(row)
        job = state.job(job_id)
        if job.iterations is not None:
            iterations[k] = max(0.0, job.iterations - state.iterations_done(job_id))
        elif job.duration_s is not None:
            leaves_s = float(state.jobs.leaves_s[row]) if state.is_running(job_id) else state.now_s + job.duration_s
            stay_h[k] = max(0.0, leaves_s - state.now_s) / 3600
    return stay_h, iterations


class LearnedStays:
    """What is learned of stays, to be shown the state at every decision."""

    def __init__(self) -> None:
        self._exposure_h = np.zeros((2, _EDGES_H.size))  # of those that have left; 0: iterations, 1: fixed
        self._departures = np.zeros((2, _EDGES_H.size))
        self._previous_rows: set[int] = set()  # rows when last looked

    def look(self, state: State, rows: list[int], horizon_h: float) -> tuple[Floats, Floats]:
        """Learn from the jobs that have left since the last time, and estimate.

        Args:
            rows: of the running jobs, and of one that waits.
            horizon_h: dollars are discounted by exp(-t / horizon).

        Returns:
            As `known_stays`: of each job the stay whose discounted length is the one expected of it, given its age.
        """
        fixed = is_fixed(state, rows)
        ages_h = np.array([_age_h(state, row, is_time) for row, is_time in zip(rows, fixed, strict=True)])
        gone = [row for row in sorted(self._previous_rows - set(rows)) if state.job_id(row) not in state.waiting]
        for row, is_time in zip(gone, is_fixed(state, gone), strict=True):
            # A departure is seen in the instant in which it happens, and its job's columns stay as they were.
            age_h = _age_h(state, row, is_time)
            self._exposure_h[int(is_time)] += _exposure_h(np.array([age_h]))
            self._departures[int(is_time), np.searchsorted(_EDGES_H, age_h, side="right") - 1] += 1
        self._previous_rows = set(rows)
        stay_h = np.full(len(rows), np.inf)
        iterations = np.full(len(rows), np.inf)
        for kind in (0, 1):
            at = np.flatnonzero(fixed == bool(kind))
            exposure_h = self._exposure_h[kind] + _exposure_h(ages_h[at])
            hazard = (self._departures[kind] + 1) / (exposure_h + _PRIOR_H)
            left_h = np.array([_expected_h(hazard, age_h, horizon_h) for age_h in ages_h[at]])
            if kind:
                stay_h[at] = left_h
            else:
                iterations[at] = left_h * 3600 / state.jobs.solo_s[np.array(rows, np.int64)[at]]
        return stay_h, iterations


def _age_h(state: State, row: int, fixed: bool) -> float:
    job_id = state.job_id(row)
    if not fixed:
        return float(state.iterations_done(job_id) * state.jobs.solo_s[row] / 3600)
    return 0.0 if job_id in state.waiting else float(state.now_s - state.jobs.admitted_s[row]) / 3600


def _exposure_h(ages_h: Floats) -> Floats:
    """Hours that jobs of these ages have spent in each bucket."""
    return np.asarray(np.clip(ages_h[:, None] - _EDGES_H, 0.0, _WIDTH_H).sum(axis=0))


def _expected_h(hazard: Floats, age_h: float, horizon_h: float) -> float:
    """The stay L with discounted length horizon * (1 - exp(-L / horizon)) as expected of a job of that age, hours."""
    discounted, reaches = 0.0, 1.0
    for k in range(int(np.searchsorted(_EDGES_H, age_h, side="right")) - 1, _EDGES_H.size):
        rate = float(hazard[k]) + 1 / horizon_h
        falls = -math.expm1(-rate * (_EDGES_H[k] + _WIDTH_H[k] - max(age_h, float(_EDGES_H[k]))))
        discounted += reaches * falls / rate
        reaches *= 1 - falls
    share = discounted / horizon_h
    return -horizon_h * math.log1p(-share) if share < 1 else math.inf
