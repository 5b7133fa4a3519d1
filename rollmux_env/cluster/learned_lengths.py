"""Lengths of jobs as departures teach them, from what is known of a job when it arrives.

The logarithm of a job's length is the mean of all jobs, plus a part for each of its traits, plus the job's own part. The parts are
estimated by ridge regression (best linear unbiased prediction, G. Robinson 1991; the same as a Gaussian process, C. Rasmussen and
C. Williams 2006): what few departures say is drawn towards the mean. Jobs of a class share that part, and a departure counts half
as much for a job `half` arrivals away; jobs of a user share that of the user; jobs with like T_solo and jobs that arrive at like
hours of the day have like parts. The share of the variance that each trait has, and `half`, are those under which the observed
lengths are most likely. They are found trait by trait, and a trait that makes the lengths hardly likelier has no share. The
residuals of the departed jobs, each predicted from the others, are the distribution of the jobs' own parts.

As with the networks of learned policies, the last bits depend on the processor's linear algebra.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.remaining import MIN_DEPARTED, SPANS_H, done_s
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import Floats, Ints

TRAITS = ("class", "user", "T_solo", "hour")
_HALVES = (12.0, 25.0, 50.0, 100.0, np.inf)  # arrivals
_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85)
_MOST = 0.95  # largest share of all traits
_LAST = 100  # departed jobs from which shares are found: linear algebra of more begins threads, which wait for busy cores
_LIKELIER = 2.0  # least gain of twice the logarithm of the likelihood for which a trait has a share
_T_SOLO_WIDTH = 0.5  # difference of the logarithms of T_solo at which parts are still alike
_HOUR_WIDTH = 0.7  # the same on the circle of the hours, in radians
_APART = 1e3  # beyond all widths
_MIN_LENGTH_H = 0.01  # a departed job has been at least this long


class Traits(NamedTuple):
    """Known traits of n jobs. A job of an earlier part of a journal is like no other one but by its class.

    Attributes:
        classes: Number of each job's class, shape (n,).
        arrivals: Number of each job in order of arrival, below 0 for jobs of an earlier part, shape (n,).
        users: Number of each job's user, shape (n,).
        log_solo: Logarithm of each job's T_solo, shape (n, 1).
        hours: Hour of each job's arrival as a point on the unit circle, shape (n, 2).
    """

    classes: Ints
    arrivals: Ints
    users: Ints
    log_solo: Floats
    hours: Floats

    def last(self, n: int) -> Traits:
        """Return the traits of the last n jobs, or of all if they are fewer."""
        return Traits(self.classes[-n:], self.arrivals[-n:], self.users[-n:], self.log_solo[-n:], self.hours[-n:])

    def alike(self, others: Traits, trait: str, half: float) -> Floats:
        """Return the correlation of a trait's parts of these n jobs with those of m others, shape (n, m).

        Args:
            others: Traits of the others.
            trait: One of `TRAITS`.
            half: Number of arrivals between two jobs of a class for which a length counts half.
        """
        if trait == "class":
            apart = np.abs(self.arrivals[:, None] - others.arrivals)
            return np.where(self.classes[:, None] == others.classes, np.exp2(-apart / half), 0.0)
        if trait == "user":
            return np.where(self.users[:, None] == others.users, 1.0, 0.0)
        if trait == "T_solo":
            return _bell(self.log_solo, others.log_solo, _T_SOLO_WIDTH)
        return _bell(self.hours, others.hours, _HOUR_WIDTH)


def _bell(points: Floats, others: Floats, width: float) -> Floats:
    distance = points[:, None, :] - others[None, :, :]
    return np.asarray(np.exp(-0.5 * (distance**2).sum(axis=2) / width**2))


class Numbers:
    """Numbers of names, counted from 0 as they appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> Ints:
        """Return the number of each name, shape (n,)."""
        return np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class LearnedLengths:
    """Regression of the logarithm of the length on the traits of jobs.

    Attributes:
        departed: Traits of the departed jobs.
        classes: Numbers of the classes.
        users: Numbers of the users.
        mean: Mean of the logarithms of lengths in hours.
        shares: Share of the variance that each trait has; of `TRAITS`, those above 0.
        half: Number of arrivals between two jobs of a class for which a length counts half.
        weights: Weight of each departed job in predictions, shape (n,).
        residuals: Logarithms of lengths over their predictions from the other jobs, ascending, shape (n,).
    """

    departed: Traits
    classes: Numbers
    users: Numbers
    mean: float
    shares: dict[str, float]
    half: float
    weights: Floats
    residuals: Floats

    @classmethod
    def learned(cls, state: State) -> LearnedLengths | None:
        """Return the regression on the last departed jobs, or None while there are fewer than `MIN_DEPARTED`."""
        lengths_h, of_classes = state.stays.lengths_h, state.stays.lengths_of_class_h
        if len(lengths_h) < MIN_DEPARTED:
            return None
        classes, users = Numbers(), Numbers()
        name_of = {job_id: name for name, of_class in of_classes.items() for job_id in of_class}
        carried = [job_id for job_id in lengths_h if not state.knows(job_id)]  # of an earlier part of the journal
        before = {job_id: number - len(carried) for number, job_id in enumerate(carried)}
        rows = np.array([before[job_id] if job_id in before else state.row(job_id) for job_id in lengths_h])
        departed = _traits(state, rows, classes.of(name_of[job_id] for job_id in lengths_h), users)
        logs = np.log(np.maximum(np.fromiter(lengths_h.values(), float, rows.size), _MIN_LENGTH_H))
        mean = float(logs.mean())
        shares, half = _likeliest(departed.last(_LAST), logs[-_LAST:] - mean)
        inverse = _inverse(_variance(departed, shares, half))
        weights = inverse @ (logs - mean)
        return cls(departed, classes, users, mean, shares, half, weights, np.sort(weights / np.diag(inverse)))

    def left_h(self, state: State, rows: Ints) -> Floats:
        """Return the inverse of the Gittins index of each job in hours of T_solo, as `learned_h` does, shape (n,)."""
        classes = self.classes.of(state.tables.models[row].class_name for row in rows.tolist())
        jobs, logs = _traits(state, rows, classes, self.users), np.full(rows.size, self.mean)
        for trait, share in self.shares.items():
            logs += share * (jobs.alike(self.departed, trait, self.half) @ self.weights)
        return _left_h(np.exp(logs[:, None] + self.residuals), done_s(state, rows) / 3600)


def _traits(state: State, rows: Ints, classes: Ints, users: Numbers) -> Traits:
    """Return the traits of jobs with these rows in the job table, or with rows below 0 for those that it does not have."""
    jobs, known = state.tables.job_records, rows >= 0
    own = np.where(known, rows, 0)
    names = (state.tables.models[row].user for row in rows[known].tolist())
    numbers: Ints = rows.astype(np.int64)
    log_solo: Floats = (rows * _APART).astype(np.float64)[:, None]
    numbers[known] = users.of(names)
    log_solo[known, 0] = np.log(jobs["solo_s"][own[known]])
    angles = jobs["arrival_s"][own] / 86400 * 2 * np.pi
    hours: Floats = np.where(known[:, None], np.stack((np.cos(angles), np.sin(angles)), axis=1), rows[:, None] * _APART)
    return Traits(classes, _arrivals(state, rows), numbers, log_solo, hours)


def _likeliest(departed: Traits, logs: Floats) -> tuple[dict[str, float], float]:
    """Return the share of each trait, and `half`, under which the lengths of the departed jobs are most likely."""
    shares: dict[str, float] = {}
    half, best = float(np.inf), _likelihood(np.eye(logs.size), logs)
    for _ in range(2):  # a trait may lose its share to one that is tried later
        for trait in TRAITS:
            others = {name: share for name, share in shares.items() if name != trait}
            rest, most = _variance(departed, others, half), _MOST - sum(others.values())
            best, chosen = _likelihood(rest, logs), 0.0
            threshold = best + _LIKELIER
            for own_half in _HALVES if trait == "class" else (half,):
                part = departed.alike(departed, trait, own_half)
                part[np.diag_indices_from(part)] -= 1.0  # what the trait has, the jobs' own parts have not
                for share in _SHARES:
                    if share <= most and (likelihood := _likelihood(rest + share * part, logs)) > max(best, threshold):
                        best, chosen = likelihood, share
                        half = own_half
            shares = {**others, trait: chosen} if chosen else others
    return shares, half


def _variance(departed: Traits, shares: dict[str, float], half: float) -> Floats:
    """Return the correlation of the departed jobs' lengths, shape (n, n)."""
    n = departed.classes.size
    total = (1 - sum(shares.values())) * np.eye(n)
    for trait, share in shares.items():
        total += share * departed.alike(departed, trait, half)
    return total


def _likelihood(variance: Floats, logs: Floats) -> float:
    """Return twice the logarithm of the likelihood of lengths with this correlation, but for a constant."""
    from scipy.linalg import cho_solve, cholesky  # by the first fit: every command and service loads this module

    lower = cholesky(variance, lower=True, check_finite=False)
    power = float((logs * cho_solve((lower, True), logs, check_finite=False)).mean())
    return -2 * float(np.log(np.diag(lower)).sum()) - logs.size * float(np.log(power + 1e-12))


def _inverse(variance: Floats) -> Floats:
    """Return the inverse of a symmetric positive definite matrix by Gauss-Jordan elimination, shape (n, n).

    `np.linalg.inv` begins threads for a matrix of this size, which wait for busy cores longer than this takes.
    """
    inverse = variance.copy()
    for k in range(len(inverse)):
        pivot, column = inverse[k, k], inverse[:, k].copy()
        row = inverse[k] / pivot
        inverse -= column[:, None] * row
        inverse[k], inverse[:, k] = row, -column / pivot
        inverse[k, k] = 1 / pivot
    return inverse


def _arrivals(state: State, rows: Ints) -> Ints:
    """Return the number of each job in order of arrival, from its row, shape (n,). Rows below 0 stay as they are."""
    tables = state.tables
    if len(tables.job_rows) == len(tables.models):
        return rows  # no job has further rows, of its shapes or of an earlier arrival
    known = np.sort(np.fromiter(tables.job_rows.values(), np.int64, len(tables.job_rows)))
    return np.where(rows < 0, rows, np.searchsorted(known, rows))


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
