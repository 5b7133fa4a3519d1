"""Network policies: which circuits join the leaves of a fabric, and when they are set anew.

`static`: the same circuits all the time.

`rfabric`: circuits are set anew only where the predicted slack covers it (OrchestrRL, arXiv 2601.01209). The rule is the paper's:
with predicted slack W and reconfiguration time T, the old topology stays where W < T. What to switch to is ours: between two steps
with slack enough no switch can be, so the topology is the one that is expected to take least for all steps up to the next such
step. So it is never expected to be later than any topology that stays: each such part is as short as can be.

`oracle`: the best that can be done with the circuits, by one who knows all that will happen. Nobody could run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from policies.named import make_named
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.network.play import Forecast, Hour, NetworkPolicy, Yardstick
from rollmux_env.network.steps import WEIGHTS

_TIE_S = 1e-9  # gained by a switch, and no reason for one


class Static:
    """The topology with the shortest iteration, if none is ever changed."""

    def first(self, forecast: Forecast) -> int:
        """The topology that it begins with."""
        totals_s = _expected_s(forecast, range(len(forecast.steps)))
        return totals_s.index(min(totals_s))

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """What is there."""
        return present


@dataclass(frozen=True)
class RFabric(Static):
    """Switches in slack, and begins as `static`.

    Args:
        margin: the slack must be so many times the reconfiguration time; above 1 it is careful about predictions.
    """

    margin: float = 1.0

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise ValueError(f"margin must be above 0, not {self.margin!r}")

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """What is there, or what is best until circuits can be set anew again."""
        if not self._has_slack(forecast, step):
            return present
        part, count = [step], len(forecast.steps)
        while len(part) < count and not self._has_slack(forecast, (step + len(part)) % count):
            part.append((step + len(part)) % count)
        expected_s = _expected_s(forecast, part)
        return present if expected_s[present] <= min(expected_s) * (1 + 1e-9) else expected_s.index(min(expected_s))

    def _has_slack(self, forecast: Forecast, step: int) -> bool:
        return forecast.slack_s(step) >= self.margin * forecast.reconfigure_s


def _expected_s(forecast: Forecast, steps: Iterable[int]) -> list[float]:
    """Seconds of some steps on each topology."""
    return [sum(forecast.step_s(step, topology) for step in steps) for topology in range(len(forecast.seconds[0]))]


class Oracle:
    """The shortest way through all steps and topologies, with every late switch counted.

    What an iteration takes depends on the topology that it begins and ends with alone, so it is a shortest path of iterations, each
    the shortest path of its steps.
    """

    def choose_all(self, hour: Hour) -> Ints:
        """(iterations, steps) topologies."""
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
    """The shortest ways through an iteration.

    Attributes:
        taken_s: (C, C) seconds from the topology before its first step to that of its last.
        before: (S, C, C) the topology before each step of such a way, by the first and by that of the step.
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
        from_s = np.repeat(switched_s[:, :, None], count, axis=2)  # first, before, now
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
        InputError: unknown name or options, or a class of the user's own that is no network policy; one line.
    """
    policy = make_named("network policy", NETWORK, spec)
    if not isinstance(policy, NetworkPolicy) and not hasattr(policy, "choose_all"):
        raise InputError(f"network policy '{spec}': has neither the methods `first` and `topology_for` nor `choose_all`")
    return policy
