"""Runs policies on scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Protocol, runtime_checkable

from rollmux_env.bench.possible import check_possible, unwritten
from rollmux_env.bench.processes import Report, spread
from rollmux_env.cluster.plan import Policy
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.dollar_bound import bound_figures
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import Outcome, outcome
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.view import DispatchPolicy
from rollmux_env.user_code import brief, guarded, is_users, seeded


@runtime_checkable
class OwnReplay(Protocol):
    """Protocol of a policy with its own kind of replay, which could not run real jobs (`optimal` regroups for free)."""

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure it."""
        ...


Contender = Policy | OwnReplay
MakeContender = Callable[[str, int], Contender]
FLUID_ONLY = "a yardstick with a fluid replay only"
"""Description of a contender for which `can_replay` is false."""


def can_replay(contender: Contender, is_event: bool) -> bool:
    """Return whether a contender has a kind of replay.

    Args:
        contender: Policy.
        is_event: Whether the replay is an event replay; otherwise it is a fluid one.
    """
    return not is_event or not isinstance(contender, OwnReplay)


@dataclass(frozen=True)
class Task:
    """One policy on one scenario.

    Attributes:
        spec: Name and options of the contender, as `MakeContender` understands them.
        seed: Seed of the contender's choices and of sampled durations.
        scenario: Scenario to replay.
        dispatch: Dispatch policy of an event replay, or None for a fluid replay.
        check: Whether to assert the invariants throughout.
        rollout: Rollout policy of jobs with a model in an event replay, or None if their phases take the worst case.
        most_phases: Largest number of phases of an event replay, as in `rollmux_env.replay.event.Watch`.
        failures: Failures of an event replay, or None.
        keep_phases: Whether the outcome of an event replay has all phases.
        bound: Whether the outcome has the lower bounds of the stream's dollars, as in `rollmux_env.replay.dollar_bound`.
    """

    spec: str
    seed: int
    scenario: Scenario
    dispatch: DispatchPolicy | None = None
    check: bool = False
    rollout: RolloutPolicy | None = None
    most_phases: int | None = None
    failures: Failures | None = None
    keep_phases: bool = False
    bound: bool = False


@dataclass(frozen=True)
class Result:
    """The result of a task.

    Attributes:
        spec: Name and options of the contender.
        seed: Seed of the task.
        outcome: Outcome of the replay.
        total_s: Seconds of computation of the whole replay.
    """

    spec: str
    seed: int
    outcome: Outcome
    total_s: float


def run_task(make: MakeContender, task: Task, report: Callable[[int, int], None] = lambda phases, departed: None) -> Result:
    """Run one task.

    Args:
        make: Factory of the contender.
        task: Task to run.
        report: Callback for progress, as in `rollmux_env.replay.event.Watch`.

    Raises:
        InputError: If the contender cannot be made or does not support this scenario.
        PlanError: If the contender broke an invariant. The message begins with its name.
    """
    with seeded(task.seed):
        contender = make(task.spec, task.seed)
        began = perf_counter()
        try:
            with unwritten(task.scenario, any(map(is_users, (contender, task.dispatch, task.rollout)))):
                measured = _replay_and_measure(contender, task, report)
            check_possible(measured, task.scenario)
            if task.bound:
                measured = replace(measured, extra={**measured.extra, **bound_figures(measured, task.scenario)})
        except PlanError as error:
            raise PlanError(f"{_describe_contender(task)}: {error}") from error
    return Result(task.spec, task.seed, measured, perf_counter() - began)


def _replay_and_measure(contender: Contender, task: Task, report: Callable[[int, int], None]) -> Outcome:
    """Replay a task's scenario under its contender, and measure it."""
    if not can_replay(contender, task.dispatch is not None):
        raise InputError(f"event replay: {task.spec} is {FLUID_ONLY}")
    if isinstance(contender, OwnReplay):
        measured: object = guarded(contender.replay)(task.scenario, check=task.check)
        if not isinstance(measured, Outcome):
            raise PlanError(f"its replay returned {brief(measured)}, which is no Outcome")
        return measured
    if task.dispatch is None:
        return outcome(replay(task.scenario, contender, check=task.check))
    watch = Watch(task.check, task.most_phases, report, task.keep_phases)
    run = replay_events(task.scenario, contender, task.dispatch, task.seed, watch, rollout=task.rollout, failures=task.failures)
    return outcome(run, task.failures)


def _describe_contender(task: Task) -> str:
    """Return the name of a task's contender, with the classes of further policies of the user."""
    others = {"dispatch": task.dispatch, "rollout": task.rollout}
    own = [f"{kind} policy {type(policy).__name__}" for kind, policy in others.items() if is_users(policy)]
    return " with ".join([f"policy {task.spec}", *own])


def run_tasks(
    make: MakeContender,
    tasks: list[Task],
    workers: int = 1,
    report: Report = lambda index, phases, departed: None,
    limit_s: float | None = None,
) -> Iterator[tuple[int, Result]]:
    """Run tasks and yield (index, result) as they end.

    Args:
        make: Factory of contenders; a function of a module, since processes are sent its name.
        tasks: Tasks to run.
        workers: Number of processes; 1 runs the tasks in this process, one after the other.
        report: Callback for the progress of event replays: index of the task, phases that have begun, jobs that have departed.
        limit_s: Longest time that a task may take in seconds, or None. Tasks with a limit run in separate processes.

    Raises:
        InputError: As in `run_task`; the other tasks are then stopped, as by an interrupt.
        PlanError: As in `run_task`; the other tasks are then stopped, as by an interrupt.
    """
    return spread(partial(run_task, make), tasks, workers, report, limit_s, _describe_contender)
