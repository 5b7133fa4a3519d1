"""Planning with phase durations other than the worst case: observed durations, or a quantile of them.

With a quantile q, each phase is planned at the q-quantile of its distribution. The limit of the SLO stays slo * T_solo of the
worst cases. If it were scaled too, plan and limit would shrink alike and nothing would change. A lower q packs jobs more tightly,
and an event replay shows the effect on SLOs. At q = 1 the phases are the worst cases and every SLO is kept.

The distribution is the job's `actual`. For jobs without one it is lognormal, with the mean and variance observed so far for such
jobs. In fluid replays, and until `MIN_BATCHES` batches of iterations have been observed, it is the worst case.
"""

from __future__ import annotations

from functools import cache
from math import exp, log, log1p, sqrt
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.kernel.membership import refresh
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import LIMITS, Floats
from rollmux_env.keys.phases import Actual

Fractions = tuple[float, float]
"""Durations of a job's rollout and training as fractions of the worst cases."""


def running_rows(state: State) -> list[int]:
    """Return the rows of the running jobs in the state's job table, group by group in order of creation."""
    members = state.tables.groups.members
    return [row for group in state.tables.order.tolist() for row in members[group, : state.tables.groups.n_members[group]].tolist()]


def rescaled(state: State, fractions: dict[int, Fractions], slo_too: bool) -> State:
    """Return a copy of a state as if phases had other worst cases. Group and node numbers stay, so placements carry over.

    Args:
        state: State to copy.
        fractions: Factors on rollout and training seconds by row of the job table; 1 for rows not listed.
        slo_too: Whether the limit of an iteration is the SLO times the new T_solo, instead of the stated T_solo.
    """
    twin = state.copy()
    jobs = twin.tables.jobs
    rollout, training = np.ones((2, jobs.solo_s.size))
    for row, (of_rollout, of_training) in fractions.items():
        rollout[row], training[row] = of_rollout, of_training
    stated_s: Floats = jobs.solo_s.copy()
    for column in (jobs.rollout_s, jobs.placed_rollout_s):
        column *= rollout
    shared_s = np.zeros(rollout.size)  # the part of the training columns that belongs to the rollout
    if state.cluster.one_device:
        for row in fractions:
            shared_s[row] = state.tables.phases(row).rollout.worst_case_s
    for column in (jobs.training_s, jobs.placed_training_s, jobs.rescale_s.T):
        column[:] = shared_s * rollout + (column - shared_s) * training
    for row in fractions:
        jobs.alone_s[row] = own_period(jobs.rollout_s[row], jobs.training_s[row], jobs.sync_s[row], jobs.staleness[row])
    for row in fractions:
        own = row if jobs.more_shapes[row] == 0 else int(jobs.first_shape[row])
        sync_s = state.job(state.tables.job_id(row)).sync_s  # a job alone does not share the link
        jobs.solo_s[row] = own_period(jobs.rollout_s[own], jobs.training_s[own], sync_s, jobs.staleness[own])
        if slo_too:
            for limit in LIMITS:
                jobs[limit][row] *= jobs.solo_s[row] / stated_s[row]
    view = twin.view
    for group in view.order:
        refresh(view.jobs, view.groups, int(group))
    return twin


class ObservedIterations(NamedTuple):
    """Consecutive iterations of one job, as observed.

    Attributes:
        row: Row of the job.
        iterations: Number of iterations.
        fractions: Mean rollout and training as fractions of the worst case.
    """

    row: int
    iterations: float
    fractions: Fractions


class Observer:
    """Derives phase durations from the busy seconds of an `observed` state, batch by batch.

    A state records how many iterations a job has finished and how long its nodes were busy with them. The differences between two
    looks give means. A batch in which the job was moved is left out, because it contains the iteration that the move cut short.

    Args:
        least: Least number of iterations in a batch. With fewer finished iterations, the batch continues until the next look.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._marks: dict[int, tuple[int, float, float, float]] = {}  # row -> group, iterations, busy seconds of either pool

    def observe(self, state: State) -> list[ObservedIterations]:
        """Return the batches completed since the last look, or none if the state is not `observed`."""
        if not state.observed:
            return []
        jobs, groups = state.tables.jobs, state.tables.groups
        batches: list[ObservedIterations] = []
        marks: dict[int, tuple[int, float, float, float]] = {}
        for row in running_rows(state):
            group = int(jobs.group[row])
            number = int(groups.id[group])
            now = (number, float(jobs.done[row]), float(jobs.rollout_busy_s[row]), float(jobs.training_busy_s[row]))
            before = self._marks.get(row, (number, 0.0, 0.0, 0.0))
            iterations = now[1] - before[1]
            nodes = (int(jobs.n_pins[row]), int(groups.training_nodes[group]))
            both = state.cluster.one_device  # only the sum of the two phases is known
            if before[0] != number:
                marks[row] = now
            elif iterations < self._least or not (nodes[0] or both):
                marks[row] = before
            else:
                marks[row] = now
                rollout_s = jobs.placed_rollout_s[row] * nodes[0] * iterations
                training_s = jobs.placed_training_s[row] * nodes[1] * iterations
                of_training = float((now[3] - before[3]) / training_s)
                fractions = (of_training if both else float((now[2] - before[2]) / rollout_s), of_training)
                batches.append(ObservedIterations(row, iterations, fractions))
        self._marks = marks
        return batches


MIN_BATCHES = 20  # number of batches from which the observed distribution replaces the worst case


@cache
def quantile_of(law: Actual, q: float) -> float:
    """Return the q-quantile, 0 < q < 1, of a phase's duration as a fraction of its worst case."""
    from scipy.special import ndtri  # imported late, because most policies plan on worst cases and scipy is slow to load

    variance = log1p(law.cv**2)  # variance of the logarithm
    fraction = exp(log(law.mean_fraction) - variance / 2 + sqrt(variance) * float(ndtri(q)))
    return min(fraction, 1.0) if law.cap else fraction


class QuantileView:
    """Shows a state as if every phase took its quantile.

    Args:
        q: The quantile, above 0 and below 1.
    """

    def __init__(self, q: float) -> None:
        self._q = q
        self._observer = Observer(least=1)
        # For each phase: number of batches, and sums over them of iterations times mean to the power of 0, 1 and 2.
        self._sums = np.zeros((2, 4))

    def __call__(self, state: State, job_id: str) -> State:
        """Return the state with all running jobs and one waiting job planned at the quantile."""
        self._learn(state)
        unknown = (self._compute_observed_quantile(0), self._compute_observed_quantile(1))
        rows = [*running_rows(state), *dict.fromkeys((state.row(job_id), *state.tables.shape_rows(state.row(job_id))))]
        return rescaled(state, {row: self._fractions(state, row, unknown) for row in rows}, slo_too=False)

    def _fractions(self, state: State, row: int, unknown: Fractions) -> Fractions:
        laws = [phase.actual for phase in state.tables.phases(row)]
        rollout, training = (other if law is None else quantile_of(law, self._q) for law, other in zip(laws, unknown, strict=True))
        return rollout, training

    def _learn(self, state: State) -> None:
        for row, iterations, fractions in self._observer.observe(state):
            for k, phase in enumerate(state.tables.phases(row)):
                if phase.actual is None:
                    self._sums[k] += (1, *(iterations * fractions[k] ** power for power in range(3)))

    def _compute_observed_quantile(self, phase: int) -> float:
        """Return the quantile of the observed durations. The variance of an iteration is estimated by the method of batch means."""
        batches, iterations, total, squares = self._sums[phase].tolist()
        if batches < MIN_BATCHES:
            return 1.0
        mean = total / iterations
        variance = max(0.0, squares - total * mean) / (batches - 1)
        return quantile_of(Actual(mean_fraction=mean, cv=sqrt(variance) / mean, cap=False), self._q)
