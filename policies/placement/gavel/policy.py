"""`gavel`, the paper's baseline Gavel+: Gavel's linear program at job granularity, solved anew at every arrival and departure.

What Gavel is (Narayanan et al., OSDI 2020): a scheduler that gives every job a fraction of time on every accelerator type, by a
linear program over the jobs' throughputs, and realises the fractions in rounds, in which a job holds all its workers alone.
Gavel+ (RollMux, arXiv 2512.11306, section 6) is that at job granularity with both pools: phases of jobs are never interleaved.

How it is adapted (docs/gavel.md has the reasons): a resource type is a worker set, either rollout and training nodes together,
where a job runs as it would alone, or training nodes alone, where it runs both phases in turn; worker sets are bought, in whole
numbers, at least $/h such that every job keeps its SLO on average over its rounds.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np

from policies.placement.gavel.active import ActiveJobs
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Placement
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.metrics import STRATEGIES, Outcome, metrics
from rollmux_env.replay.run import INSTANT_S, Run, in_order_of_arrival
from rollmux_env.scenario import Scenario


class Gavel:
    """Gavel+: jobs take turns on worker sets, a round at a time; the fractions are the cheapest that keep every SLO.

    Args:
        training_slowdown: how many times longer training takes on a rollout node than on a training node; it makes rollout nodes
            alone a third resource type. The paper's hardware: 989.5 / 148 = 6.69, by bf16 TFLOPS. None: they do not train, since
            a scenario file does not say how fast they would.
    """

    can_run = False  # jobs change worker sets for free, and rounds are infinitely short beside a job's stay

    def __init__(self, training_slowdown: float | None = None) -> None:
        number = isinstance(training_slowdown, int | float) and not isinstance(training_slowdown, bool)
        if training_slowdown is not None and not (number and 0 < training_slowdown < np.inf):
            raise InputError(f"training_slowdown: must be a number above 0, not {training_slowdown!r}")
        self.training_slowdown = training_slowdown

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario: between events each job progresses at the speed that its fractions give it.

        Nothing is paid for turns or for another set after an event, so `migrations` is 0. A job admitted to worker sets of its own
        counts as `isolated`, else as `direct_packing`. `decision_s` has one entry an instant. `extra` holds `relaxed_usd`, what
        worker sets in fractions would have cost, and the shares of the jobs' running time on training nodes alone
        (`colocated_share`) and on sets with other jobs (`shared_share`).

        Args:
            check: assert after every instant that time, memory and pools suffice and all SLOs are kept.

        Raises:
            PlanError: the solver finds no place for the first job of the queue on an empty cluster.
        """
        active = ActiveJobs(scenario, self.training_slowdown)
        run = Run(scenario, active.state)
        arrivals = in_order_of_arrival(scenario)
        admissions = dict.fromkeys(STRATEGIES, 0)
        relaxed_usd = now_s = 0.0
        arrived = left = 0
        while left < len(arrivals):
            before_s = now_s
            next_arrival_s = arrivals[arrived].arrival_s if arrived < len(arrivals) else np.inf
            now_s = max(min(next_arrival_s, active.next_departure_s(before_s)), before_s)
            if now_s == np.inf:
                raise PlanError(f"gavel: no place found for job {active.waiting[0].id}")
            until_s = now_s + INSTANT_S
            began = perf_counter()
            active.progress(now_s - before_s)
            relaxed_usd += active.allocation.relaxed_usd_per_hour * (now_s - before_s) / 3600
            leaving = active.leave(now_s, until_s)
            left += len(leaving)
            coming = [job for job in arrivals[arrived:] if job.arrival_s <= until_s]
            arrived += len(coming)
            active.arrive(coming, now_s)
            admitted = active.serve(now_s)
            run.decision_s.append(perf_counter() - began)
            run.log += [Departed(now_s, job_id) for job_id in leaving]
            run.log += [Arrived(now_s, job) for job in coming]
            run.log += [Admitted(now_s, job_id, Placement(None)) for job_id in admitted]
            for job_id in admitted:
                admissions["direct_packing" if active.shares_nodes(job_id) else "isolated"] += 1
            rollout_nodes, training_nodes = active.allocation.nodes
            run.time_s.append(now_s)
            run.rollout_nodes.append(rollout_nodes)
            run.training_nodes.append(training_nodes)
            if check:
                active.check()
        extra = {
            "relaxed_usd": relaxed_usd,
            "colocated_share": active.alone_s / active.held_s,
            "shared_share": active.shared_s / active.held_s,
        }
        found = replace(metrics(run), admissions=admissions)
        return Outcome(found, run.time_s, run.rollout_nodes, run.training_nodes, run.decision_s, extra)
