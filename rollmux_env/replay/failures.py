"""Failures in an event replay: nodes, jobs and the scheduler die at given rates, and jobs go on from their last checkpoint.

Times between failures are exponential, of generators of their own, so the durations of phases are the same with and without them.
The k-th life of a job, from a placement to its own failure, is the same under every policy. A node's begins when a group gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf, isfinite, log1p, sqrt
from typing import Literal, NamedTuple

from numpy.random import Generator

from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import generator
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.core import Scheduler

Cause = Literal["node", "job", "scheduler"]
NEVER = 1 << 62  # iterations


@dataclass(frozen=True)
class Failures:
    """How often what dies, and how often jobs write checkpoints.

    Attributes:
        node_h, job_h, scheduler_h: mean hours to the failure of a node, of a job that has a place, and of the scheduler.
        scheduler_down_s: seconds until the scheduler is back.
        every: iterations from one checkpoint of a job to the next; `young` and `daly`: what these formulas say of the job.
        write_s: seconds that a job waits, between two iterations, until its checkpoint is written.

    Raises:
        ValueError: a value out of range; one line.
    """

    node_h: float = inf
    job_h: float = inf
    scheduler_h: float = inf
    scheduler_down_s: float = 600.0
    every: int | Literal["young", "daly"] = 1
    write_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("node_h", "job_h", "scheduler_h", "scheduler_down_s"):
            if not _is_number(getattr(self, name)) or not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("write_s", "scheduler_down_s"):
            if not _is_number(getattr(self, name)) or not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be a number of seconds, not {getattr(self, name)!r}")
        if self.every not in ("young", "daly") and (
            isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1
        ):
            raise ValueError(f"every must be a number of iterations from 1, young or daly, not {self.every!r}")

    def interval(self, job: Job) -> int:
        """Iterations from one checkpoint of a job to the next."""
        if isinstance(self.every, int):
            return self.every
        rate = 1 / self.job_h + (job.rollout.nodes + job.training.nodes) / self.node_h  # failures of the job an hour
        if rate == 0:
            return NEVER
        formula = young_s if self.every == "young" else daly_s
        return max(1, round(formula(self.write_s, 3600 / rate) / job.solo_s))


def young_s(write_s: float, mean_s: float) -> float:
    """Seconds of work between two checkpoints that lose the least, to first order (Young, 1974).

    Args:
        write_s: of a checkpoint. mean_s: between two failures.
    """
    return sqrt(2 * write_s * mean_s)


def daly_s(write_s: float, mean_s: float) -> float:
    """The same to higher order (Daly, 2006, equation 37)."""
    if write_s >= 2 * mean_s:
        return mean_s
    ratio = write_s / (2 * mean_s)
    return sqrt(2 * write_s * mean_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - write_s


class Loss(NamedTuple):
    """A job has died.

    Attributes:
        cause: `node` or `job`. iterations: that it had done, with fractions, and does again.
    """

    at_s: float
    job_id: str
    cause: Cause
    iterations: float


@dataclass
class FailureLog:
    """What has died in a replay.

    Attributes:
        losses: jobs, in order. nodes: how many have died under jobs. scheduler_s: when the scheduler has.
        checkpoints: how many were written.
    """

    losses: list[Loss] = field(default_factory=list)
    nodes: int = 0
    scheduler_s: list[float] = field(default_factory=list)
    checkpoints: int = 0

    def figures(self, scenario: Scenario, failures: Failures) -> dict[str, float]:
        """What docs/reference/metrics.md defines, by name."""
        solo_s = {job.id: job.solo_s for job in scenario.jobs}
        intervals = [failures.interval(job) for job in scenario.jobs]
        return {
            "node_failures": self.nodes,
            "job_failures": sum(loss.cause == "job" for loss in self.losses),
            "scheduler_failures": len(self.scheduler_s),
            "restarts": len(self.losses),
            "lost_work_h": sum(loss.iterations * solo_s[loss.job_id] for loss in self.losses) / 3600,
            "checkpoint_h": self.checkpoints * failures.write_s / 3600,
            "checkpoint_every": sum(intervals) / len(intervals),
        }


class AbsentScheduler:
    """Takes the facts that a scheduler would be told by its methods, until it is back."""

    def __init__(self) -> None:
        self._facts: list[tuple[str, tuple[object, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *fact: self._facts.append((name, fact))

    def hand_over(self, scheduler: Scheduler) -> None:
        """The scheduler is back, and is told all, in order."""
        for name, fact in self._facts:
            getattr(scheduler, name)(*fact)
        self._facts.clear()


class Failure(NamedTuple):
    """Something dies: a job, all that is on a node, or the scheduler.

    Attributes:
        job_id: of a job. group, pool, number: of a node.
    """

    at_s: float
    order: int
    cause: Cause
    job_id: str = ""
    group: int = -1
    pool: str = ""
    number: int = -1


class FailureTimes:
    """When what dies.

    Args:
        first_s: when the scheduler's first life begins.

    Attributes:
        next_s: of the next failure; infinite where there is none.
    """

    def __init__(self, failures: Failures, seed: int, first_s: float) -> None:
        self._failures = failures
        self._seed = seed
        self._heap: list[Failure] = []
        self._order = count()
        self._lives: dict[str, Generator] = {}  # of jobs
        self._pending: dict[str, int] = {}  # order of a job's failure; others of it are void
        self._nodes: set[tuple[int, str, int]] = set()
        self._scheduler = generator(seed, "", "scheduler")
        self.begin_scheduler(first_s)

    @property
    def next_s(self) -> float:
        return self._heap[0].at_s if self._heap else inf

    def begin_scheduler(self, now_s: float) -> None:
        """The scheduler is there from now on."""
        self._add(now_s, self._scheduler, self._failures.scheduler_h, "scheduler")

    def begin(self, job_id: str, seating: Seating, now_s: float) -> None:
        """A job has a place: it has a life, if not already, and so have the nodes of the place."""
        if job_id not in self._pending:
            own = self._lives.setdefault(job_id, generator(self._seed, job_id, "failure"))
            self._pending[job_id] = self._add(now_s, own, self._failures.job_h, "job", job_id)
        if not isfinite(self._failures.node_h):
            return
        pools = {"rollout": () if seating.colocated else seating.rollout, "training": seating.training}
        for pool, numbers in pools.items():
            for number in numbers:
                node = (seating.group, pool, number)
                if node not in self._nodes:
                    self._nodes.add(node)
                    own = generator(self._seed, f"{seating.group}/{pool}", str(number))
                    self._add(now_s, own, self._failures.node_h, "node", "", *node)

    def end(self, job_id: str) -> None:
        """A job has died, or done its stay."""
        self._pending.pop(job_id, None)

    def due(self, until_s: float) -> Iterator[Failure]:
        """What dies by `until_s`; of nodes, also those that no group has any more."""
        while self.next_s <= until_s:
            failure = heappop(self._heap)
            if failure.cause != "job" or self._pending.get(failure.job_id) == failure.order:
                self.end(failure.job_id)
                self._nodes.discard((failure.group, failure.pool, failure.number))
                yield failure

    def _add(self, now_s: float, own: Generator, mean_h: float, cause: Cause, *of: str | int) -> int:
        order = next(self._order)
        life_s = -3600 * mean_h * log1p(-own.random()) if isfinite(mean_h) else inf
        if life_s < inf:
            heappush(self._heap, Failure(now_s + life_s, order, cause, *of))  # type: ignore[arg-type]
        return order


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
