"""Generators: sources of an environment's groups. The same seed gives the same group."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rollmux_env.envs import checks
from rollmux_env.envs.dispatch.types import SimulatedGroup
from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.kernel.period import PHASES, exact_period, period_bound
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Actual, Phase, Training
from rollmux_env.validation_errors import describe, not_one_of
from rollmux_env.workloads.catalogue import memory_gb, paper_cluster, switches

SHAPES = ("temporal", "shared", "rollout-heavy", "spatial", "multi-node")
_PINS = {"temporal": ((0,), (0,)), "rollout-heavy": ((0,), (1,), (2,)), "spatial": ((0, 1), (0,), (1,))}
_SECONDS = {  # ranges of rollout and training of each member; the last entry applies to all further members
    "temporal": [((100, 200), (80, 180))],
    "shared": [((100, 300), (40, 100))],
    "rollout-heavy": [((200, 500), (50, 150))],
    "spatial": [((150, 300), (100, 300)), ((150, 350), (40, 100))],
    "multi-node": [((80, 250), (40, 150))],
}
SKEWS = (0.0, 0.25, 0.5, 1.0)
STALENESSES = (0, 1, 2, 4)


class Generator(Protocol):
    """Source of groups.

    Attributes:
        members: Largest number of members of a group.
        nodes: Largest number of rollout nodes.
        iterations: Largest number of iterations of a member until the horizon.
        stale: Whether members may be stale. The environment then has more rows and features.
    """

    members: int
    nodes: int
    iterations: int
    stale: bool

    def group(self, seed: int) -> SimulatedGroup:
        """Return the group of a seed, the same every time."""
        ...


def checked(generator: Generator) -> Generator:
    """Return the generator if it has all the attributes of `Generator`, in their ranges.

    Raises:
        InputError: An attribute is missing or out of range.
    """
    names = ("members", "nodes", "iterations", "stale", "group")
    checks.has_attributes(generator, names, "members, nodes, iterations, stale and group(seed)")
    for name in ("members", "nodes", "iterations"):
        checks.whole_number(f"generator.{name}", getattr(generator, name))
    checks.flag("generator.stale", generator.stale)
    return generator


class Fixed:
    """Given groups, from which the seed selects one.

    Raises:
        InputError: No group is given.
    """

    iterations = 1024

    def __init__(self, *groups: SimulatedGroup) -> None:
        if not groups:
            raise InputError("generator: needs at least one group")
        self.members = max(len(group.jobs) for group in groups)
        self.nodes = max(group.rollout_nodes for group in groups)
        self.stale = any(job.staleness for group in groups for job in group.jobs)
        self._groups = groups

    def group(self, seed: int) -> SimulatedGroup:
        """Return the group with the number `seed` modulo the number of groups."""
        return self._groups[seed % len(self._groups)]


class RandomGroups:
    """Random groups of the paper's kinds, with random phases, SLOs, and deviations from the plan.

    | shape | rollout nodes | members |
    |---|---|---|
    | `temporal` | 1 | two, with rollouts about as long as trainings |
    | `shared` | 1 | two or three with long rollouts, so that the rollout node is the bottleneck |
    | `rollout-heavy` | 3 | three of different lengths, each on a separate node; they share the training node |
    | `spatial` | 2 | one on both nodes, and one on each of them |
    | `multi-node` | 3 | three or four, each on one to three of the nodes |

    Phases are drawn as in the paper's Table 6. The SLO of each member is uniform between what strict round robin needs, planned at
    worst cases, and 1.5 times that. A phase takes on average a share U(0.35, 0.9) of its worst case, drawn for every member and
    phase. Its distribution is lognormal, capped at the worst case, with the skew as coefficient of variation.

    A share of the groups has stale members, with otherwise the same phases. The staleness of each member is one of `STALENESSES`,
    and that of at least one member is above 0.

    Args:
        shape: One of `SHAPES`, or None to draw it.
        skew: Coefficient of variation, or None to draw one of `SKEWS`.
        rounds: Length of an episode in planned periods of round robin.
        stale: Share of the groups that have stale members, from 0 to 1.

    Raises:
        InputError: The shape is unknown, or a number is out of range.
    """

    members, nodes = 4, 3

    def __init__(self, shape: str | None = None, skew: float | None = None, rounds: int = 25, stale: float = 0.0) -> None:
        if shape is not None and shape not in SHAPES:
            raise InputError(f"generator.shape: {not_one_of(shape, SHAPES)}")
        if skew is not None and not 0 <= skew <= 3:
            raise InputError(f"generator.skew: must be between 0 and 3, not {describe(skew)}")
        if not 1 <= rounds <= 40:
            raise InputError(f"generator.rounds: must be between 1 and 40, not {describe(rounds)}")
        if not 0 <= stale <= 1:
            raise InputError(f"generator.stale: must be between 0 and 1, not {describe(stale)}")
        self.stale = stale > 0
        self.iterations = 2048 if stale else 1024
        self._shape, self._skew, self._rounds, self._share = shape, skew, rounds, stale
        self._cluster = paper_cluster()

    def group(self, seed: int) -> SimulatedGroup:
        """Return the group of a seed, the same every time."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(7,)))
        shape = SHAPES[rng.integers(len(SHAPES))] if self._shape is None else self._shape
        skew = SKEWS[rng.integers(len(SKEWS))] if self._skew is None else self._skew
        pins, times_s = _draw_shape(shape, rng)
        slos = rng.uniform(1.0, 1.5, len(pins))
        fractions = rng.uniform(0.35, 0.9, (len(pins), 2))
        staleness = _draw_staleness(seed, len(pins), self._share)
        period_s = _period_s(times_s, pins, staleness)
        rollout_gb, training_gb = memory_gb(7)
        switch, training_switch = switches(7)
        jobs = []
        for k, (rollout_s, training_s) in enumerate(times_s):
            actual = [Actual(mean_fraction=float(fraction), cv=skew) for fraction in fractions[k]]
            job = Job(
                id=f"{shape}-{k}",
                arrival_s=0.0,
                duration_s=self._rounds * period_s,
                slo=float(slos[k] * period_s / alone_s(rollout_s, training_s, 0.0, staleness[k])),
                rollout=Phase(
                    nodes=len(pins[k]), worst_case_s=rollout_s, host_memory_gb=rollout_gb, actual=actual[0], switch=switch
                ),
                training=Training(worst_case_s=training_s, host_memory_gb=training_gb, actual=actual[1], switch=training_switch),
                staleness=staleness[k],
            )
            jobs.append(job)
        return SimulatedGroup(self._cluster, tuple(jobs), pins, 1, self._rounds * period_s, seed)


def _draw_shape(shape: str, rng: np.random.Generator) -> tuple[tuple[tuple[int, ...], ...], list[tuple[float, float]]]:
    """Draw the pins and the worst cases of rollout and training, in seconds, of each member."""
    if shape == "multi-node":
        pins = _draw_pins(rng)
    elif shape == "shared":
        pins = ((0,),) * int(rng.integers(2, 4))
    else:
        pins = _PINS[shape]
    ranges = _SECONDS[shape]
    return pins, [
        (round(float(rng.uniform(*rollout)), 3), round(float(rng.uniform(*training)), 3))
        for rollout, training in (ranges[min(k, len(ranges) - 1)] for k in range(len(pins)))
    ]


def _draw_pins(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Draw the pins of three or four members, each on one to three of three nodes. Every node is used."""
    pins = [tuple(sorted(rng.choice(3, int(rng.integers(1, 4)), replace=False).tolist())) for _ in range(int(rng.integers(3, 5)))]
    free = [node for node in range(3) if not any(node in own for own in pins)]
    pins[0] = tuple(sorted({*pins[0], *free}))
    known = list(dict.fromkeys(node for own in pins for node in own))
    return tuple(tuple(sorted(known.index(node) for node in own)) for own in pins)


def _draw_staleness(seed: int, members: int, share: float) -> list[int]:
    """Draw the staleness of each member. A separate random stream keeps the rest of the group independent of the share."""
    if share == 0:
        return [0] * members
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(8,)))
    if rng.random() >= share:
        return [0] * members
    staleness = [int(rng.choice(STALENESSES)) for _ in range(members)]
    one = int(rng.integers(members))
    staleness[one] = staleness[one] or 1
    return staleness


def _period_s(times_s: list[tuple[float, float]], pins: tuple[tuple[int, ...], ...], staleness: list[int]) -> float:
    """Return the period of strict round robin at worst cases, in seconds."""
    n, nodes = len(pins), 1 + max(max(own) for own in pins)
    phases = np.zeros((PHASES, n))
    phases[:2] = np.array(times_s).T
    phases[3] = staleness
    pinned = np.array([[int(node in own) for node in range(nodes)] for own in pins])
    return float(exact_period(phases, pinned, n, nodes, period_bound(phases, pinned, n, nodes)))
