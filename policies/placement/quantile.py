"""Planning on a quantile of the phase durations instead of the worst case.

Each phase is planned at the q-quantile of its own distribution. The SLO's limit stays slo * T_solo of the worst cases:
if it were scaled too, plan and limit would shrink alike and nothing would change. A lower q packs jobs more tightly,
and an event replay shows what this does to SLOs. At q = 1 the phases are the worst cases and every SLO is kept.

The distribution is the job's `actual`. For jobs without one it is lognormal, with the mean and variance observed so far
for such jobs. Until `ENOUGH` batches of iterations have been observed, and in fluid replays, it is the worst case.
"""

from __future__ import annotations

from functools import cache
from math import exp, log, log1p, sqrt

import numpy as np
from scipy.special import ndtri

from policies.placement.planned import Fractions, Observer, rescaled, running_rows
from rollmux_env.cluster.state import State
from rollmux_env.keys.phases import Actual

ENOUGH = 20  # batches


@cache
def quantile_of(law: Actual, q: float) -> float:
    """The q-quantile, 0 < q < 1, of a phase's duration as a fraction of its worst case."""
    variance = log1p(law.cv**2)  # of the logarithm
    fraction = exp(log(law.mean_fraction) - variance / 2 + sqrt(variance) * float(ndtri(q)))
    return min(fraction, 1.0) if law.cap else fraction


class QuantileView:
    """Shows a state as it would be if every phase took its quantile.

    Args:
        q: the quantile, above 0 and below 1.
    """

    def __init__(self, q: float) -> None:
        self._q = q
        self._observer = Observer(least=1)
        # Of either phase: batches, and sums over them of iterations times mean to the power of 0, 1 and 2.
        self._sums = np.zeros((2, 4))

    def __call__(self, state: State, job_id: str) -> State:
        """The state with all running jobs and one that waits planned at the quantile."""
        self._learn(state)
        unknown = (self._observed(0), self._observed(1))
        rows = [*running_rows(state), *dict.fromkeys((state.row(job_id), *state.shape_rows(state.row(job_id))))]
        return rescaled(state, {row: self._fractions(state, row, unknown) for row in rows}, slo_too=False)

    def _fractions(self, state: State, row: int, unknown: Fractions) -> Fractions:
        laws = [phase.actual for phase in state.phases_of(row)]
        rollout, training = (other if law is None else quantile_of(law, self._q) for law, other in zip(laws, unknown, strict=True))
        return rollout, training

    def _learn(self, state: State) -> None:
        for row, iterations, fractions in self._observer.look(state):
            for k, phase in enumerate(state.phases_of(row)):
                if phase.actual is None:
                    self._sums[k] += (1, *(iterations * fractions[k] ** power for power in range(3)))

    def _observed(self, phase: int) -> float:
        """The quantile of what was observed: variance of single iterations by the method of batch means."""
        batches, iterations, total, squares = self._sums[phase].tolist()
        if batches < ENOUGH:
            return 1.0
        mean = total / iterations
        variance = max(0.0, squares - total * mean) / (batches - 1)
        return quantile_of(Actual(mean_fraction=mean, cv=sqrt(variance) / mean, cap=False), self._q)
