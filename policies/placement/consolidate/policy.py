"""The policy `consolidate`: places new jobs, and moves running jobs if that pays off."""

from __future__ import annotations

import numpy as np

from policies.placement.consolidate.active import Active, active, plan_of
from policies.placement.consolidate.stays import LearnedStays, is_fixed, known_stays
from policies.placement.weighted_progress import TimePrice
from rollmux_env.cluster.candidates import part_of
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.lns import regroup
from rollmux_env.kernel.lns_insert import Regrouping, home_type, make_search
from rollmux_env.kernel.pools import count_nodes
from rollmux_env.kernel.tables import NOWHERE

IGNORED_SHAPE_SHARE = 0.5  # share of a job's shapes that an insertion ignores, so that the search does not repeat its choices


class Consolidate:
    """Placement policy that regroups the running jobs after every arrival and departure, if moves save more than they cost.

    A group's cost is the price of its nodes until its members have left, discounted by exp(-t / horizon). For jobs that leave after
    a number of iterations, the value of their work is subtracted, at the current price of a work-hour. A move costs the price of
    the nodes that it leaves until its pause ends. It also costs either the stay that the pause prolongs or the work that is not
    done in the pause. The search is `rollmux_env.kernel.lns.regroup`. Equal states give equal plans.

    With `time_usd` the value of a job's work also has that many dollars times its urgency.

    Args:
        horizon_h: Time constant of the discount, in hours. It should be about the time between arrivals and departures.
        budget: Number of groups, and placements in them, that the search evaluates for one decision. More takes longer and finds
            better plans.
        known_stays: Whether to read from the jobs how long they stay. Otherwise stays are estimated from past departures
            (`policies.placement.consolidate.stays`).
        groups: Largest number of groups that one decision looks at. If there are more, it looks at a part of them
            (`rollmux_env.kernel.lns`).
        time_usd: Dollars that an hour of a job's progress is worth (see `policies.placement.weighted_progress`).
        alpha: Exponent of the remaining length in the urgency of a job, for `time_usd`.

    Raises:
        InputError: An option has an invalid value.
    """

    keeps_slo = True

    def __init__(
        self,
        horizon_h: float = 1.0,
        budget: int = 8000,
        known_stays: bool = True,
        groups: int = 48,
        time_usd: float = 0.0,
        alpha: float = 0.5,
    ) -> None:
        if isinstance(horizon_h, bool) or not isinstance(horizon_h, int | float) or not 1e-3 <= horizon_h <= 1e6:
            raise InputError(f"horizon_h: must be a number of hours from 0.001 to 1e6, not {horizon_h!r}")
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
            raise InputError(f"budget: must be a whole number, 0 or more, not {budget!r}")
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 2:
            raise InputError(f"groups: must be a whole number, 2 or more, not {groups!r}")
        if not isinstance(known_stays, bool):
            raise InputError(f"known_stays: must be true or false, not {known_stays!r}")
        self._time = TimePrice(time_usd, alpha, known_stays)
        self.horizon_h = float(horizon_h)
        self.budget = budget
        self.groups = groups
        self._learned = None if known_stays else LearnedStays()

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with its placement and worthwhile moves, and any other event with worthwhile moves."""
        newcomer = event.job.id if isinstance(event, Arrived) else None
        part = part_of(state, self.groups, newcomer)
        now = active(state, newcomer, part.positions)
        if not now.rows.size:
            return ()
        if newcomer is not None and self._time.usd and self._time.is_worthless(state, newcomer):
            return (Wait(newcomer),)
        search_input = self._search_input(now)
        waits = NOWHERE if newcomer is None else int(np.searchsorted(now.rows, state.row(newcomer)))
        saved_usd = regroup(now.view, search_input, waits, self.budget_of(now), np.random.default_rng(0), make_search(now.view))
        if newcomer is None or not np.isnan(saved_usd):
            return plan_of(now)
        # The search found no placement in this part, but there may be one elsewhere in the cluster.
        return (Wait(newcomer) if part.cheapest_placement is None else Place(newcomer, part.cheapest_placement),)

    def budget_of(self, now: Active) -> int:
        """Return the number of groups and placements that one search may evaluate.

        If the decision looks at all groups, a job with several shapes gets a share for each shape.
        """
        if now.others.size:  # the other groups are looked at by other decisions, which have a budget too
            return self.budget
        return self.budget * now.of_job.size // now.rows.size

    def _search_input(self, now: Active) -> Regrouping:
        state, rows, limits, jobs = now.state, now.rows, now.state.limits, now.state.view.jobs.take(now.rows)
        stay_h, iterations = self._learned.estimate(state, rows, self.horizon_h) if self._learned else known_stays(state, rows)
        groups = state.view.groups
        runs = now.home != NOWHERE
        work_rate = np.ones(rows.size)  # a waiting job counts as if it ran alone
        work_rate[runs] = jobs["solo_s"][runs] / groups["period_s"][jobs["group"][runs]]
        waiting = jobs.take(np.flatnonzero(~runs))
        alone = count_nodes(limits, waiting, waiting["rollout_nodes"])
        usd_per_hour = float(((state.nodes - state.pauses.held_nodes() + alone).sum(axis=1) * limits.pools["usd"]).sum())
        homes = np.zeros(rows.size, dtype=home_type(now.view.jobs["pins"][0].size))
        homes["group"], homes["of_shape"], homes["rank"], homes["free"] = now.home, now.of_shape, now.rank, now.free
        homes["pins"], homes["n_pins"] = now.view.jobs["pins"][: rows.size], now.view.jobs["n_pins"][: rows.size]
        homes["stay_h"], homes["iterations"] = stay_h, iterations
        homes["pause_h"] = np.maximum(0.0, jobs["paused_until_s"] - state.now_s) / 3600
        work_usd = usd_per_hour / (work_rate.sum() + groups["work_rate"][now.others].sum())
        homes["work_usd"] = np.where(is_fixed(state, rows), 0.0, work_usd)
        if self._time.usd:
            homes["work_usd"] += self._time.usd * self._time.urgency(state, rows)
        looked = groups.take(now.looked)
        return Regrouping(
            homes=homes.take(now.of_job),
            n_jobs=rows.size,
            rollout_nodes=np.ascontiguousarray(looked["n_nodes"]),  # one memory layout, so that the kernel is compiled once
            training_nodes=np.ascontiguousarray(looked["training_nodes"]),
            horizon_h=self.horizon_h,
            migration_h=state.cluster.migration_s / 3600,
            overlooked=IGNORED_SHAPE_SHARE,
            reserved=state.nodes - count_nodes(limits, looked, looked["n_nodes"]),
        )
