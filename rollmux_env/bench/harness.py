"""Runs policies on scenarios, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar, runtime_checkable

from rollmux_env.bench.possible import check_possible, unwritten
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
Report = Callable[[int, int, int], None]
Item = TypeVar("Item")
Found = TypeVar("Found")
FLUID_ONLY = "a yardstick with a fluid replay only"
"""Description of a contender for which `can_replay` is false."""
_LOOKS_S = 0.5  # seconds between two checks of the workers' progress
_UNGUARDED = 78  # exit status of a worker that tried to start workers itself


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
                measured = _measured(contender, task, report)
            check_possible(measured, task.scenario)
            if task.bound:
                measured = replace(measured, extra={**measured.extra, **bound_figures(measured, task.scenario)})
        except PlanError as error:
            raise PlanError(f"{_named(task)}: {error}") from error
    return Result(task.spec, task.seed, measured, perf_counter() - began)


def _measured(contender: Contender, task: Task, report: Callable[[int, int], None]) -> Outcome:
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


def _named(task: Task) -> str:
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
    return spread(partial(run_task, make), tasks, workers, report, limit_s, _named)


def spread(
    work: Callable[[Item, Callable[[int, int], None]], Found],
    items: Sequence[Item],
    workers: int = 1,
    report: Report = lambda index, phases, departed: None,
    limit_s: float | None = None,
    name: Callable[[Item], str] = str,
) -> Iterator[tuple[int, Found]]:
    """Do work on items, in several processes, and yield (index, result) as they end.

    Args:
        work: Function of a module that takes an item and a callback for progress, which takes two numbers.
        items: Items to work on.
        workers: Number of processes, as in `run_tasks`.
        report: Callback for progress, as in `run_tasks`.
        limit_s: Longest time that an item may take, in seconds, or None, as in `run_tasks`.
        name: Function that returns the name of an item for error messages.

    Raises:
        InputError: If there is no worker, one was killed, or they cannot import the calling script. Errors of `work` are passed on;
            other work is then stopped, as by an interrupt.
        PlanError: If an item took longer than `limit_s`.
    """
    if workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    if limit_s is None and (workers == 1 or len(items) == 1):
        for index, item in enumerate(items):
            yield index, work(item, partial(report, index))
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # this is a worker that imports the calling script
        raise SystemExit(_UNGUARDED)
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not os.path.exists(script):
        raise InputError(f"workers={workers}: each process imports the script again, and this one is no file; save it first")
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    counts = context.Array("d", 3 * len(items), lock=False)
    pool = ProcessPoolExecutor(min(workers, len(items)), mp_context=context, initializer=_begin, initargs=(counts,))
    try:
        waiting = {pool.submit(_count, work, index, item): index for index, item in enumerate(items)}
        workers_here = set(multiprocessing.active_children()) - others
        while waiting:
            done, _ = wait(waiting, timeout=_LOOKS_S, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
            for index in waiting.values():
                phases, departed, began_s = counts[3 * index : 3 * index + 3]
                if phases:
                    report(index, int(phases), int(departed))
                if limit_s is not None and 0 < began_s < monotonic() - limit_s:
                    raise PlanError(f"{name(items[index])}: it took longer than --time-limit {limit_s:g} s")
    except BrokenProcessPool:
        pool.shutdown(cancel_futures=True)  # the exit status of each process is known only afterwards
        if _UNGUARDED in {process.exitcode for process in workers_here}:
            raise InputError(
                f"workers={workers}: each process imports the script again; call this below `if __name__ == '__main__':`"
            ) from None
        raise InputError(f"--workers {workers}: a process was killed before its task was done (out of memory?)") from None
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_counts: Any = None  # in a worker: progress and start of each item, shared with the parent process


def _begin(counts: Any) -> None:
    """Initialise a worker. It ignores Ctrl-C, which the parent process handles."""
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _count(work: Callable[[Item, Callable[[int, int], None]], Found], index: int, item: Item) -> Found:
    def report(phases: int, departed: int) -> None:
        _counts[3 * index], _counts[3 * index + 1] = phases, departed

    _counts[3 * index + 2] = monotonic()
    return work(item, report)
