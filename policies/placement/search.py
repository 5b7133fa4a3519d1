"""`search:POLICY`: search at decision time around any placement policy, by simulating what follows from a placement.

For a waiting job that the policy places, that placement and the cheapest others in other groups are compared. Each is carried out
in a copy of the state, and the policy decides from there on. The futures are the same for every placement (common random numbers):
jobs like those that have arrived come at gaps like those so far, both drawn with replacement. Jobs that run stay as long as the
policy sees. Of the placements that are cheaper than the policy's own in every future, the one with the least mean cost is
chosen.

The cost is that of `HOURS`, discounted with the same horizon. Where nodes are rented it is dollars less `_WORTH` times what the
work done would have cost alone. Where every pool is limited it is the weighted number of jobs in the system, and at the end the
hours alone that they have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import exp
from typing import Any

import numpy as np

from policies.api import Arrived, Event, Job, Place, Plan, Policy, State, after, candidates
from rollmux_env.cluster.apply import forecast
from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.cluster.remaining import left_s
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Ints
from rollmux_env.scheduler.ahead import ahead
from rollmux_env.scheduler.asking import ask
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.order import rows_of
from rollmux_env.scheduler.preview import copy_policy
from rollmux_env.scheduler.quotas import Quotas
from rollmux_env.user_code import is_whole

HOURS = 24.0  # simulated, and the horizon of the discount
_WORTH = 0.7  # of what work costs alone: about what it costs in a group
_KNOWN = 10  # arrivals from which further ones are drawn
_INSTANTS = 200  # simulated at most


class Search:
    """Placement policy that improves the placements of another one by simulating what follows from them.

    What is not said here, such as the order of the queue and moves of running jobs, is the other policy's.

    Args:
        base: Policy around which to search.
        rollouts: Number of futures for each placement.
        rows: Number of placements to compare, with the policy's own.

    Raises:
        InputError: If an option is no whole number, or too small.
    """

    def __init__(self, base: Policy, rollouts: int = 4, rows: int = 3) -> None:
        for name, value, least in (("rollouts", rollouts, 1), ("rows", rows, 2)):
            if not is_whole(value) or value < least:
                raise InputError(f"{name}: must be a whole number, at least {least}, not {value!r}")
        self._base, self._rollouts, self._rows = base, rollouts, rows

    @property
    def keeps_slo(self) -> bool:
        """Whether the policy keeps every SLO."""
        return self._base.keeps_slo

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._base, name)

    def decide(self, state: State, event: Event) -> Plan:
        """Answer as the policy does, with the placement that the search finds."""
        plan = ask(self._base, state, event)
        if not isinstance(event, Arrived) or len(plan) != 1 or not isinstance(plan[0], Place):
            return plan
        plans = [plan, *self._others(state, plan[0])]
        if len(plans) == 1:
            return plan
        futures = [_future(state, number) for number in range(self._rollouts)]
        costs = np.array([[self._cost(state, one, coming) for coming in futures] for one in plans])
        cheaper = (costs < costs[0]).all(axis=1)
        return plans[int(np.where(cheaper, costs.mean(axis=1), np.inf).argmin())] if cheaper.any() else plan

    def _others(self, state: State, own: Place) -> Iterator[Plan]:
        """Yield the cheapest feasible placements of a job in other groups within its user's quota, one a group."""
        table, quotas = candidates(state, own.job_id), Quotas(state)
        groups = {-1 if own.placement.group is None else own.placement.group}
        for row in np.lexsort((table.period_s, table.usd_per_hour)).tolist():
            group = int(table.group[row])
            if not table.feasible[row] or group in groups or len(groups) == self._rows:
                continue
            plan = (Place(own.job_id, table.placement(row)),)
            if not quotas.broken(plan, self._base):
                groups.add(group)
                yield plan

    def _cost(self, state: State, plan: Plan, coming: list[Job]) -> float:
        """Return the discounted cost of a plan in one future."""
        twin = forecast(after(state, plan, self.keeps_slo))
        is_fleet = all(pool.max_nodes is not None for pool in state.cluster.pools.values())
        cost, now_s, rate = 0.0, twin.now_s, _rate(twin, is_fleet)
        until_s = now_s + 3600 * HOURS
        for _ in ahead(Scheduler(twin, copy_policy(self._base)), _INSTANTS, coming=coming):
            next_s = min(twin.now_s, until_s)
            cost += rate * _weight_h(now_s - state.now_s, next_s - state.now_s)
            if twin.now_s >= until_s:
                break
            now_s, rate = next_s, _rate(twin, is_fleet)
        else:
            cost += rate * _weight_h(now_s - state.now_s, until_s - state.now_s)
        return cost + exp(-1) * _compute_weighted_left_h(twin) if is_fleet else cost


def _weight_h(from_s: float, to_s: float) -> float:
    """Return the discounted hours between two times from now on."""
    horizon_s = 3600 * HOURS
    return HOURS * (exp(-from_s / horizon_s) - exp(-to_s / horizon_s))


def _rate(state: State, is_fleet: bool) -> float:
    """Return the cost of an hour in the present state."""
    if is_fleet:
        return float(state.tables.weights[_present(state)].sum())
    jobs, groups, worth = state.view.jobs, state.view.groups, 0.0
    for job_id in state.stays.placed_at_s:
        row = state.row(job_id)
        alone_usd = solo_usd_per_hour(state.job(job_id), state.cluster)
        worth += alone_usd * float(jobs["solo_s"][row] / groups["period_s"][jobs["group"][row]])
    return state.usd_per_hour - _WORTH * worth


def _present(state: State) -> Ints:
    """Return the rows of the jobs in the system."""
    return rows_of(state, [*state.waiting, *state.stays.placed_at_s])


def _compute_weighted_left_h(state: State) -> float:
    """Return the weighted hours alone that the jobs in the system have left."""
    rows = _present(state)
    return float((state.tables.weights[rows] * left_s(state, rows)).sum()) / 3600


def _future(state: State, number: int) -> list[Job]:
    """Return jobs that might arrive, in order of arrival. They are the same for equal states and numbers."""
    known = [*{job.id: job for job in state.tables.models}.values()]  # a job with several shapes has several rows
    if len(known) < _KNOWN:
        return []
    rng = np.random.default_rng((state.arrived, state.departed, number))
    gaps_s = np.diff(np.sort([job.arrival_s for job in known]))
    if not gaps_s.any():
        return []  # one instant says nothing about later arrivals
    most = int(2 * 3600 * HOURS / max(1.0, gaps_s.mean())) + 1
    at_s = state.now_s + np.cumsum(rng.choice(gaps_s, most))
    drawn = rng.integers(len(known), size=most).tolist()
    coming = zip(at_s.tolist(), drawn, strict=True)
    return [
        known[k].model_copy(update={"id": f"~{number}-{i}", "arrival_s": s})
        for i, (s, k) in enumerate(islice(coming, _INSTANTS))
        if s < state.now_s + 3600 * HOURS
    ]
