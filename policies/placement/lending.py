"""The option `lend=true` of placement policies: training nodes sample responses while they have nothing to train."""

from __future__ import annotations

from policies.api import Policy
from policies.placement.baselines import ColocatedJobs
from rollmux_env.errors import InputError
from rollmux_env.replay.lent import replay_lent
from rollmux_env.replay.metrics import Outcome, outcome
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.order import rules_of


class Lending:
    """A yardstick whose groups lend idle training nodes to their own rollouts. Its planner does not count on the lending.

    Raises:
        InputError: The policy is a yardstick itself, runs rollouts on training nodes anyway, or parks jobs.
    """

    def __init__(self, policy: Policy) -> None:
        if (rules := rules_of(policy)) is not None and rules.park:
            raise InputError("lend: does not go with park=true")
        if isinstance(policy, ColocatedJobs) or not hasattr(policy, "decide"):
            raise InputError("lend: does not go with a policy that only replays, or that rolls out on training nodes")
        self._policy = policy

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure the result. T_solo is that of a job without lending."""
        return outcome(replay_lent(scenario, self._policy, check))
