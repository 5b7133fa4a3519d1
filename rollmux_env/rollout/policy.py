"""The interface of a rollout policy: which responses a rollout launches, and what happens to them while it runs.

The policies are in `policies.rollout`. This module has only what the simulator requires of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.setting import Setting


class Round(Protocol):
    """What one rollout launches: `responses` to each of `prompts`; it is over when `wanted` prompts are complete, and a prompt is
    when `needed` of its responses have finished. `long`: prompts that earlier rounds left."""

    @property
    def long(self) -> bool: ...
    @property
    def prompts(self) -> tuple[int, ...]: ...
    @property
    def responses(self) -> int: ...
    @property
    def wanted(self) -> int: ...
    @property
    def needed(self) -> int: ...


class Rounds(Protocol):
    """The rounds of a job, one after the other."""

    def next(self) -> Round:
        """The round that is due."""
        ...

    def done(self, complete: Sequence[int]) -> None:
        """It is over, with these prompts complete."""
        ...


class Wake(NamedTuple):
    """When a control is asked next: so many responses have finished, or at that time, whatever comes first."""

    finished: int | None = None
    at_s: float = inf


class Control(Protocol):
    """What is done with the responses of a job's rollouts; it may remember things from one rollout to the next."""

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """A rollout begins: launch every new response."""
        ...

    def act(self, fleet: Fleet) -> Wake:
        """It was to be asked now: migrate, or add replicas and migrate to them, or do nothing."""
        ...

    def end(self, fleet: Fleet) -> None:
        """The rollout is over; nothing runs any more."""
        ...


class RolloutPolicy(Protocol):
    """One object for all jobs; what it remembers of a job is in what these two make. Equal ones do the same."""

    def __hash__(self) -> int: ...

    def rounds(self, prompts: int, responses: int) -> Rounds:
        """The rounds of a new job that trains on so many prompts an iteration, with so many responses to each."""
        ...

    def control(self, setting: Setting) -> Control:
        """What is done inside the rollouts of a new job."""
        ...
