"""Replays of experiments: options of a replay, and the tasks of policies and streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from policies.dispatch import make_dispatch
from policies.registry import checked, make_policy
from policies.rollout import migrating
from policies.rollout.places import check_sizes, make_at
from rollmux_env.bench.harness import FLUID_ONLY, Contender, Task, can_replay
from rollmux_env.errors import InputError
from rollmux_env.factories import make_with
from rollmux_env.replay.failures import Failures
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import not_one_of

OwnPolicy = Callable[..., Contender]
"""A user's policy class, or another callable that returns a policy. It is called for each replay, with `seed` if it takes one."""
Fidelity = Literal["fluid", "event"]


@dataclass(frozen=True)
class Replaying:
    """Options of a replay.

    Attributes:
        fidelity: `fluid` to simulate steady periods, `event` to simulate every phase. None means `event` if a dispatch policy, a
            rollout policy or failures are given, else `fluid`.
        dispatch: Name of the dispatch policy of an event replay, or None for `round-robin`.
        rollout_policy: Name of the rollout policy for jobs with a model, or None for `plain`.
        failures: Rates of failures in an event replay, as in `job_h=24,every=10`, or None for no failures.
        check: Whether to assert the invariants after every instant.
        most_phases: Largest number of phases in an event replay, or None for 20 million.
        keep_phases: Whether results have every phase of an event replay.
        bound: Whether results have lower bounds of the stream's dollars.

    Raises:
        InputError: The fidelity is unknown, or an option about phases is given for a fluid replay.
    """

    fidelity: Fidelity | None = None
    dispatch: str | None = None
    rollout_policy: str | None = None
    failures: str | None = None
    check: bool = False
    most_phases: int | None = None
    keep_phases: bool = False
    bound: bool = False

    def __post_init__(self) -> None:
        if self.fidelity not in (None, "fluid", "event"):
            raise InputError(f"fidelity: {not_one_of(self.fidelity, ('fluid', 'event'))}")
        options = {"dispatch": self.dispatch, "rollout-policy": self.rollout_policy, "failures": self.failures}
        for option, value in {**options, "max-phases": self.most_phases, "keep_phases": self.keep_phases or None}.items():
            if value is not None and not self.is_event:
                raise InputError(f"{'' if option == 'keep_phases' else '--'}{option}: a fluid replay runs no single phases")

    @property
    def is_event(self) -> bool:
        """Whether every phase is simulated."""
        of_events = self.dispatch, self.rollout_policy, self.failures
        return self.fidelity == "event" or (self.fidelity is None and any(of_events))


def make_failures(text: str | None) -> Failures | None:
    """Parse the text of `--failures` into the failures of an event replay.

    Raises:
        InputError: The text has another form, or an option is unknown or out of range.
    """
    return None if text is None else make_with("--failures", "it", Failures, text.split(","))


def replay_tasks(
    names: Sequence[str], scenarios: Mapping[int, Scenario], how: Replaying
) -> tuple[list[Task], dict[str, str | None]]:
    """Return one task for each scenario and policy, and the fields of the result that describe how phases are replayed."""
    rollouts = how.rollout_policy or "plain"
    inside = make_at(rollouts, "replay")
    order = migrating(how.dispatch or "round-robin", inside)
    rule = make_dispatch(order) if how.is_event else None
    dying = make_failures(how.failures)
    check_sizes(rollouts, scenarios.values())
    tasks = [
        Task(name, number, scenario, rule, how.check, inside, how.most_phases, dying, how.keep_phases, how.bound)
        for number, scenario in scenarios.items()
        for name in names
    ]
    if rule is None:
        return tasks, {"fidelity": "fluid", "dispatch": None, "rollout_policy": None}
    return tasks, {"fidelity": "event", "dispatch": order, "rollout_policy": rollouts}


def contenders(names: list[str], make: Callable[[str, int], Contender], how: Replaying) -> tuple[list[str], dict[str, str]]:
    """Return the names of the policies that support this kind of replay, and for each other one the reason why it is left out."""
    able = [name for name in names if can_replay(make(name, 0), how.is_event)]
    if not able:
        raise InputError(f"event replay: {names[0]} is {FLUID_ONLY}")
    return able, {name: FLUID_ONLY for name in names if name not in able}


def make_contender(own: Mapping[str, OwnPolicy], name: str, seed: int) -> Contender:
    """Create a policy.

    Args:
        own: Classes of users by name.
        name: Name of one of them, or name and options of another policy.
        seed: Seed for policies with an option `seed`.
    """
    if name not in own:
        return make_policy(name, seed)
    return checked(f"policy {name}", name, make_with(f"policy {name}", name, own[name], (), seed))
