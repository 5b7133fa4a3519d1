"""`optimal` and `optimal-work`: the active jobs are regrouped for free at every event, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from policies.placement.optimal.columns import MAX_COLUMNS
from policies.placement.optimal.grouped import GroupedJobs
from policies.placement.optimal.grouping import Objective
from policies.placement.optimal.plan import OptimalPlan, admission, written_out
from rollmux_env.errors import InputError
from rollmux_env.keys.queue import refuse_queue_keys
from rollmux_env.replay.admission import Admission
from rollmux_env.replay.metrics import Outcome
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario


class Optimal:
    """Least $/h (or $ per work-hour) of the active jobs over all partitions into feasible groups.

    For `plan` and `bench` only: it ignores the cost of moving, so no cluster could follow it.

    Jobs that `max_nodes` keeps out wait first come first served: the head of the queue enters as soon as all active jobs and it can
    be grouped within the pools. Of equally good groupings the solver's choice counts, the same for the same file and version.

    Args:
        objective: `usd` minimises $/h, `work` $ per work-hour of the active jobs.
        node_limit: most branch-and-bound nodes of an integer program, None for no limit.
        max_columns: most groups kept. Where either limit bites, bound and gap say how far the grouping can be from the optimum.

    Attributes:
        plans_switches: periods count warm starts, as if no member of a group had a rollout node for itself.
    """

    plans_switches = False

    def __init__(self, objective: Objective = "usd", node_limit: int | None = None, max_columns: int = MAX_COLUMNS) -> None:
        if objective not in get_args(Objective):
            raise InputError(f"objective: must be usd or work, not {objective!r}")
        self.objective: Objective = objective
        self.node_limit = node_limit
        self.max_columns = max_columns

    def plan(self, scenario: Scenario) -> OptimalPlan:
        """Group all jobs of a scenario as if they were there together."""
        active = self._start(scenario)
        active.arrive(in_order_of_arrival(scenario), 0.0)
        active.serve(0.0)
        pool, best = active.pool, active.best
        ordered = sorted(best.columns.tolist(), key=lambda column: min(pool.rows(column)))
        return OptimalPlan(
            groups=tuple(written_out(pool, column) for column in ordered),
            queued=tuple(active.waiting),
            usd_per_hour=best.usd_per_hour,
            value=best.value,
            bound=best.bound,
            gap=_gap(best.value, best.bound),
        )

    def admit_all(self, scenario: Scenario) -> Admission:
        """The same grouping as decisions: what `rollmux plan` prints."""
        return admission(self.plan(scenario), scenario)

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario: between events each job progresses at 1/period of its present group.

        Regrouping is free and no migration. A job's admission strategy is read off the grouping in which it first runs, as if it
        had come last. `decision_s` has one entry an instant. `extra` holds `bound_usd`, the integral of the bounds, and `gap`,
        relative; for $ per work-hour the bound is what the same work would cost at the least ratio.

        Args:
            check: assert after every instant that each active job is in one group that keeps all SLOs, and the pools suffice.
        """
        active = self._start(scenario)
        outcome = replay_yardstick(scenario, active, check)
        cost_usd = outcome.metrics.cost_usd
        bound_usd = min(active.bound_usd, cost_usd)  # they differ by rounding where all was proven
        return replace(outcome, extra={"bound_usd": bound_usd, "gap": _gap(cost_usd, bound_usd)})

    def _start(self, scenario: Scenario) -> GroupedJobs:
        refuse_queue_keys(
            scenario.cluster, scenario.jobs, "--policy optimal" if self.objective == "usd" else "--policy optimal-work"
        )
        return GroupedJobs(scenario, self.objective, self.node_limit, self.max_columns, self.plans_switches)


def _gap(value: float, bound: float) -> float:
    return max(0.0, (value - bound) / value) if value > 0 else 0.0
