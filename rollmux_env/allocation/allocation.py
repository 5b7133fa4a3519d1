"""The GPU budget of one asynchronous job, the plan that divides it between training and rollouts, and its times (AReaL-Hex).

In each iteration the training side takes C_T seconds and the rollout side C_I seconds: sampling, rewards, and the update of its
weights, which a flat broadcast sends to one machine after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Annotated

from pydantic import Field

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.fields import Checked
from rollmux_env.timing.hardware import GPUS, Hardware, achieved, link_between
from rollmux_env.timing.stages import Replica
from rollmux_env.timing.training import Load, TrainingPlan, even_load
from rollmux_env.timing.work import IterationWork
from rollmux_env.validation_errors import not_one_of

Counts = tuple[int, ...]
"""Number of GPUs of each type, in the budget's order."""


@dataclass(frozen=True)
class GpuBudget(Checked):
    """The GPUs that a job may use.

    Attributes:
        gpus: Number of GPUs by type, a key of `GPUS`.
        machine: Number of GPUs per machine.
        one_type: Whether each side has GPUs of a single type, as the phases of a job have nodes of one pool.

    Raises:
        InputError: If a GPU type is unknown or a number is out of range.
    """

    gpus: Mapping[str, Annotated[int, Field(ge=1, le=256)]]
    machine: Annotated[int, Field(ge=1, le=64)] = 8
    one_type: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.gpus:
            if name not in GPUS:
                raise InputError(f"GPU: {not_one_of(name, GPUS)}")

    @property
    def counts(self) -> Counts:
        """Number of GPUs of each type."""
        return tuple(self.gpus.values())

    def beside(self, training: Counts) -> Counts:
        """Return the GPUs of each type that remain for rollouts.

        Both sides use whole machines and at most one part of a machine per type.

        Args:
            training: Number of GPUs of each type that train.
        """
        return tuple(_beside(count, own, self.machine) for count, own in zip(self.counts, training, strict=True))

    @cached_property
    def hardware(self) -> tuple[Hardware, ...]:
        """Achieved rates of each GPU type."""
        return tuple(achieved(name, GPUS[name]) for name in self.gpus)

    def rewards_s(self, work: IterationWork) -> float:
        """Return the seconds that the rewards of an iteration's responses take."""
        return work.responses * max(hardware.system.response_s for hardware in self.hardware)

    def load(self, work: IterationWork) -> Load:
        """Return the training load of one iteration, with all responses of average length."""
        system = self.hardware[0].system
        return even_load(system, work.responses, work.sequence_tokens, work.micro_tokens, work.updates)


def parse_budget(text: str, machine: int, one_type: bool = False) -> GpuBudget:
    """Parse a budget from the text of a command option, such as `H800=24,H20=24`.

    Args:
        text: Comma-separated pairs of GPU type and count.
        machine: Number of GPUs per machine.
        one_type: Whether each side has GPUs of a single type.

    Raises:
        InputError: If the text has another form, a type occurs twice, or `GpuBudget` rejects a value.
    """
    gpus: dict[str, int] = {}
    for name, count in parse_pairs("--budget", text.split(","), "GPU=COUNT"):
        if name in gpus:
            raise InputError(f"--budget: '{name}' is set twice")
        gpus[name] = parse_value(count)
    try:
        return GpuBudget(gpus, machine, one_type)
    except InputError as error:
        what, _, problem = str(error).removeprefix("gpus.").partition(": ")
        raise InputError(f"{'--gpus-per-node' if what == 'machine' else f'--budget {what}'}: {problem}") from None


def _beside(count: int, training: int, machine: int) -> int:
    """Return the largest number of GPUs of one type that rollouts can use beside `training` GPUs.

    GPUs that do not fill a machine stay together: the parts of both sides share one machine or are on one machine each.
    """
    whole, rest = divmod(count, machine)
    taken, part = divmod(training, machine)
    for rollout in range(count - training, 0, -1):
        machines, other = divmod(rollout, machine)
        if taken + machines + _machines([size for size in (part, other) if size], rest, machine) <= whole:
            return rollout
    return 0


def _machines(parts: list[int], rest: int, machine: int) -> int:
    """Return the number of whole machines that parts of machines need if `rest` further GPUs are free."""
    if sum(parts) <= rest:
        return 0
    if sum(parts) <= machine:
        return 1
    return len(parts) - (min(parts) <= rest)


def update_s(work: IterationWork, training: tuple[Hardware, ...], machines: Mapping[Hardware, int]) -> float:
    """Return the seconds until new weights have reached all machines of the rollout side, one after the other.

    A machine receives the weights over the fastest link from any training type, which may be a link inside its own type.

    Args:
        work: Work of one iteration, with the model whose weights are sent.
        training: GPU types that train.
        machines: Number of rollout machines by GPU type.
    """
    seconds = 0.0
    for hardware, count in machines.items():
        weights = work.model.parameters * hardware.number_bytes
        seconds += count * min(link_between(source, hardware).seconds(weights) for source in training)
    return seconds


@dataclass(frozen=True)
class Allocation:
    """A budget divided into a training plan and rollout replicas.

    Attributes:
        work: Work of one iteration.
        budget: GPUs that are divided.
        training: Training plan.
        replicas: Kinds of rollout replicas, each with its number.
    """

    work: IterationWork
    budget: GpuBudget
    training: TrainingPlan
    replicas: tuple[tuple[Replica, int], ...]

    @cached_property
    def rollout_gpus(self) -> dict[str, int]:
        """Number of GPUs of the rollout side, by type."""
        counts: Counter[str] = Counter()
        for replica, number in self.replicas:
            counts.update({name: number * gpus for name, gpus in replica.gpus.items()})
        return dict(counts)

    @property
    def spare_gpus(self) -> dict[str, int]:
        """Number of unused GPUs of the budget, by type."""
        used = self.training.gpus
        spare = {name: count - used.get(name, 0) - self.rollout_gpus.get(name, 0) for name, count in self.budget.gpus.items()}
        return {name: count for name, count in spare.items() if count}

    @cached_property
    def training_s(self) -> float:
        """Seconds of the training of an iteration: C_T."""
        return self.training.seconds(self.budget.load(self.work))

    @cached_property
    def sampling_s(self) -> float:
        """Seconds in which an iteration's responses are sampled; all replicas end together."""
        return self.work.responses / sum(number * replica.responses_per_s(self.work) for replica, number in self.replicas)

    @cached_property
    def update_s(self) -> float:
        """Seconds until all rollout machines have new weights."""
        types = dict(zip(self.budget.gpus, self.budget.hardware, strict=True))
        machines = {types[name]: ceil(count / self.budget.machine) for name, count in self.rollout_gpus.items()}
        return update_s(self.work, tuple(types[name] for name in self.training.gpus), machines)

    @property
    def rollout_s(self) -> float:
        """Seconds of the rollout side in an iteration: C_I, the sum of sampling, rewards and update."""
        return self.sampling_s + self.budget.rewards_s(self.work) + self.update_s

    @property
    def iteration_s(self) -> float:
        """Seconds of a steady iteration: the longer side, or the sum of both if the job is on-policy."""
        return self.work.iteration_s(self.rollout_s, self.training_s)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the whole budget in $/h, or None if one of its types has no price."""
        return usd_per_hour(self.budget)


def usd_per_hour(budget: GpuBudget) -> float | None:
    """Return the price of a budget in $/h, or None if one of its types has no price."""
    prices = [GPUS[name].usd_per_hour for name in budget.gpus]
    known = [price for price in prices if price is not None]
    return sum(count * price for count, price in zip(budget.counts, known, strict=True)) if len(known) == len(prices) else None
