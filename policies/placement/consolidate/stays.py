"""Remaining stays of jobs, read from their files or estimated from past departures.

The estimate is a hazard of leaving by age: departures divided by exposure, in buckets of ages that double in width. Running jobs
count with their exposure so far (the actuarial form of the estimator of Kaplan and Meier, 1958). Every bucket has a gamma prior of
one departure in `_PRIOR_H` hours. Ages are hours for jobs with a fixed stay, and work-hours (T_solo / 3600 per iteration) for jobs
with a number of iterations. The kind of a job's stay counts as known, its length does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.remaining import iterations_done
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import NOWHERE, Floats, Ints

_PRIOR_H = 24.0
_EDGES_H = np.array([0.0, *(2.0**k for k in range(9))])  # 0, 1, 2, 4, ..., 256
_WIDTH_H = np.append(np.diff(_EDGES_H), np.inf)
_BUCKETS_H: list[tuple[float, float]] = [*zip(_EDGES_H.tolist(), (_EDGES_H + _WIDTH_H).tolist(), strict=True)]
_SHARE = 1000  # number of running jobs whose exposure is cheap enough to recount at every decision


def is_fixed(state: State, rows: Ints) -> NDArray[np.bool_]:
    """Return whether each job stays for a fixed time instead of a number of iterations, shape (n,)."""
    return np.asarray(np.isinf(state.view.jobs["iterations"][rows]))


def known_stays(state: State, rows: Ints) -> tuple[Floats, Floats]:
    """Return the remaining stays according to the jobs' files.

    Returns:
        Hours that jobs with a fixed stay have left, infinite for other jobs, shape (n,); and iterations that the other jobs have
        left, infinite for jobs with a fixed stay, shape (n,).
    """
    jobs = state.view.jobs
    iterations = jobs["iterations"][rows]
    fixed = np.isinf(iterations)
    leaves_s = np.where(jobs["group"][rows] != NOWHERE, jobs["leaves_s"][rows], state.now_s + jobs["duration_s"][rows])
    stay_h = np.where(fixed, np.maximum(0.0, leaves_s - state.now_s) / 3600, np.inf)
    return stay_h, np.where(fixed, np.inf, np.maximum(0.0, iterations - iterations_done(state, rows)))


class LearnedStays:
    """Estimator of remaining stays. It must see the state at every decision, to notice departures."""

    def __init__(self) -> None:
        # Axes of each table: kind of stay (0 for a number of iterations, 1 for a fixed stay), bucket of ages.
        self._exposure_h = np.zeros((2, _EDGES_H.size))  # exposure of jobs that have left
        self._departures = np.zeros((2, _EDGES_H.size))
        self._running_h = np.zeros((2, _EDGES_H.size))  # exposure of running jobs at the last count
        self._decisions_since = 0  # since the last count
        self._previous_rows = np.zeros(0, np.int64)  # rows of the jobs seen at the last call

    def estimate(self, state: State, rows: Ints, horizon_h: float) -> tuple[Floats, Floats]:
        """Learn from the jobs that left since the last call, and estimate the remaining stay of each job.

        With more than a thousand running jobs, their exposure is recounted only at every n-th decision, where n is a thousandth of
        their number.

        Args:
            state: State at this decision.
            rows: Rows of the jobs to estimate: running jobs and possibly one waiting job, shape (n,).
            horizon_h: Time constant of the discount exp(-t / horizon), in hours.

        Returns:
            Remaining hours and remaining iterations, in the form of `known_stays`. Each is the stay whose discounted length equals
            the expected discounted length for a job of that age.
        """
        runs = state.view.jobs["group"][: len(state.tables.models)] != NOWHERE
        stopped = self._previous_rows[~runs[self._previous_rows]].tolist()
        left = [row for row in stopped if state.tables.job_id(row) not in state.waiting]
        gone = np.array(left, np.int64)
        # A departure is noticed in the instant in which it happens, and the columns of the job are still unchanged.
        for is_time, age_h in zip(is_fixed(state, gone), _ages_h(state, gone), strict=True):
            self._exposure_h[int(is_time)] += _exposure_h(np.array([age_h]))
            self._departures[int(is_time), np.searchsorted(_EDGES_H, age_h, side="right") - 1] += 1
        there = runs.copy()
        there[rows] = True
        self._previous_rows = present = np.flatnonzero(there)
        self._decisions_since += 1
        if self._decisions_since >= present.size // _SHARE:
            self._decisions_since = 0
            ages_h, fixed = np.where(runs[present], _ages_h(state, present), 0.0), is_fixed(state, present)
            for kind in (0, 1):
                self._running_h[kind] = _exposure_h(ages_h[fixed == bool(kind)])
        hazards = ((self._departures + 1) / (self._exposure_h + self._running_h + _PRIOR_H)).tolist()
        ages_h, fixed = np.where(runs[rows], _ages_h(state, rows), 0.0), is_fixed(state, rows)
        ages = zip(fixed.tolist(), ages_h.tolist(), strict=True)
        left_h = np.array([_compute_expected_h(hazards[is_time], age_h, horizon_h) for is_time, age_h in ages])
        stay_h = np.where(fixed, left_h, np.inf)
        return stay_h, np.where(fixed, np.inf, left_h * 3600 / state.view.jobs["solo_s"][rows])


def _ages_h(state: State, rows: Ints) -> Floats:
    """Return the age of each job that runs or has left, in hours or work-hours by its kind of stay, shape (n,)."""
    jobs = state.view.jobs
    worked_h = iterations_done(state, rows) * jobs["solo_s"][rows] / 3600
    return np.where(is_fixed(state, rows), (state.now_s - jobs["admitted_s"][rows]) / 3600, worked_h)


def _exposure_h(ages_h: Floats) -> Floats:
    """Sum the hours that jobs of these ages have spent in each bucket."""
    return np.asarray(np.clip(ages_h[:, None] - _EDGES_H, 0.0, _WIDTH_H).sum(axis=0))


def _compute_expected_h(hazard: Sequence[float], age_h: float, horizon_h: float) -> float:
    """Return the hours L whose discounted length horizon * (1 - exp(-L / horizon)) equals the expectation at that age."""
    discounted, reaches = 0.0, 1.0
    for (edge_h, end_h), departures in zip(_BUCKETS_H, hazard, strict=True):
        if end_h <= age_h:
            continue
        rate = departures + 1 / horizon_h
        falls = -math.expm1(-rate * (end_h - max(age_h, edge_h)))
        discounted += reaches * falls / rate
        reaches *= 1 - falls
    share = discounted / horizon_h
    return -horizon_h * math.log1p(-share) if share < 1 else math.inf
