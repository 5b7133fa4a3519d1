"""A network policy example: take the best circuits for the next step wherever the idle time before it covers the change."""

from policies.network import Forecast


class PatientCircuits:
    """Begin without circuits, and change only if the slack is at least `margin` times the reconfiguration time."""

    def __init__(self, margin: float = 2.0) -> None:
        self.margin = margin

    def first(self, forecast: Forecast) -> int:
        return 0

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        if forecast.slack_s(step) < self.margin * forecast.reconfigure_s:
            return present
        topologies = range(len(forecast.seconds[0]))
        return min(topologies, key=lambda topology: forecast.step_s(step, topology))
