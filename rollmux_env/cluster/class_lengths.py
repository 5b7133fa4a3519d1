"""Lengths of jobs as departures teach them, when classes are many, or change over time.

The logarithm of a job's length is the mean of all jobs, plus what its class has in common, plus the job's own part. The first two
are estimated by ridge regression on the classes (best linear unbiased prediction, G. Robinson 1991): a class with few departures is
drawn towards the mean, and a departure counts half as much for a job `half` arrivals away. The share of the variance that classes
have and `half` are those under which the observed lengths are most likely. The residuals of the departed jobs, each predicted from
the others, are the distribution of the jobs' own parts.

As with the networks of learned policies, the last bits depend on the processor's linear algebra.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollmux_env.cluster.remaining import MIN_DEPARTED, SPANS_H, done_s
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import Floats, Ints

_HALVES = (12.0, 25.0, 50.0, 100.0, np.inf)  # arrivals
_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85)
_MIN_LENGTH_H = 0.01  # a departed job has been at least this long
_UNKNOWN = -1  # number of a class of which no job has departed


@dataclass(frozen=True)
class ClassLengths:
    """Regression of the logarithm of the length on the class.

    Attributes:
        numbers: Number of each class by name.
        classes: Number of the class of each departed job, shape (n,).
        rows: Row of each departed job in the job table, shape (n,); below 0, in order of departure, for jobs that the table does
            not have.
        mean: Mean of the logarithms of lengths in hours.
        share: Share of the variance that classes have.
        half: Number of arrivals between two jobs of a class for which a length counts half.
        weights: Weight of each departed job in predictions, shape (n,).
        residuals: Logarithms of lengths over their predictions from the other jobs, ascending, shape (n,).
    """

    numbers: dict[str, int]
    classes: Ints
    rows: Ints
    mean: float
    share: float
    half: float
    weights: Floats
    residuals: Floats

    @classmethod
    def learned(cls, state: State) -> ClassLengths | None:
        """Return the regression on the last departed jobs, or None while there are fewer than `MIN_DEPARTED`."""
        lengths_h, of_classes = state.stays.lengths_h, state.stays.lengths_of_class_h
        if len(lengths_h) < MIN_DEPARTED:
            return None
        name_of = {job_id: name for name, of_class in of_classes.items() for job_id in of_class}
        names = [name_of[job_id] for job_id in lengths_h]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        classes = np.array([numbers[name] for name in names])
        carried = [job_id for job_id in lengths_h if not state.knows(job_id)]  # of an earlier part of the journal
        before = {job_id: number - len(carried) for number, job_id in enumerate(carried)}
        rows = np.array([before[job_id] if job_id in before else state.row(job_id) for job_id in lengths_h])
        logs = np.log(np.maximum(np.fromiter(lengths_h.values(), float, len(names)), _MIN_LENGTH_H))
        mean, n = float(logs.mean()), len(names)
        fits, arrivals = [], _arrivals(state, rows)
        for half in _HALVES:
            alike = _alike(classes, arrivals, classes, arrivals, half)
            values, vectors = np.linalg.eigh(alike)
            power = (vectors.T @ (logs - mean)) ** 2
            for share in _SHARES:
                variance = share * values + 1 - share
                likelihood = -float(np.log(variance).sum()) - n * float(np.log((power / variance).mean() + 1e-12))
                fits.append((likelihood, half, share, alike))
        _, half, share, alike = max(fits, key=lambda fit: fit[0])
        inverse = np.linalg.inv(share * alike + (1 - share) * np.eye(n))
        weights = inverse @ (logs - mean)
        return cls(numbers, classes, rows, mean, share, half, share * weights, np.sort(weights / np.diag(inverse)))

    def left_h(self, state: State, rows: Ints) -> Floats:
        """Return the inverse of the Gittins index of each job in hours of T_solo, as `learned_h` does, shape (n,)."""
        names = (state.tables.models[row].class_name for row in rows.tolist())
        classes = np.array([self.numbers.get(name, _UNKNOWN) for name in names], dtype=np.int64)
        alike = _alike(classes, _arrivals(state, rows), self.classes, _arrivals(state, self.rows), self.half)
        logs = self.mean + alike @ self.weights
        return _left_h(np.exp(logs[:, None] + self.residuals), done_s(state, rows) / 3600)


def _arrivals(state: State, rows: Ints) -> Ints:
    """Return the number of each job in order of arrival, from its row, shape (n,). Rows below 0 stay as they are."""
    tables = state.tables
    if len(tables.job_rows) == len(tables.models):
        return rows  # no job has further rows, of its shapes or of an earlier arrival
    known = np.sort(np.fromiter(tables.job_rows.values(), np.int64, len(tables.job_rows)))
    return np.where(rows < 0, rows, np.searchsorted(known, rows))


def _alike(classes: Ints, arrivals: Ints, others: Ints, other_arrivals: Ints, half: float) -> Floats:
    """Return the correlation of the classes' parts of n jobs with those of m others, shape (n, m)."""
    apart = np.abs(arrivals[:, None] - other_arrivals)
    return np.where(classes[:, None] == others, np.exp2(-apart / half), 0.0)


def _left_h(lengths_h: Floats, done_h: Floats) -> Floats:
    """Return the inverse of the Gittins index of each job, from possible lengths of each, shape (n, m), and the work done, (n,)."""
    left_h = lengths_h - done_h[:, None]
    longer = left_h > 0
    best = np.full(done_h.size, np.inf)
    for span_h in SPANS_H.tolist():
        ended = (longer & (left_h <= span_h)).sum(axis=1)
        spent_h = np.where(longer, np.minimum(left_h, span_h), 0.0).sum(axis=1)
        best = np.minimum(best, np.where(ended > 0, spent_h / np.maximum(ended, 1), np.inf))
    return np.where(longer.any(axis=1), best, done_h)
