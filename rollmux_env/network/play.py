"""Iterations of a job on a fabric whose circuits a policy may set anew: a clock, and what was late.

While circuits are set anew nothing crosses the fabric. That begins when the last traffic has ended, so it costs nothing where the
slack is long enough, and is on the critical path where it is not.

What a policy answers is checked:

N1  a topology is the number of one that there is
N2  `choose_all` returns one for every step of every iteration
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from rollmux_env import portable
from rollmux_env.errors import PlanError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.network.fabric import Circuits, Fabric, circuits_for, demand_between, no_circuits, traffic_s
from rollmux_env.network.steps import PATTERNS, WEIGHTS, Iteration, Step
from rollmux_env.user_code import brief, guarded

_WHO = "the network policy"


@dataclass(frozen=True)
class Forecast:
    """What a policy knows: the iteration as it is expected, over and over.

    Attributes:
        steps: in order; after the last comes the first. waits_s: before the `weights`, for generation.
        seconds: (patterns, topologies) of the traffic alone. reconfigure_s: to set circuits anew.
    """

    steps: tuple[Step, ...]
    waits_s: float
    seconds: Floats
    reconfigure_s: float

    def slack_s(self, step: int) -> float:
        """Seconds in which the fabric is expected to idle before a step."""
        waits_s = self.waits_s if self.steps[step].pattern == WEIGHTS else 0.0
        return self.steps[step].before_s + waits_s

    def step_s(self, step: int, topology: int) -> float:
        """Seconds that a step is expected to take, without what comes before it."""
        return max(self.steps[step].beside_s, float(self.seconds[self.steps[step].pattern, topology]))


@dataclass(frozen=True)
class Hour:
    """What really happens, drawn beforehand.

    Attributes:
        forecast: of it. before_s, beside_s: (iterations, steps). generation_s: (iterations,).
    """

    forecast: Forecast
    before_s: Floats
    beside_s: Floats
    generation_s: Floats


@dataclass(frozen=True)
class Played:
    """What came of it.

    Attributes:
        seconds: in all. late_s: of these, waited for circuits on the critical path. switches: how often they were set anew.
        topologies: (iterations, steps) in use.
    """

    seconds: float
    late_s: float
    switches: int
    topologies: Ints


@runtime_checkable
class NetworkPolicy(Protocol):
    """Chooses the topology of each step."""

    def first(self, forecast: Forecast) -> int:
        """The topology that it begins with."""
        ...

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """The topology for a step, when all traffic before it has ended."""
        ...


class Yardstick(Protocol):
    """Knows all that will happen: nobody could run it."""

    def choose_all(self, hour: Hour) -> Ints:
        """(iterations, steps) topologies."""
        ...


def topologies(fabric: Fabric, iteration: Iteration) -> tuple[Circuits, ...]:
    """Without circuits, made for each pattern, and made for an iteration's traffic as a whole."""
    if not fabric.optical:
        return (no_circuits(fabric),)
    demands = [demand_between(fabric, traffic) for traffic in iteration.traffic]
    whole = sum((demands[step.pattern] for step in iteration.steps), np.zeros_like(demands[0]))
    made = [circuits_for(name, fabric, demand) for name, demand in zip(PATTERNS, demands, strict=True)]
    return (no_circuits(fabric), *made, circuits_for("mixed", fabric, whole))


def forecast_of(fabric: Fabric, iteration: Iteration, choices: Sequence[Circuits], reconfigure_s: float) -> Forecast:
    """What is to be expected; the wait for generation is what the quickest topologies leave of it."""
    seconds = np.array([[traffic_s(fabric, traffic, circuits) for circuits in choices] for traffic in iteration.traffic])
    training_s = sum(step.before_s + max(step.beside_s, seconds[step.pattern].min()) for step in iteration.steps[:-1])
    waits_s = max(0.0, iteration.generation_s - float(training_s) - iteration.steps[-1].before_s)
    return Forecast(iteration.steps, waits_s, seconds, reconfigure_s)


def draw_hour(forecast: Forecast, generation_s: float, iterations: int, cv: float, seed: int) -> Hour:
    """Draw what happens: every expected time is multiplied by a lognormal of mean 1.

    Args:
        cv: coefficient of variation.
    """
    random = np.random.Generator(np.random.Philox(seed))
    sigma = math.sqrt(math.log1p(cv**2))
    factors = portable.exp(sigma * random.standard_normal((2, iterations, len(forecast.steps))) - sigma**2 / 2)
    longer = portable.exp(sigma * random.standard_normal(iterations) - sigma**2 / 2)
    before_s = np.array([step.before_s for step in forecast.steps]) * factors[0]
    beside_s = np.array([step.beside_s for step in forecast.steps]) * factors[1]
    return Hour(forecast, before_s, beside_s, generation_s * longer)


def play(hour: Hour, policy: NetworkPolicy | Yardstick) -> Played:
    """Play what happens under a policy.

    Raises:
        PlanError: the policy broke N1 or N2, or raised an exception; one line.
    """
    forecast = hour.forecast
    count = len(forecast.seconds[0])
    topology_for: Callable[[Forecast, int, int], int] | None = None
    if isinstance(policy, NetworkPolicy):
        topology_for = guarded(policy.topology_for, _WHO)
        used = np.empty_like(hour.before_s, np.int64)
        present = _checked(guarded(policy.first, _WHO)(forecast), count)
    else:
        used = np.array(guarded(policy.choose_all, _WHO)(hour))
        if used.shape != hour.before_s.shape:
            raise PlanError(f"N2: the network policy chose topologies of shape {used.shape}, not {hour.before_s.shape}")
        present = _checked(used[0, 0], count)
    now_s = late_s = 0.0
    switches = 0
    for i in range(len(hour.before_s)):
        generated_s = now_s + float(hour.generation_s[i])
        for s, step in enumerate(forecast.steps):
            chosen = used[i, s] if topology_for is None else topology_for(forecast, s, present)
            used[i, s] = topology = _checked(chosen, count)
            ready_s = now_s + float(hour.before_s[i, s])
            if step.pattern == WEIGHTS:
                ready_s = max(ready_s, generated_s)
            if topology != present:
                switches += 1
                set_s = now_s + forecast.reconfigure_s
                late_s += max(0.0, set_s - ready_s)
                ready_s, present = max(ready_s, set_s), topology
            now_s = ready_s + max(float(hour.beside_s[i, s]), float(forecast.seconds[step.pattern, topology]))
    return Played(now_s, late_s, switches, used)


def _checked(topology: object, count: int) -> int:
    """N1."""
    if not isinstance(topology, int | np.integer) or not 0 <= topology < count:
        raise PlanError(f"N1: the network policy chose topology {brief(topology)}, not one of 0 to {count - 1}")
    return int(topology)
