"""`optimal` and `optimal-work`: the active jobs are regrouped for free at every event, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import get_args

import numpy as np

from policies.placement.optimal.active import ActiveJobs
from policies.placement.optimal.columns import MAX_COLUMNS
from policies.placement.optimal.plan import OptimalPlan, admission, strategy, written_out
from policies.placement.optimal.regroup import Objective
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Placement
from rollmux_env.errors import InputError
from rollmux_env.replay.admission import Admission
from rollmux_env.replay.metrics import STRATEGIES, Outcome, metrics
from rollmux_env.replay.run import INSTANT_S, Run, in_order_of_arrival
from rollmux_env.scenario import Scenario


class Optimal:
    """The yardstick: least $/h (or $ per work-hour) of the active jobs over all partitions into feasible groups.

    Jobs that `max_nodes` keeps out wait first come first served: the head of the queue enters as soon as all active jobs and it can
    be grouped within the pools. Of equally good groupings the solver's choice counts, the same for the same file and version.

    Args:
        objective: `usd` minimises $/h, `work` $ per work-hour of the active jobs.
        node_limit: most branch-and-bound nodes of an integer program, None for no limit.
        max_columns: most groups kept. Where either limit bites, bound and gap say how far the grouping can be from the optimum.
    """

    can_run = False  # it looks at no costs of moving; no cluster can do what it does

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

    def replay(self, scenario: Scenario, check: bool = False, progress: Callable[[int], None] | None = None) -> Outcome:
        """Replay a scenario: between events each job progresses at 1/period of its present group.

        Regrouping is free and no migration. A job's admission strategy is read off the grouping in which it first runs, as if it
        had come last. `decision_s` has one entry an instant. `extra` holds `bound_usd`, the integral of the bounds, and `gap`,
        relative; for $ per work-hour the bound is what the same work would cost at the least ratio.

        Args:
            check: assert after every instant that each active job is in one group that keeps all SLOs, and the pools suffice.
            progress: called with the number of jobs that have left.
        """
        active = self._start(scenario)
        state = active.state
        run = Run(scenario, state)
        arrivals = in_order_of_arrival(scenario)
        admissions = dict.fromkeys(STRATEGIES, 0)
        bound_usd = 0.0
        now_s = 0.0
        arrived = left = 0
        while left < len(arrivals):
            before_s = now_s
            next_arrival_s = arrivals[arrived].arrival_s if arrived < len(arrivals) else np.inf
            now_s = max(min(next_arrival_s, active.next_departure_s(before_s)), before_s)
            until_s = now_s + INSTANT_S
            began = perf_counter()
            active.progress(now_s - before_s)
            bound_usd += active.best.bound_usd_per_hour * (now_s - before_s) / 3600
            leaving = active.leave(now_s, until_s)
            left += len(leaving)
            coming = [job for job in arrivals[arrived:] if job.arrival_s <= until_s]
            arrived += len(coming)
            active.arrive(coming, now_s)
            # One pass over the queue is enough: who comes now stands behind whoever waited.
            admitted = active.serve(now_s)
            run.decision_s.append(perf_counter() - began)
            run.log += [Departed(now_s, state.job_id(row)) for row in leaving]
            run.log += [Arrived(now_s, job) for job in coming]
            for row in admitted:
                admissions[strategy(active.pool, active.column[row], row)] += 1
                run.log.append(Admitted(now_s, state.job_id(row), Placement(None)))
            rollout_nodes, training_nodes = active.provisioned()
            run.time_s.append(now_s)
            run.rollout_nodes.append(rollout_nodes)
            run.training_nodes.append(training_nodes)
            if check:
                active.check()
            if progress is not None:
                progress(left)
        found = replace(metrics(run), admissions=admissions)
        bound_usd = min(bound_usd, found.cost_usd)  # they differ by rounding where all was proven
        extra = {"bound_usd": bound_usd, "gap": _gap(found.cost_usd, bound_usd)}
        return Outcome(found, run.time_s, run.rollout_nodes, run.training_nodes, run.decision_s, extra)

    def _start(self, scenario: Scenario) -> ActiveJobs:
        return ActiveJobs(scenario, self.objective, self.node_limit, self.max_columns)


def _gap(value: float, bound: float) -> float:
    return max(0.0, (value - bound) / value) if value > 0 else 0.0
