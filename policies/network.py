"""Network policies: which circuits connect the leaf switches of a fabric, and when they are reconfigured.

- `static` keeps the same circuits all the time.
- `rfabric` reconfigures circuits only while predicted slack hides the time it takes (OrchestrRL, arXiv 2601.01209). As in the
  paper, the old topology stays if the predicted slack W is below the reconfiguration time T. The choice of the new topology is
  ours. No switch is possible between two steps with enough slack. So the policy takes the topology with the least expected time
  over all steps up to the next such step. The expected time of each such stretch is therefore minimal.
- `oracle` is the optimum with full knowledge of the future. No real system can run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policies.named import make_named
from rollmux_env.errors import InputError
from rollmux_env.fabric.play import Forecast as Forecast
from rollmux_env.fabric.play import Hour, NetworkPolicy, Yardstick
from rollmux_env.fabric.steps import WEIGHTS
from rollmux_env.kernel.tables import Floats, Ints

_TIE_S = 1e-9  # gain in seconds that does not justify a switch


class Static:
    """Network policy that keeps the topology with the shortest expected iteration."""

    def first(self, forecast: Forecast) -> int:
        """Choose the topology at the start."""
        totals_s = _compute_expected_s(forecast, range(len(forecast.steps)))
        return totals_s.index(min(totals_s))

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """Return the current topology."""
        return present


@dataclass(frozen=True)
class RFabric(Static):
    """Network policy that reconfigures circuits only when predicted slack covers it. The first topology is that of `static`.

    Args:
        margin: Required slack as a multiple of the reconfiguration time. Values above 1 allow for errors of the prediction.
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise ValueError(f"margin must be above 0, not {self.margin!r}")

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """Return the current topology, or the best one until the next step with enough slack."""
        if not self._has_slack(forecast, step):
            return present
        part, count = [step], len(forecast.steps)
        while len(part) < count and not self._has_slack(forecast, (step + len(part)) % count):
            part.append((step + len(part)) % count)
        expected_s = _compute_expected_s(forecast, part)
        return present if expected_s[present] <= min(expected_s) * (1 + 1e-9) else expected_s.index(min(expected_s))

    def _has_slack(self, forecast: Forecast, step: int) -> bool:
        return forecast.slack_s(step) >= self.margin * forecast.reconfigure_s


def _compute_expected_s(forecast: Forecast, steps: Iterable[int]) -> list[float]:
    """Return the expected seconds of some steps on each topology."""
    return [sum(forecast.step_s(step, topology) for step in steps) for topology in range(len(forecast.seconds[0]))]


class Oracle:
    """Network policy that minimises the total time of an hour, including the delay of each switch that slack does not hide.

    The duration of an iteration depends only on the topologies at its start and end. The optimum is therefore a shortest path over
    iterations, where each iteration is itself a shortest path over its steps.
    """

    def choose_all(self, hour: Hour) -> Ints:
        """Return the topology of every step, shape (iterations, steps)."""
        iterations, steps = len(hour.before_s), len(hour.forecast.steps)
        count = len(hour.forecast.seconds[0])
        ways = [_ways(hour, i) for i in range(iterations)]
        arrival_s = np.zeros(count)
        before = np.empty((iterations, count), np.int64)
        for i, way in enumerate(ways):
            through_s = arrival_s[:, None] + way.taken_s
            before[i] = np.argmin(through_s, axis=0)
            arrival_s = through_s.min(axis=0)
        chosen = np.empty((iterations, steps), np.int64)
        last = int(np.argmin(arrival_s))
        for i in reversed(range(iterations)):
            first = int(before[i, last])
            for s in reversed(range(steps)):
                chosen[i, s] = last
                last = int(ways[i].before[s, first, last])
        return chosen


class _Ways(NamedTuple):
    """Shortest paths through one iteration, with C topologies and S steps.

    Attributes:
        taken_s: Seconds from the topology before the first step to the topology of the last step, shape (C, C).
        before: Topology before each step of such a path, by the path's first topology and the step's own, shape (S, C, C).
    """

    taken_s: Floats
    before: Ints


def _ways(hour: Hour, i: int) -> _Ways:
    forecast = hour.forecast
    count = len(forecast.seconds[0])
    now_s = np.where(np.eye(count, dtype=bool), 0.0, np.inf)
    steps = np.empty((len(forecast.steps), count, count), np.int64)
    for s, step in enumerate(forecast.steps):
        ready_s = now_s + hour.before_s[i, s]
        if step.pattern == WEIGHTS:
            ready_s = np.maximum(ready_s, hour.generation_s[i])
        switched_s = np.maximum(ready_s, now_s + forecast.reconfigure_s)
        from_s = np.repeat(switched_s[:, :, None], count, axis=2)  # axes: topology before the iteration, before the step, at it
        same = np.arange(count)
        from_s[:, same, same] = ready_s
        steps[s] = np.argmin(from_s - _TIE_S * np.eye(count), axis=1)
        now_s = (
            np.take_along_axis(from_s, steps[s][:, None, :], axis=1)[:, 0]
            + np.maximum(hour.beside_s[i, s], forecast.seconds[step.pattern])[None, :]
        )
    return _Ways(now_s, steps)


NETWORK: dict[str, Callable[..., NetworkPolicy | Yardstick]] = {"static": Static, "rfabric": RFabric, "oracle": Oracle}


def make_network(spec: str) -> NetworkPolicy | Yardstick:
    """Create a network policy by name, or one of the user's own as `module:Class`, with options as in `rfabric,margin=1.5`.

    Raises:
        InputError: The name or an option is unknown, or the user's class is no network policy.
    """
    policy = make_named("network policy", NETWORK, spec)
    if not isinstance(policy, NetworkPolicy) and not hasattr(policy, "choose_all"):
        raise InputError(f"network policy '{spec}': has neither the methods `first` and `topology_for` nor `choose_all`")
    return policy
