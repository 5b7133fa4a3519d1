"""The fluid replay: between events each member of a group progresses at 1/period iterations per second."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.replay.checks import check_clock, check_state
from rollmux_env.replay.run import INSTANT_S, Arrivals, Run, Ticks, instant, waits_for_ever
from rollmux_env.scenario import Scenario


def replay(scenario: Scenario, policy: Policy, check: bool = False) -> Run:
    """Replay a scenario under a placement policy.

    Args:
        check: assert the invariants of `rollmux_env.replay.checks` after every instant.

    Raises:
        PlanError: the policy broke an invariant, or left jobs waiting that nothing can wake.
    """
    run = Run(scenario, State(scenario.cluster))
    state = run.state
    arrivals = Arrivals(scenario)
    ticks = Ticks(policy, arrivals.next_s)
    while state.departed < len(scenario.jobs):
        now_s = min(arrivals.next_s, state.next_departure_s(), state.next_resume_s(), ticks.next_s)
        if not np.isfinite(now_s):
            raise PlanError(waits_for_ever(state))
        now_s = max(now_s, state.now_s)
        instant(run, policy, now_s, state.departing(now_s + INSTANT_S), arrivals, ticks)
        if check:
            check_clock(run.time_s[-2:])
            check_state(state, arrivals.taken, policy.keeps_slo)
    return run
