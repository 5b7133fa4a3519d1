"""The fluid replay: between events each member of a group progresses at 1/period iterations per second."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.plan import Policy
from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel.pools import penalty_usd
from rollmux_env.replay.checks import check_clock, check_state
from rollmux_env.replay.run import Arrivals, Run, initial_state, placements, waits_for_ever
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.core import Scheduler

MAX_INSTANTS = 100_000  # limit beyond four instants per job: wakes of a policy every hour for eleven years


def replay(scenario: Scenario, policy: Policy, check: bool = False) -> Run:
    """Replay a scenario under a placement policy.

    Args:
        scenario: Scenario to replay.
        policy: Placement policy.
        check: Whether to assert the invariants of `rollmux_env.replay.checks` after every instant.

    Raises:
        InputError: If the policy asks to be woken so often that the replay would not end.
        PlanError: If a plan of the policy breaks an invariant, or jobs wait and no event remains.
    """
    run = Run(scenario, initial_state(scenario.cluster, policy))
    state = run.state
    scheduler = Scheduler(state, policy)
    run.decision_s = scheduler.server.decision_s
    arrivals = Arrivals(scenario)
    while state.departed < len(scenario.jobs):
        now_s = min(arrivals.next_s, state.next_change_s(), scheduler.planner.next_s)
        if not np.isfinite(now_s):
            raise PlanError(waits_for_ever(state))
        now_s = max(now_s, state.now_s)
        scheduler.jobs.end_stays(now_s)
        for _ in placements(run, scheduler, now_s, arrivals):
            pass  # the decisions are applied and recorded; without phases there are no commands to carry out
        if not policy.keeps_slo:
            run.penalised_usd_per_hour.append(state.usd_per_hour + penalty_usd(state.view))
        if len(run.time_s) > MAX_INSTANTS + 4 * len(scenario.jobs):
            raise InputError(f"fluid replay: the policy has been woken {MAX_INSTANTS:,} times after {now_s / 3600:,.0f} h")
        if check:
            check_clock(run.time_s[-2:])
            check_state(state, arrivals.taken, policy.keeps_slo)
    return run
