"""`oracle`: the best that can be done with the circuits, by one who knows all that will happen. Nobody could run it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.network.play import Hour
from rollmux_env.network.steps import WEIGHTS

_TIE_S = 1e-9  # gained by a switch, and no reason for one


class Oracle:
    """The shortest way through all steps and topologies, with every late switch counted.

    What an iteration takes depends on the topology that it begins and ends with alone, so it is a shortest path of iterations, each
    the shortest path of its steps.
    """

    def choose_all(self, hour: Hour) -> Ints:
        """(iterations, steps) topologies."""
        iterations, steps = hour.before_s.shape
        count = hour.forecast.seconds.shape[1]
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
    count = forecast.seconds.shape[1]
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
