"""Simulation of a job's iterations on a fabric whose circuits a policy may reconfigure.

During a reconfiguration no traffic crosses the fabric. It begins when the last traffic has ended. It costs nothing if the slack
before the next step is long enough, and lies on the critical path otherwise.

A policy's answers are checked. An error message begins with the name of its rule:

N1  a topology is the number of an available topology
N2  `choose_all` returns one topology for every step of every iteration
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from rollmux_env import portable
from rollmux_env.errors import PlanError
from rollmux_env.fabric.steps import PATTERNS, WEIGHTS, ExpectedIteration, FabricStep
from rollmux_env.fabric.topology import Circuits, Fabric, circuits_for, demand_between, no_circuits, traffic_s
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.user_code import brief, guarded, read_only

_WHO = "the network policy"


@dataclass(frozen=True)
class Forecast:
    """The information that a network policy has: the expected iteration, which repeats. Arrays are read-only.

    Attributes:
        steps: Steps of an iteration that use the fabric, in order.
        waits_s: Expected wait for generation before the `weights` step, in seconds.
        seconds: Expected seconds of the traffic of each pattern with each topology, without computation, shape (patterns,
            topologies). Patterns are in the order of `rollmux_env.fabric.steps.PATTERNS`.
        reconfigure_s: Seconds of a reconfiguration of the circuits.
    """

    steps: tuple[FabricStep, ...]
    waits_s: float
    seconds: Floats
    reconfigure_s: float

    def slack_s(self, step: int) -> float:
        """Return the seconds for which the fabric is expected to be idle before a step.

        Args:
            step: Number of the step in the iteration.
        """
        waits_s = self.waits_s if self.steps[step].pattern == WEIGHTS else 0.0
        return self.steps[step].before_s + waits_s

    def step_s(self, step: int, topology: int) -> float:
        """Return the expected seconds of a step with a topology, without the slack before it.

        Args:
            step: Number of the step in the iteration.
            topology: Number of the topology.
        """
        return max(self.steps[step].beside_s, float(self.seconds[self.steps[step].pattern, topology]))


@dataclass(frozen=True)
class Hour:
    """The actual durations of some iterations, drawn in advance, in seconds. Arrays are read-only.

    Attributes:
        forecast: Forecast that a policy is given.
        before_s: Computation before each step, shape (iterations, steps).
        beside_s: Computation that overlaps with each step's traffic, shape (iterations, steps).
        generation_s: Generation of each iteration's responses, shape (iterations,).
    """

    forecast: Forecast
    before_s: Floats
    beside_s: Floats
    generation_s: Floats


@dataclass(frozen=True)
class FabricOutcome:
    """The outcome of a simulation.

    Attributes:
        seconds: Total duration, in seconds.
        late_s: Part of the duration that was spent waiting for circuits, in seconds.
        switches: Number of reconfigurations.
        topologies: Topology of each step, shape (iterations, steps).
    """

    seconds: float
    late_s: float
    switches: int
    topologies: Ints


@runtime_checkable
class NetworkPolicy(Protocol):
    """Protocol of a policy that chooses the topology of each step."""

    def first(self, forecast: Forecast) -> int:
        """Return the initial topology."""
        ...

    def topology_for(self, forecast: Forecast, step: int, present: int) -> int:
        """Return the topology for a step. The policy is asked when all traffic before the step has ended.

        Args:
            forecast: Expected iteration.
            step: Number of the step in the iteration.
            present: Current topology.
        """
        ...


class Yardstick(Protocol):
    """Protocol of a bound that knows all durations in advance, which no real system does."""

    def choose_all(self, hour: Hour) -> Ints:
        """Return the topology of each step, shape (iterations, steps)."""
        ...


def topologies(fabric: Fabric, iteration: ExpectedIteration) -> tuple[Circuits, ...]:
    """Return the topologies from which a policy chooses.

    They are one without circuits, one for each pattern, and one for the sum of an iteration's traffic.
    """
    if not fabric.optical:
        return (no_circuits(fabric),)
    demands = [demand_between(fabric, traffic) for traffic in iteration.traffic]
    whole = sum((demands[step.pattern] for step in iteration.steps), np.zeros_like(demands[0]))
    made = [circuits_for(name, fabric, demand) for name, demand in zip(PATTERNS, demands, strict=True)]
    return (no_circuits(fabric), *made, circuits_for("mixed", fabric, whole))


def forecast_of(fabric: Fabric, iteration: ExpectedIteration, choices: Sequence[Circuits], reconfigure_s: float) -> Forecast:
    """Return the forecast of an iteration. Its wait for generation is the one that remains with the fastest topologies.

    Args:
        fabric: Fabric that the traffic crosses.
        iteration: Expected iteration.
        choices: Available topologies.
        reconfigure_s: Seconds of a reconfiguration of the circuits.
    """
    seconds = np.array([[traffic_s(fabric, traffic, circuits) for circuits in choices] for traffic in iteration.traffic])
    training_s = sum(step.before_s + max(step.beside_s, seconds[step.pattern].min()) for step in iteration.steps[:-1])
    waits_s = max(0.0, iteration.generation_s - float(training_s) - iteration.steps[-1].before_s)
    return Forecast(iteration.steps, waits_s, read_only(seconds), reconfigure_s)


def draw_hour(forecast: Forecast, generation_s: float, iterations: int, cv: float, seed: int) -> Hour:
    """Draw actual durations by multiplying every expected duration by a lognormal factor of mean 1.

    Args:
        forecast: Expected iteration.
        generation_s: Expected seconds of the generation of an iteration's responses.
        iterations: Number of iterations.
        cv: Coefficient of variation of the factors.
        seed: Seed of the random numbers.
    """
    random = np.random.Generator(np.random.Philox(seed))
    sigma = math.sqrt(math.log1p(cv**2))
    factors = portable.exp(sigma * random.standard_normal((2, iterations, len(forecast.steps))) - sigma**2 / 2)
    longer = portable.exp(sigma * random.standard_normal(iterations) - sigma**2 / 2)
    before_s = np.array([step.before_s for step in forecast.steps]) * factors[0]
    beside_s = np.array([step.beside_s for step in forecast.steps]) * factors[1]
    return Hour(forecast, read_only(before_s), read_only(beside_s), read_only(generation_s * longer))


def play(hour: Hour, policy: NetworkPolicy | Yardstick) -> FabricOutcome:
    """Simulate the iterations under a policy.

    Args:
        hour: Durations of the iterations.
        policy: Policy that chooses topologies.

    Raises:
        PlanError: If the policy broke N1 or N2, or raised an exception.
    """
    forecast = hour.forecast
    count = len(forecast.seconds[0])
    topology_for: Callable[[Forecast, int, int], int] | None = None
    if isinstance(policy, NetworkPolicy):
        topology_for = guarded(policy.topology_for, _WHO)
        used = np.empty_like(hour.before_s, np.int64)
        present = _check_topology(guarded(policy.first, _WHO)(forecast), count)
    else:
        used = np.array(guarded(policy.choose_all, _WHO)(hour))
        if used.shape != hour.before_s.shape:
            raise PlanError(f"N2: the network policy chose topologies of shape {used.shape}, not {hour.before_s.shape}")
        present = _check_topology(used[0, 0], count)
    now_s = late_s = 0.0
    switches = 0
    for i in range(len(hour.before_s)):
        generated_s = now_s + float(hour.generation_s[i])
        for s, step in enumerate(forecast.steps):
            chosen = used[i, s] if topology_for is None else topology_for(forecast, s, present)
            used[i, s] = topology = _check_topology(chosen, count)
            ready_s = now_s + float(hour.before_s[i, s])
            if step.pattern == WEIGHTS:
                ready_s = max(ready_s, generated_s)
            if topology != present:
                switches += 1
                set_s = now_s + forecast.reconfigure_s
                late_s += max(0.0, set_s - ready_s)
                ready_s, present = max(ready_s, set_s), topology
            now_s = ready_s + max(float(hour.beside_s[i, s]), float(forecast.seconds[step.pattern, topology]))
    return FabricOutcome(now_s, late_s, switches, used)


def _check_topology(topology: object, count: int) -> int:
    """Return a topology as an integer if it satisfies N1."""
    if not isinstance(topology, int | np.integer) or not 0 <= topology < count:
        raise PlanError(f"N1: the network policy chose topology {brief(topology)}, not one of 0 to {count - 1}")
    return int(topology)
