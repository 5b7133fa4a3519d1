"""The yardstick `naive`: Algorithm 1's groups without an order of phases."""

from __future__ import annotations

from policies.placement.algorithm1 import Algorithm1
from rollmux_env.replay.metrics import Outcome, outcome
from rollmux_env.replay.unordered import replay_unordered
from rollmux_env.scenario import Scenario


class Naive:
    """Jobs share nodes as under `rollmux`, and run their phases whenever they are ready: see `rollmux_env.replay.unordered`.

    Args:
        prune: as of Algorithm 1.
    """

    def __init__(self, prune: bool = True) -> None:
        self._planner = Algorithm1(prune=prune)

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure it."""
        return outcome(replay_unordered(scenario, self._planner, check))
