"""The weighted progress V of the running jobs: what a policy maximises where nodes are owned and jobs should be done sooner.

V = sum over running jobs k of u_k * T_solo_k / period_k. A paused job counts as running. T_solo / period is the job's progress: its
work-hours per hour, 1 alone on its own nodes. The urgency u_k = w_k * (3600 / left_k)^alpha is the worth of a work-hour, from the
job's `weight` w and the seconds left of its work, at T_solo an iteration and at least a minute. With alpha 0 V is the weighted
throughput of the cluster. With alpha 1 the urgency is the ratio of weight to remaining length by which Smith (1956) orders jobs on
one machine for the least weighted mean completion. Values between weigh the two: a group runs all members at one pace, so a short
job that joins delays the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollmux_env import portable
from rollmux_env.cluster.candidates import CandidateTable, candidates
from rollmux_env.cluster.remaining import MIN_LEFT_S, learned_h, left_s, weights
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints

_MAX_LENGTH_S = 1e9  # where departures teach nothing about the length of a job, it is not infinite
_LARGER = 1e-9  # relative difference from which a later candidate is better than an earlier one


@dataclass(frozen=True)
class Urgency:
    """The urgency of jobs.

    Args:
        alpha: Exponent of the remaining length, 0 or more.
        known_stays: Whether the remaining lengths are known. Otherwise departures teach them
            (`rollmux_env.cluster.remaining.learned_h`); before that all jobs count as equally long.

    Raises:
        InputError: An option has an invalid value.
    """

    alpha: float = 0.5
    known_stays: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not 0 <= self.alpha <= 10:
            raise InputError(f"alpha: must be a number from 0 to 10, not {self.alpha!r}")
        if not isinstance(self.known_stays, bool):
            raise InputError(f"known_stays: must be true or false, not {self.known_stays!r}")

    def __call__(self, state: State, rows: Ints) -> Floats:
        """Return the urgency of running or waiting jobs by row of the job table, shape (n,)."""
        weight = weights(state, rows)
        return weight * portable.power(3600 / self._left_s(state, rows), self.alpha) if self.alpha else weight

    def _left_s(self, state: State, rows: Ints) -> Floats:
        if self.known_stays:
            return left_s(state, rows)
        left_h = learned_h(state, rows)
        return np.full(rows.size, 3600.0) if left_h is None else np.clip(left_h * 3600, MIN_LEFT_S, _MAX_LENGTH_S)


@dataclass(frozen=True)
class GroupProgress:
    """The running jobs' part in V, by group in order of creation.

    Attributes:
        rows: Rows of the running jobs in the job table, group by group, shape (n,).
        group: Position of each job's group, shape (n,).
        urgency: Urgency of each job, shape (n,).
        members: Number of members of each group, shape (G,).
        weight_s: Sum over each group's members of urgency times T_solo, seconds, shape (G,).
        period_s: Period of each group, seconds, shape (G,).
    """

    rows: Ints
    group: Ints
    urgency: Floats
    members: Ints
    weight_s: Floats
    period_s: Floats

    @property
    def value(self) -> float:
        """The weighted progress V."""
        return math.fsum((self.weight_s / self.period_s).tolist())


def pace(state: State, urgency: Urgency) -> GroupProgress:
    """Return the running jobs' part in V."""
    groups, order = state.view.groups, state.tables.order
    members, count = groups["members"][order], groups["n_members"][order]
    is_member = np.arange(members.shape[1]) < count[:, None]
    rows, group = members[is_member], np.nonzero(is_member)[0]
    urgencies = urgency(state, rows)
    weight_s = np.zeros(order.size)
    np.add.at(weight_s, group, urgencies * state.view.jobs["solo_s"][rows])
    return GroupProgress(rows, group, urgencies, count, weight_s, groups["period_s"][order])


def gains(state: State, table: CandidateTable, urgency: Urgency) -> Floats:
    """Return what V gains with each candidate of a waiting job, -inf for infeasible ones, shape (R,)."""
    if not table.feasible.any():  # as in most answers while jobs wait
        return np.full(len(table), -np.inf)
    row = state.row(table.job_id)
    own_s = urgency(state, np.array([row]))[0] * state.view.jobs["solo_s"][row]
    return joining_gains(state, table, pace(state, urgency), float(own_s))


def joining_gains(state: State, table: CandidateTable, now: GroupProgress, own_s: float) -> Floats:
    """Return what V gains with each candidate of a job, -inf for infeasible ones, shape (R,).

    Args:
        state: State of the cluster.
        table: Candidates of the job. What V loses where a running job comes from is not counted.
        now: Result of `pace` for this state.
        own_s: Urgency of the job times its T_solo, seconds.
    """
    # The last entry is a new group. Groups, and so their numbers, are in order of creation.
    weight_s, rate = np.append(now.weight_s, 0.0), np.append(now.weight_s / now.period_s, 0.0)
    at = np.where(table.group < 0, -1, np.searchsorted(state.view.groups["id"][state.tables.order], table.group))
    with np.errstate(invalid="ignore"):
        return np.where(table.feasible, (weight_s[at] + own_s) / table.period_s - rate[at], -np.inf)


class TimePrice:
    """The dollars that an hour of a job's progress is worth, for a policy that prices candidates.

    The price of a candidate is its marginal cost, $/h, less `usd` times what V gains. At 0 the policy is as it was. With a large
    value it is the policy `fleet`: where no candidate gains, the job waits.

    Args:
        usd: Dollars per unit of V and hour, 0 or more.
        alpha: Exponent of the remaining length in the urgency of a job.
        known_stays: Whether the remaining lengths are known.

    Raises:
        InputError: An option has an invalid value.
    """

    def __init__(self, usd: float, alpha: float, known_stays: bool = True) -> None:
        if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd <= 1e12:
            raise InputError(f"time_usd: must be a number of dollars from 0 to 1e12, not {usd!r}")
        self.usd = usd
        self.urgency = Urgency(alpha, known_stays)

    def is_worthless(self, state: State, job_id: str) -> bool:
        """Return whether no candidate of a job gains progress, so that it waits."""
        return not np.any(gains(state, candidates(state, job_id), self.urgency) > 0)

    def cheapest(self, state: State, table: CandidateTable, rows: Ints) -> int | None:
        """Return the first row with the lowest price, up to 1e-9 of what its gain is worth, or None if the job waits.

        Args:
            state: State of the cluster.
            table: Candidates of the job.
            rows: Feasible rows from which to choose, ascending.
        """
        best = _first_best(gains(state, table, self.urgency)[rows], self.usd, table.usd_per_hour[rows])
        return None if best is None else int(rows[best])


def largest(gains: Floats) -> int | None:
    """Return the first row with the largest gain, up to a relative difference of 1e-9, or None if none is above 0."""
    return _first_best(gains)


def _first_best(gains: Floats, usd: float = 1.0, usd_per_hour: Floats | None = None) -> int | None:
    """Return the row that is worth most, or None if no gain is above 0.

    A later row replaces an earlier one only if it is worth more by over 1e-9 of what the gain of the earlier one is worth.
    Otherwise rounding would decide between equal gains.

    Args:
        gains: Gain of V with each candidate, -inf for infeasible ones, shape (R,).
        usd: Dollars per unit of V and hour.
        usd_per_hour: Marginal cost of each candidate, $/h, shape (R,), or None if nodes cost nothing.
    """
    if not np.any(gains > 0):
        return None
    worth_usd = usd * gains
    saved_usd = worth_usd if usd_per_hour is None else worth_usd - usd_per_hour
    needed_usd, best_row = -math.inf, None
    for row, (saved, worth) in enumerate(zip(saved_usd.tolist(), worth_usd.tolist(), strict=True)):
        if saved > needed_usd:
            needed_usd, best_row = saved + _LARGER * abs(worth), row
    return best_row
