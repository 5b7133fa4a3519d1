"""`rfabric`: circuits are set anew only where the predicted slack covers it (OrchestrRL, arXiv 2601.01209).

The rule is the paper's: with predicted slack W and reconfiguration time T, the old topology stays where W < T. What to switch to is
ours: between two steps with slack enough no switch can be, so the topology is the one that is expected to take least for all steps
up to the next such step. So it is never expected to be later than any topology that stays: each such part is as short as can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.network.static import Static
from rollmux_env.network.play import Forecast


@dataclass(frozen=True)
class RFabric:
    """Switches in slack.

    Args:
        margin: the slack must be so many times the reconfiguration time; above 1 it is careful about predictions.
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise ValueError(f"margin must be above 0, not {self.margin!r}")

    def first(self, forecast: Forecast) -> int:
        """The topology that it begins with."""
        return Static().first(forecast)

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """What is there, or what is best until circuits can be set anew again."""
        if not self._has_slack(forecast, step):
            return present
        part, count = [step], len(forecast.steps)
        while len(part) < count and not self._has_slack(forecast, (step + len(part)) % count):
            part.append((step + len(part)) % count)
        expected_s = [sum(forecast.step_s(one, topology) for one in part) for topology in range(forecast.seconds.shape[1])]
        return present if expected_s[present] <= min(expected_s) * (1 + 1e-9) else expected_s.index(min(expected_s))

    def _has_slack(self, forecast: Forecast, step: int) -> bool:
        return forecast.slack_s(step) >= self.margin * forecast.reconfigure_s
