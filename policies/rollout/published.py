"""Rollout policies as published: `plain`, `tail-batching`, `tail-migration`, `stream-trainer`, `parallelism-planner`.

`plain`: all responses start at once, distributed evenly, and the rollout waits for all of them.

`tail-batching` (RollPacker, arXiv 2509.21009): defers long responses to a few long rounds.

`tail-migration` (RollMux, arXiv 2512.11306, section 4): the last responses move to a few replicas and free the others. Another job
uses the free replicas. The rollout itself gains nothing and loses a little. In an event replay the dispatch policy moves a tail
when another rollout waits for its nodes. In this module, inside a single rollout, it moves as soon as it may.

`stream-trainer` (RollPacker): half of the GPUs start to train while the last responses are sampled. When 20 to 50% of the required
responses are done (checked every 5%) and the cache of half of the replicas can hold the others, the others continue there,
prefilled again. The other half accumulates gradients of complete prompts: an advantage is relative to all responses of its prompt.
For jobs that sample and train on the same GPUs. The future length of the remaining responses is unknown and projected as twice
their present context.

`parallelism-planner` (RollPacker): larger replicas after preemptions, smaller ones without. It begins with the size in the job's
configuration: the paper's is a profiled one. Replicas double in the next rollout if preemptions rose by more than 1.05x over the
one before. They halve after four rollouts without preemptions. Short and long rounds are decided separately. A replica keeps its
size during a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Control, JobPolicy, Round, Stay, Wake, deal, gather, wake_at
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.tail import AT, SHARE, Migration


@dataclass(frozen=True)
class Plain:
    """Wait for every response on its first replica. A subclass says by `control` what else is done with them."""

    def control(self, setting: Setting) -> Control:
        """What is done inside the rollouts of a job: responses stay where they were launched."""
        return Stay()

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Rounds that launch what they need, and the control inside them."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, 1), self.control(setting))


@dataclass(frozen=True)
class TailBatching:
    """Short rounds that launch more than they need, and long ones for what those leave; see `policies.rollout.rounds`.

    Args:
        eta: how many times as many prompts, and responses to each, a short round launches; the paper's 1.25.
        each_engine: every engine has a share of the prompts and ends it for itself, as if none knew of the others; False: the
            round is over for all of them with the last prompt that it wants, as in the paper and in real jobs.
    """

    eta: float = 1.25
    each_engine: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.eta, bool) or not isinstance(self.eta, int | float) or not 1 < self.eta <= 2:
            raise ValueError(f"eta must be a number above 1 and at most 2, not {self.eta}")
        if not isinstance(self.each_engine, bool):
            raise ValueError(f"each_engine must be true or false, not {self.each_engine}")

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Short and long rounds; responses stay where they were launched."""
        return JobPolicy(Rounds(setting.prompts, setting.responses, self.eta), Stay())


@dataclass(frozen=True)
class TailMigration(Plain):
    """When a share of the responses is done, the rest goes on at a share of the replicas.

    Args:
        at: share of the wanted responses that are done then. share: of the replicas that the tail keeps.
        careful: in an event replay the tail of a job that is its group's bound stays, which the paper does not say.
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
        """For the dispatch policy in an event replay."""
        return Migration(self.at, self.share)

    def control(self, setting: Setting) -> Control:
        """Responses move once."""
        return Consolidate(self.migration)


class Consolidate(Stay):
    """Move the tail once."""

    def __init__(self, migration: Migration) -> None:
        self._migration = migration

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the round, and look again when the tail begins."""
        deal(fleet, np.arange(fleet.size))
        return Wake(finished=max(1, ceil(self._migration.at * round.wanted * round.needed)))

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses to the replicas that have most of them."""
        keep = self._migration.keeps(fleet.size)
        if keep < fleet.size:
            gather(fleet, keep)
        return Wake()


_CHECKPOINTS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
_GROWS = 2  # times its present context, that the rest is projected to need


class StreamTrainer(Plain):
    """Leave half of the replicas to training as soon as the rest fits into the others."""

    def control(self, setting: Setting) -> Control:
        """Responses move once, or never."""
        return Halve(setting)


class Halve(Stay):
    """One job's rollouts."""

    def __init__(self, setting: Setting) -> None:
        self._room = setting.replicas[0].kv_tokens
        self._checkpoints: set[int] = set()

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the round, and look again at the first checkpoint."""
        deal(fleet, np.arange(fleet.size))
        wanted = round.wanted * round.needed
        self._checkpoints = {ceil(share * wanted) for share in _CHECKPOINTS} if fleet.size > 1 else set()
        return wake_at(self._checkpoints, fleet)

    def act(self, fleet: Fleet) -> Wake:
        """Move the remaining responses, if they fit."""
        keep = fleet.size - fleet.size // 2
        if _GROWS * int(fleet.context()[fleet.open].sum()) <= keep * self._room:
            gather(fleet, keep)
            self._checkpoints = set()
        return wake_at(self._checkpoints, fleet)


_RISE, _CALM = 1.05, 4


class ParallelismPlanner(Plain):
    """Choose the replicas' size from one rollout to the next."""

    def control(self, setting: Setting) -> Control:
        """Start with the size in the job's configuration."""
        return Planned(setting)


class Planned(Stay):
    """The sizes of one job's replicas, of short and of long rounds."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        choices = tuple(size for size, _ in setting.timings)
        self._sizes = {long: Size(choices, setting.parallel) for long in (False, True)}
        self._long = False

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the round on replicas of the present size."""
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
