"""Runs policies on scenarios, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Protocol, runtime_checkable

from rollmux_env.cluster.plan import Policy
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Outcome, outcome
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.rollout.profile import migration_of
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.dispatcher import DispatchPolicy
from rollmux_env.timing.tail import TailModel


@runtime_checkable
class OwnReplay(Protocol):
    """A policy with its own replay, which could not run jobs (`optimal` regroups for free)."""

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure it."""
        ...


Contender = Policy | OwnReplay
MakeContender = Callable[[str, int], Contender]


@dataclass(frozen=True)
class Task:
    """One policy on one scenario.

    Attributes:
        spec: the contender, as `MakeContender` understands it.
        seed: of its choices and of sampled durations.
        scenario: what to replay.
        dispatch: the dispatch policy of an event replay; None for a fluid one.
        check: assert the invariants throughout.
        rollout: of an event replay, what happens inside the rollouts of jobs with a model; None: they take their worst case.
    """

    spec: str
    seed: int
    scenario: Scenario
    dispatch: DispatchPolicy | None = None
    check: bool = False
    rollout: RolloutPolicy | None = None


@dataclass(frozen=True)
class Result:
    """The result of a task.

    Attributes:
        total_s: seconds of computing of the whole replay.
    """

    spec: str
    seed: int
    outcome: Outcome
    total_s: float


def run_task(make: MakeContender, task: Task) -> Result:
    """Run one task.

    Raises:
        InputError: the contender cannot be made or cannot take this scenario.
        PlanError: the contender broke an invariant; the message begins with its name.
    """
    contender = make(task.spec, task.seed)
    began = perf_counter()
    try:
        if isinstance(contender, OwnReplay):
            if task.dispatch is not None:
                raise InputError(f"event replay: {task.spec} is a yardstick with a fluid replay only")
            measured = contender.replay(task.scenario, check=task.check)
        elif task.dispatch is not None:
            migration = migration_of(task.rollout)
            tails = TailModel(share=migration[1]) if migration else None
            run = replay_events(
                task.scenario, contender, task.dispatch, task.seed, check=task.check, tails=tails, rollout=task.rollout
            )
            measured = outcome(run)
        else:
            measured = outcome(replay(task.scenario, contender, check=task.check))
    except PlanError as error:
        raise PlanError(f"policy {task.spec}: {error}") from None
    return Result(task.spec, task.seed, measured, perf_counter() - began)


def run_tasks(make: MakeContender, tasks: list[Task], workers: int = 1) -> Iterator[tuple[int, Result]]:
    """Run tasks and yield (index, result) as they end.

    Args:
        make: a function of a module (processes are sent its name).
        workers: processes; 1 runs the tasks here, one after the other.

    Raises:
        InputError, PlanError: as `run_task`; the other tasks are then stopped, as they are by an interrupt.
    """
    if workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    if workers == 1 or len(tasks) == 1:
        for index, task in enumerate(tasks):
            yield index, run_task(make, task)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),  # Ctrl-C is for this process to answer
    )
    try:
        futures = {pool.submit(partial(run_task, make), task): index for index, task in enumerate(tasks)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise InputError(f"--workers {workers}: a process was killed before its task was done (out of memory?)") from None
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
