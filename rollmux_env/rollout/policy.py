"""The interface of a rollout policy: which responses a rollout launches, and what happens to them while it runs.

The policies are in `policies.rollout`. This module has what the simulator requires of one, and the moves that several make.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple, Protocol

import numpy as np

from rollmux_env.kernel.rollout_trials import gathered
from rollmux_env.kernel.tables import Ints
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.setting import Setting


@dataclass(frozen=True)
class Round:
    """What a rollout launches, and when it ends.

    Attributes:
        long: it runs prompts of the queue, to the end.
        prompts: numbers of those that it launches. responses: that it launches to each.
        wanted: it is over when so many prompts are complete. needed: a prompt is when so many of its responses are finished.
    """

    long: bool
    prompts: tuple[int, ...]
    responses: int
    wanted: int
    needed: int

    def shares(self, count: int) -> list[Round]:
        """Cut it into rounds that run and end each for itself, on an engine each; together they complete as many prompts.

        What is launched beyond need is dealt out as evenly as what is needed, in order of the prompts.
        """
        extra = len(self.prompts) - self.wanted
        wanted, more = ([total * (k + 1) // count - total * k // count for k in range(count)] for total in (self.wanted, extra))
        ends = [sum(wanted[:k]) + sum(more[:k]) for k in range(count + 1)]
        return [
            Round(self.long, self.prompts[first:last], self.responses, want, self.needed)
            for (first, last), want in zip(pairwise(ends), wanted, strict=True)
        ]


def with_spare(prompts: int, responses: int, eta: float) -> tuple[int, int]:
    """Prompts, and responses to each, that a round launches which needs so many: `eta` times as many of both, rounded up."""
    exact = Fraction(str(eta))  # so that 1.1 times 10 is 11
    return ceil(exact * prompts), ceil(exact * responses)


class Rounds(Protocol):
    """The rounds of a job, one after the other."""

    def next(self) -> Round:
        """Return the next round."""
        ...

    def done(self, complete: Sequence[int]) -> None:
        """Record the end of the round, with its complete prompts."""
        ...


class Wake(NamedTuple):
    """When a control is called next: after a number of finished responses or at a time, whichever comes first."""

    finished: int | None = None
    at_s: float = inf


class Control(Protocol):
    """What happens to the responses of a job's rollouts. It may keep memory between rollouts."""

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Start a rollout: launch every new response."""
        ...

    def act(self, fleet: Fleet) -> Wake:
        """Act now: migrate, add replicas and migrate to them, or do nothing."""
        ...

    def end(self, fleet: Fleet) -> None:
        """The rollout is over; nothing runs any more."""
        ...


class JobPolicy(NamedTuple):
    """A policy as one job has it, with the memory of that job.

    Attributes:
        rounds: what its rollouts launch, and when they end. control: what is done inside them.
    """

    rounds: Rounds
    control: Control


class RolloutPolicy(Protocol):
    """One object for all jobs; the memory of a job is in what `begin_job` creates. Equal policies act the same.

    One with an attribute `each_engine` that is true lets every replica run and end its own share of a round.
    """

    def __hash__(self) -> int: ...

    def begin_job(self, setting: Setting) -> JobPolicy:
        """The policy of a new job."""
        ...


class Stay:
    """A control that distributes the responses in turns and leaves them there."""

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the responses in turns."""
        deal(fleet, np.arange(fleet.size))
        return Wake()

    def act(self, fleet: Fleet) -> Wake:
        """Do nothing."""
        return Wake()

    def end(self, fleet: Fleet) -> None:
        """Do nothing."""


def deal(fleet: Fleet, replicas: Ints) -> None:
    """Launch every response, at these replicas in turns."""
    responses = np.arange(fleet.state.size)
    fleet.launch(responses, replicas[responses % replicas.size])


def wake_at(checkpoints: Iterable[int], fleet: Fleet) -> Wake:
    """At the first of some numbers of finished responses that are still to come."""
    return Wake(min((count for count in checkpoints if count > fleet.finished.size), default=None))


def gather(fleet: Fleet, keep: int) -> None:
    """Move all open responses to the `keep` replicas with the most of them; those already there stay."""
    left, replica, context = fleet.open, fleet.replica, fleet.context()
    where = gathered(replica[left], context[left], fleet.size, keep)
    moving = np.flatnonzero(where != replica[left])
    moving = moving[np.argsort(-context[left][moving], kind="stable")]  # in this order they wait there
    fleet.migrate(left[moving], where[moving])
