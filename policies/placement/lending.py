"""The options `lend=true` and `pipe=true` of placement policies: both phases of a job at once, in its nodes' bubbles."""

from __future__ import annotations

from policies.api import Policy
from policies.placement.baselines import ColocatedJobs
from rollmux_env.errors import InputError
from rollmux_env.replay.lent import Shorten, lent_share, replay_shortened
from rollmux_env.replay.outcome import Outcome, outcome
from rollmux_env.replay.piped import piped_share
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.order import rules_of

SHORTENED: dict[str, Shorten] = {"lend": lent_share, "pipe": piped_share}
"""Function that returns the factor of a group's period, by option.

`lend`: idle training nodes sample responses. `pipe`: training nodes take complete groups of responses during the rollout.
"""


class Shortened:
    """A yardstick whose groups have shorter periods than its planner counts on.

    Args:
        policy: Policy that places the jobs.
        option: Option that shortens the periods, a key of `SHORTENED`.

    Raises:
        InputError: The policy is a yardstick itself, runs rollouts on training nodes anyway, or parks jobs.
    """

    def __init__(self, policy: Policy, option: str) -> None:
        if (rules := rules_of(policy)) is not None and rules.park:
            raise InputError(f"{option}: does not go with park=true")
        if isinstance(policy, ColocatedJobs) or not hasattr(policy, "decide"):
            raise InputError(f"{option}: does not go with a policy that only replays, or that rolls out on training nodes")
        self._policy, self._option = policy, option

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure the result. T_solo is that of a job without the option."""
        return outcome(replay_shortened(scenario, self._policy, self._option, SHORTENED[self._option], check))
