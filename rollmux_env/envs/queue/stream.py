"""A fluid replay that stops wherever a waiting job may be served."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from rollmux_env.cluster.events import Event
from rollmux_env.cluster.plan import Plan
from rollmux_env.cluster.remaining import done_s
from rollmux_env.cluster.state import State
from rollmux_env.envs.queue.choices import NOBODY, Decision, MostChoices, decision_of
from rollmux_env.errors import PlanError
from rollmux_env.replay.run import Arrivals, Run, begin_instant, end_instant, initial_state, waits_for_ever
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.order import QueueRules, rows_of
from rollmux_env.scheduler.serving import QueueServer
from rollmux_env.workloads.fleets import alone_s


class _Asked:
    """The policy of a stream: places are the agent's, which keeps every SLO because its choices do."""

    keeps_slo = True

    def __init__(self, rules: QueueRules) -> None:
        self.queue_rules = rules

    def decide(self, state: State, event: Event) -> Plan:
        """Leave a waiting job in the queue."""
        return ()


class _OpenServer(QueueServer):
    """Server of a queue that lets jobs arrive, and leaves it to the agent to serve them."""

    def _serve(self, now_s: float, position: int = 0) -> None:
        self._planner.queue_may_advance = False


class QueueStream:
    """A stream of jobs on a fixed fleet, whose queue is served decision by decision.

    Args:
        scenario: Scenario with the jobs.
        rules: Rules that order the waiting jobs.
        most: Largest numbers of choices.

    Attributes:
        run: Record of the replay.
        decision: Choices of the present decision.
        weighted_h: Weighted jobs in the system times hours, so far.
        scale_h: Sum of the jobs' weights times the mean of their hours alone.
    """

    def __init__(self, scenario: Scenario, rules: QueueRules, most: MostChoices) -> None:
        self._rules, self._most, self._policy = rules, most, _Asked(rules)
        self.run = Run(scenario, initial_state(scenario.cluster, self._policy))
        self._scheduler = Scheduler(self.state, self._policy)
        self._scheduler.server = _OpenServer(self._scheduler.planner)
        self._arrivals = Arrivals(scenario)
        self._has_begun = False
        self.decision = Decision([NOBODY], [], left_out=False)
        self.weighted_h = self._stayed_h = 0.0
        jobs = scenario.jobs
        self.scale_h = sum(job.weight for job in jobs) * sum(map(alone_s, jobs)) / len(jobs) / 3600

    @property
    def state(self) -> State:
        """State of the cluster."""
        return self.run.state

    @property
    def is_over(self) -> bool:
        """Whether all jobs have departed."""
        return self.state.departed == len(self.run.scenario.jobs)

    @property
    def worked_h(self) -> float:
        """Weighted work that the jobs have done, those that have departed too, in hours alone: of a fixed stay what has passed."""
        rows = rows_of(self.state, [*self.state.tables.job_rows])
        rows = rows[np.isfinite(self.state.tables.job_records["iterations"][rows])]
        return self._stayed_h + float((self.state.tables.weights[rows] * done_s(self.state, rows)).sum()) / 3600

    @property
    def gaps_passed(self) -> float:
        """Time since the first arrival in mean gaps between arrivals, or in hours if all jobs arrive at once."""
        arrivals_s = [job.arrival_s for job in self.run.scenario.jobs]
        first_s, last_s = min(arrivals_s), max(arrivals_s)
        gap_s = (last_s - first_s) / len(arrivals_s) if last_s > first_s else 3600.0
        return (self.state.now_s - first_s) / gap_s

    @property
    def may_wait(self) -> bool:
        """Whether the choice that serves no job is allowed: something happens later."""
        return self._next_s() < inf

    def act(self, choice: int) -> None:
        """Carry out a choice, and continue to the next decision or to the end."""
        plan = self.decision.choices[choice].plan
        if plan:
            place = [action.job_id for action in plan]
            self._scheduler.planner.carry_out(plan, 0, place)
            self._look()
            if len(self.decision.choices) > 1:
                return
        self.advance()

    def advance(self) -> None:
        """Continue with the instants after the present one until a job can be served, or to the end."""
        while True:
            if self._has_begun:
                end_instant(self.run, self._scheduler, self.state.now_s)
            if self.is_over:
                self.decision = Decision([NOBODY], [], left_out=False)
                return
            now_s = self._next_s()
            if not isfinite(now_s):
                raise PlanError(waits_for_ever(self.state))
            if self._has_begun:
                running, passed_h = [*self.state.stays.placed_at_s], (now_s - self.state.now_s) / 3600
                self.weighted_h += self._weight([*self.state.waiting, *running]) * passed_h
                self._stayed_h += self._weight([job for job in running if self.state.job(job).iterations is None]) * passed_h
            self._has_begun = True
            self._scheduler.jobs.end_stays(now_s)
            for _ in begin_instant(self._scheduler, now_s, self._arrivals):
                pass  # without phases there are no commands to carry out
            self._look()
            if len(self.decision.choices) > 1:
                return

    def _look(self) -> None:
        self.decision = decision_of(self.state, self._rules, self._policy, self._most)

    def _next_s(self) -> float:
        """Return the time of the next instant if no job is served now, in seconds."""
        planner = self._scheduler.planner
        planner.find_next_s(self.state.now_s)
        next_s = min(self._arrivals.next_s, self.state.next_change_s(), planner.next_s)
        return max(next_s, self.state.now_s) if self._has_begun else next_s

    def _weight(self, job_ids: Sequence[str]) -> float:
        """Return the sum of the weights of jobs."""
        return float(self.state.tables.weights[rows_of(self.state, job_ids)].sum())
