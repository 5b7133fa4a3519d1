"""`parallelism-planner` (RollPacker, arXiv 2509.21009): larger replicas after preemptions, smaller ones without.

It begins with the size in the job's configuration: the paper's is a profiled one. Replicas double in the next rollout if
preemptions rose by more than 1.05x over the one before. They halve after four rollouts without preemptions. Short and long
rounds are decided separately. A replica keeps its size during a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import JobPolicy, Round, Stay, Wake, deal
from rollmux_env.rollout.setting import Setting

_RISE, _CALM = 1.05, 4


@dataclass(frozen=True)
class ParallelismPlanner:
    """Choose the replicas' size from one rollout to the next."""

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Start with the size in the job's configuration."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), Planned(setting))


class Planned(Stay):
    """The sizes of one job's replicas, of short and of long rounds."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        choices = tuple(size for size, _ in setting.timings)
        self._sizes = {long: Size(choices, setting.parallel) for long in (False, True)}
        self._long = False

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """See `rollmux_env.rollout.policy.Control`."""
        self._long = round.long
        size = self._sizes[self._long].size
        live = np.arange(fleet.size)
        if size != self._setting.parallel:
            live = fleet.add([dict(self._setting.timings)[size]] * (self._setting.gpus // size), size)
        deal(fleet, live)
        return Wake()

    def end(self, fleet: Fleet) -> None:
        """Count the preemptions."""
        self._sizes[self._long].observe(fleet.preemptions)


class Size:
    """One size, step by step.

    Attributes:
        size: GPUs of a replica in the next rollout.
    """

    def __init__(self, choices: tuple[int, ...], size: int) -> None:
        self._choices, self.size = choices, size
        self._last: int | None = None
        self._calm = 0

    def observe(self, preemptions: int) -> None:
        """Record the number of preemptions of a rollout."""
        rose = preemptions > _RISE * (self._last or 0)
        self._last = preemptions
        self._calm = 0 if preemptions else self._calm + 1
        if rose and 2 * self.size in self._choices:
            self.size *= 2
        elif self._calm >= _CALM and self.size % 2 == 0 and self.size // 2 in self._choices:
            self.size //= 2
            self._calm = 0
