"""`static`: the same circuits all the time."""

from __future__ import annotations

from rollmux_env.network.play import Forecast


class Static:
    """The topology with the shortest iteration, if none is ever changed."""

    def first(self, forecast: Forecast) -> int:
        """The topology that it begins with."""
        totals_s = [
            sum(forecast.step_s(step, topology) for step in range(len(forecast.steps)))
            for topology in range(forecast.seconds.shape[1])
        ]
        return totals_s.index(min(totals_s))

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """What is there."""
        return present
