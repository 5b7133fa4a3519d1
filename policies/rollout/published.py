"""Rollout policies as published: `plain`, `tail-batching`, `tail-migration`, `stream-trainer` and `parallelism-planner`.

`plain`: all responses start at once, distributed evenly, and the rollout waits for all of them.

`tail-batching` (RollPacker, arXiv 2509.21009): long responses are deferred to a few long rounds.

`tail-migration` (RollMux, arXiv 2512.11306, section 4): the last responses move to a few replicas and free the others for another
job. The rollout itself gains nothing and loses a little. In an event replay the dispatch policy moves a tail when another rollout
waits for its nodes. In this module, inside a single rollout, the tail moves as soon as it may.

`stream-trainer` (RollPacker), for jobs that sample and train on the same GPUs: half of the GPUs start to train while the last
responses are sampled. This begins once 20 to 50% of the required responses are done (checked every 5%) and the cache of half of the
replicas can hold the rest. The rest moves there and is prefilled again. The other half accumulates gradients of complete prompts,
because an advantage is relative to all responses of its prompt. The final length of a remaining response is unknown and projected
as twice its current context.

`parallelism-planner` (RollPacker): larger replicas after preemptions, smaller ones without. It begins with the size in the job's
configuration, where the paper uses a profiled one. Replicas double in the next rollout if preemptions rose by more than 1.05x over
the previous one. They halve after four rollouts without preemptions. Short and long rounds are decided separately. A replica keeps
its size during a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Control, JobPolicy, Round, StaticControl, Wake, deal, gather, wake_at
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.tail import AT, SHARE, Migration


@dataclass(frozen=True)
class Plain:
    """Rollout policy that leaves every response on the replica where it started. Subclasses override `control` to do more."""

    def control(self, setting: Setting) -> Control:
        """Return the control of a job's rollouts. Here responses stay where they were launched."""
        return StaticControl()

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Return rounds that launch exactly what they need, and the control of these rounds."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), self.control(setting))


@dataclass(frozen=True)
class TailBatching:
    """Rollout policy with short rounds that launch spare responses, and long rounds for the rest (`policies.rollout.rounds`).

    Args:
        eta: Factor on the prompts that a short round launches, at least 1 and at most 2. The paper uses 1.25.
        eta_responses: Factor on the responses to each prompt that it launches, or None for `eta`. One of both is above 1.
        each_engine: Whether every engine ends its share of the prompts independently of the others. False as in the paper and in
            real jobs, where the round ends for all engines once enough prompts are complete.
    """

    eta: float = 1.25
    each_engine: bool = False
    eta_responses: float | None = None

    def __post_init__(self) -> None:
        factors = {"eta": self.eta} if self.eta_responses is None else {"eta": self.eta, "eta_responses": self.eta_responses}
        for name, factor in factors.items():
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 2:
                raise ValueError(f"{name} must be a number from 1 to 2, not {factor}")
        if max(factors.values()) == 1:
            raise ValueError("eta must be a number above 1 and at most 2, or eta_responses must")
        if not isinstance(self.each_engine, bool):
            raise ValueError(f"each_engine must be true or false, not {self.each_engine}")

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Return short and long rounds. Responses stay where they were launched."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, self.eta, eta_responses=self.eta_responses), StaticControl())


@dataclass(frozen=True)
class TailMigration(Plain):
    """Rollout policy that moves the rest to a share of the replicas, once a share of the responses is done.

    Args:
        at: Share of the wanted responses after which the tail moves.
        share: Share of the replicas that the tail keeps.
        careful: Whether, in an event replay, the tail stays if its job bounds the group's period. The paper does not have this.
    """

    at: float = AT
    share: float = SHARE
    careful: bool = False

    def __post_init__(self) -> None:
        Migration(self.at, self.share)
        if not isinstance(self.careful, bool):
            raise ValueError(f"careful must be true or false, not {self.careful}")

    @property
    def migration(self) -> Migration:
        """Threshold and share, for the dispatch policy in an event replay."""
        return Migration(self.at, self.share)

    def control(self, setting: Setting) -> Control:
        """Return the control that moves the tail once."""
        return GatherTail(self.migration)


class GatherTail(StaticControl):
    """Control that moves the tail of each rollout once."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the round, and wake when the tail begins."""
        deal(fleet, np.arange(fleet.size))
        return Wake(finished=max(1, ceil(self._migration.at * round.wanted * round.needed)))

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses to the replicas that already have most of them."""
        keep = self._migration.keeps(fleet.size)
        if keep < fleet.size:
            gather(fleet, keep)
        return Wake()


_CHECKPOINTS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
_GROWS = 2  # projected final length of a remaining response, as a multiple of its current context


class StreamTrainer(Plain):
    """Rollout policy that gives half of the replicas to training as soon as the remaining responses fit on the other half."""

    def control(self, setting: Setting) -> Control:
        """Return the control that moves the remaining responses once, or never."""
        return Halve(setting)


class Halve(StaticControl):
    """Control that frees half of a job's replicas during each rollout."""

    def __init__(self, setting: Setting) -> None:
        self._room = setting.replicas[0].kv_tokens
        self._checkpoints: set[int] = set()

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the round, and wake at the first checkpoint."""
        deal(fleet, np.arange(fleet.size))
        wanted = round.wanted * round.needed
        self._checkpoints = {ceil(share * wanted) for share in _CHECKPOINTS} if fleet.size > 1 else set()
        return wake_at(self._checkpoints, fleet)

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses if they fit."""
        keep = fleet.size - fleet.size // 2
        if _GROWS * int(fleet.context()[fleet.open].sum()) <= keep * self._room:
            gather(fleet, keep)
            self._checkpoints = set()
        return wake_at(self._checkpoints, fleet)


_RISE, _CALM = 1.05, 4  # increase of preemptions after which replicas double; calm rollouts after which they halve


class ParallelismPlanner(Plain):
    """Rollout policy that adjusts the size of the replicas from one rollout to the next."""

    def control(self, setting: Setting) -> Control:
        """Return a control that starts with the size in the job's configuration."""
        return Planned(setting)


class Planned(StaticControl):
    """Control that keeps the sizes of one job's replicas, for short and for long rounds."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        choices = tuple(size for size, _ in setting.timings)
        self._sizes = {long: Size(choices, setting.parallel) for long in (False, True)}
        self._long = False

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the round on replicas of the current size."""
        self._long = round.long
        size = self._sizes[self._long].size
        live = np.arange(fleet.size)
        if size != self._setting.parallel:
            live = fleet.add([dict(self._setting.timings)[size]] * (self._setting.gpus // size), size)
        deal(fleet, live)
        return Wake()

    def end(self, fleet: Fleet) -> None:
        """Count the preemptions of the rollout."""
        self._sizes[self._long].observe(fleet.preemptions)


class Size:
    """Size of the replicas for one kind of round, adjusted after every rollout.

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
