"""The interface of a rollout policy: which responses a rollout launches, and what happens to them while it runs.

The policies are in `policies.rollout`. This module has what the simulator requires of a policy, and actions that several policies
share.
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
    """The prompts that a rollout launches, and the condition under which it ends.

    Attributes:
        long: Whether this is a long round, which runs deferred prompts to the end.
        prompts: Numbers of the prompts to launch.
        responses: Number of responses to launch for each prompt.
        wanted: Number of complete prompts that ends the round.
        needed: Number of finished responses that completes a prompt.
    """

    long: bool
    prompts: tuple[int, ...]
    responses: int
    wanted: int
    needed: int

    def shares(self, count: int) -> list[Round]:
        """Divide the round into rounds that run and end independently, one per engine. Together they complete as many prompts.

        Spare prompts are distributed as evenly as needed ones, in order of the prompts.

        Args:
            count: Number of engines.
        """
        extra = len(self.prompts) - self.wanted
        wanted, more = ([total * (k + 1) // count - total * k // count for k in range(count)] for total in (self.wanted, extra))
        ends = [sum(wanted[:k]) + sum(more[:k]) for k in range(count + 1)]
        return [
            Round(self.long, self.prompts[first:last], self.responses, want, self.needed)
            for (first, last), want in zip(pairwise(ends), wanted, strict=True)
        ]


def with_spare(prompts: int, responses: int, eta: float) -> tuple[int, int]:
    """Return the numbers of prompts and of responses to each that a round launches so that some are spare.

    Args:
        prompts: Number of prompts that the round needs.
        responses: Number of responses to each prompt that the round needs.
        eta: Factor of both numbers, which are rounded up.
    """
    exact = Fraction(str(eta))  # so that 1.1 times 10 is 11
    return ceil(exact * prompts), ceil(exact * responses)


class RoundSequence(Protocol):
    """Protocol of the consecutive rounds of a job."""

    def next(self) -> Round:
        """Return the next round."""
        ...

    def done(self, complete: Sequence[int]) -> None:
        """Record the end of the round and its complete prompts."""
        ...


class Wake(NamedTuple):
    """When a control is called next: after a number of finished responses or at a time, whichever comes first.

    Attributes:
        finished: Total number of finished responses, or None for no such limit.
        at_s: Time in seconds since the start of the rollout, or infinity.
    """

    finished: int | None = None
    at_s: float = inf


class Control(Protocol):
    """Protocol of the object that acts on the responses of a job's rollouts. It may keep state between rollouts."""

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Start a rollout: launch every new response."""
        ...

    def act(self, fleet: Fleet) -> Wake:
        """Migrate responses, add replicas and migrate to them, or do nothing."""
        ...

    def end(self, fleet: Fleet) -> None:
        """Handle the end of the rollout, when nothing runs any more."""
        ...


class JobPolicy(NamedTuple):
    """A policy's object for one job, with the state that belongs to the job.

    Attributes:
        rounds: Source of the job's rounds, with the methods `next` and `done` of `Rounds`.
        control: Object that acts inside its rollouts, with the methods `begin`, `act` and `end` of `StaticControl`.
    """

    rounds: RoundSequence
    control: Control


class RolloutPolicy(Protocol):
    """Protocol of a rollout policy. One object serves all jobs; the state of a job is in what `begin_job` returns.

    Equal policies behave the same. If an attribute `each_engine` exists and is true, every replica runs and ends its own share of a
    round.
    """

    def __hash__(self) -> int: ...

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Return the policy's object for a new job."""
        ...


class StaticControl:
    """A control that distributes the responses round robin and leaves them there. A control of your own may derive from it.

    `begin` is called at the start of each rollout, `act` at the time of each `Wake` that `begin` or `act` returned, and `end` when
    nothing runs any more.
    """

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch the responses round robin.

        Args:
            fleet: The rollout, in which nothing has been launched.
            round: Round that the rollout runs.

        Returns:
            The next call of `act`: here none, since nothing changes before the end.
        """
        deal(fleet, np.arange(fleet.size))
        return Wake()

    def act(self, fleet: Fleet) -> Wake:
        """Do nothing."""
        return Wake()

    def end(self, fleet: Fleet) -> None:
        """Do nothing."""


def deal(fleet: Fleet, replicas: Ints) -> None:
    """Launch every response, round robin over some replicas.

    Args:
        fleet: The rollout, in which nothing has been launched.
        replicas: Numbers of the replicas, shape (n,).
    """
    responses = np.arange(fleet.state.size)
    fleet.launch(responses, replicas[responses % replicas.size])


def wake_at(checkpoints: Iterable[int], fleet: Fleet) -> Wake:
    """Return a wake at the first of some numbers of finished responses that is not reached yet."""
    return Wake(min((count for count in checkpoints if count > fleet.finished.size), default=None))


def gather(fleet: Fleet, keep: int) -> None:
    """Move all open responses to the replicas with most of them. Responses already there stay.

    Args:
        fleet: The rollout.
        keep: Number of replicas to use from now on.
    """
    left, replica, context = fleet.open, fleet.replica, fleet.context()
    where = gathered(replica[left], context[left], fleet.size, keep)
    moving = np.flatnonzero(where != replica[left])
    moving = moving[np.argsort(-context[left][moving], kind="stable")]  # longest contexts first, since they queue in this order
    fleet.migrate(left[moving], where[moving])
