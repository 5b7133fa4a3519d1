"""GPUs for one asynchronous job, the plan that divides them between its two sides, and what that costs (AReaL-Hex).

The training side has C_T seconds of work an iteration, the rollout side C_I: sampling, rewards, and the update of its weights,
which a flat broadcast sends to one machine after the other.
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
from rollmux_env.timing.work import Work
from rollmux_env.validation_errors import not_one_of

Counts = tuple[int, ...]
"""GPUs of each type, in the budget's order."""


@dataclass(frozen=True)
class Budget(Checked):
    """GPUs that a job may have.

    Attributes:
        gpus: by type, keys of `GPUS`. machine: GPUs of a machine.

    Raises:
        InputError: a GPU that is not known, or a number out of its range; one line.
    """

    gpus: Mapping[str, Annotated[int, Field(ge=1, le=256)]]
    machine: Annotated[int, Field(ge=1, le=64)] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.gpus:
            if name not in GPUS:
                raise InputError(f"GPU: {not_one_of(name, GPUS)}")

    @property
    def counts(self) -> Counts:
        """GPUs of each type."""
        return tuple(self.gpus.values())

    def beside(self, training: Counts) -> Counts:
        """GPUs of each type that are left for rollouts, on whole machines and part of one, where trainings have theirs so too."""
        return tuple(_beside(count, own, self.machine) for count, own in zip(self.counts, training, strict=True))

    @cached_property
    def hardware(self) -> tuple[Hardware, ...]:
        """Of each type."""
        return tuple(achieved(name, GPUS[name]) for name in self.gpus)

    def rewards_s(self, work: Work) -> float:
        """Seconds of the rewards of an iteration's responses."""
        return work.responses * max(hardware.system.response_s for hardware in self.hardware)

    def load(self, work: Work) -> Load:
        """What a trainer is given in an iteration: responses of the average length."""
        system = self.hardware[0].system
        return even_load(system, work.responses, work.sequence_tokens, work.micro_tokens, work.updates)


def parse_budget(text: str, machine: int) -> Budget:
    """A budget from the text of an option, as in H800=24,H20=24.

    Raises:
        InputError: another form, a type twice, or as `Budget`; one line.
    """
    gpus: dict[str, int] = {}
    for name, count in parse_pairs("--budget", text.split(","), "GPU=COUNT"):
        if name in gpus:
            raise InputError(f"--budget: '{name}' is set twice")
        gpus[name] = parse_value(count)
    try:
        return Budget(gpus, machine)
    except InputError as error:
        what, _, problem = str(error).removeprefix("gpus.").partition(": ")
        raise InputError(f"{'--gpus-per-node' if what == 'machine' else f'--budget {what}'}: {problem}") from None


def _beside(count: int, training: int, machine: int) -> int:
    """Of one type. What is no whole machine stays together: both sides' parts in one machine, or each in another one."""
    whole, rest = divmod(count, machine)
    taken, part = divmod(training, machine)
    for rollout in range(count - training, 0, -1):
        machines, other = divmod(rollout, machine)
        if taken + machines + _machines([size for size in (part, other) if size], rest, machine) <= whole:
            return rollout
    return 0


def _machines(parts: list[int], rest: int, machine: int) -> int:
    """Whole machines that parts of machines need, beside one with so many GPUs."""
    if sum(parts) <= rest:
        return 0
    if sum(parts) <= machine:
        return 1
    return len(parts) - (min(parts) <= rest)


def update_s(work: Work, training: tuple[Hardware, ...], machines: Mapping[Hardware, int]) -> float:
    """Seconds in which new weights reach the machines of the rollout side, one after the other.

    Args:
        training: types that train; a machine of one of them gets its weights at the rate inside that type, if that is faster.
        machines: of the rollout side, by type.
    """
    seconds = 0.0
    for hardware, count in machines.items():
        weights = work.model.parameters * hardware.number_bytes
        seconds += count * min(link_between(source, hardware).seconds(weights) for source in training)
    return seconds


@dataclass(frozen=True)
class Allocation:
    """A budget divided: a training plan and a rollout plan.

    Attributes:
        work: of an iteration. budget: what is divided. training: the plan. replicas: of the rollout, each with its number.
    """

    work: Work
    budget: Budget
    training: TrainingPlan
    replicas: tuple[tuple[Replica, int], ...]

    @cached_property
    def rollout_gpus(self) -> dict[str, int]:
        """GPUs of the rollout side by type."""
        counts: Counter[str] = Counter()
        for replica, number in self.replicas:
            counts.update({name: number * gpus for name, gpus in replica.gpus.items()})
        return dict(counts)

    @property
    def spare_gpus(self) -> dict[str, int]:
        """GPUs of the budget that nothing runs on, by type."""
        used = self.training.gpus
        spare = {name: count - used.get(name, 0) - self.rollout_gpus.get(name, 0) for name, count in self.budget.gpus.items()}
        return {name: count for name, count in spare.items() if count}

    @cached_property
    def training_s(self) -> float:
        """C_T."""
        return self.training.seconds(self.budget.load(self.work))

    @cached_property
    def sampling_s(self) -> float:
        """Of an iteration's responses: all replicas end together."""
        return self.work.responses / sum(number * replica.responses_per_s(self.work) for replica, number in self.replicas)

    @cached_property
    def update_s(self) -> float:
        """Of the weights of all rollout machines."""
        types = dict(zip(self.budget.gpus, self.budget.hardware, strict=True))
        machines = {types[name]: ceil(count / self.budget.machine) for name, count in self.rollout_gpus.items()}
        return update_s(self.work, tuple(types[name] for name in self.training.gpus), machines)

    @property
    def rollout_s(self) -> float:
        """C_I: sampling, rewards and update."""
        return self.sampling_s + self.budget.rewards_s(self.work) + self.update_s

    @property
    def iteration_s(self) -> float:
        """Of a steady iteration: the longer side, or on-policy both."""
        return self.work.iteration_s(self.rollout_s, self.training_s)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the whole budget; None where one of its types has none."""
        return usd_per_hour(self.budget)


def usd_per_hour(budget: Budget) -> float | None:
    """Price of a budget, $/h; None where one of its types has none."""
    prices = [GPUS[name].usd_per_hour for name in budget.gpus]
    known = [price for price in prices if price is not None]
    return sum(count * price for count, price in zip(budget.counts, known, strict=True)) if len(known) == len(prices) else None
