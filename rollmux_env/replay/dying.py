"""Failures in an event replay: jobs, nodes and the scheduler die and restart.

`rollmux_env.replay.event` has the rules. Times between failures are exponential and have separate random generators, so that the
durations of phases are the same with and without failures. The k-th life of a job, from a placement to the job's own failure, has
the same length under every policy. A node's life begins when a group gets the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf, isfinite, log1p
from typing import cast

from numpy.random import Generator

from rollmux_env.cluster.events import JobProgress
from rollmux_env.keys.job import Job
from rollmux_env.keys.queue import Estimate
from rollmux_env.replay.failures import Cause, Death, FailureLog, Failures, Loss
from rollmux_env.replay.replayed import ReplayedJob
from rollmux_env.replay.running_jobs import RunningJobs
from rollmux_env.replay.sampling import generator
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.core import Scheduler

Node = tuple[int, str, int]  # group, pool, number
Key = str | Death | Node | None  # a job's id, a scripted death, a node, or None for the scheduler

_SHORTEST_S = 1e-3  # shortest remaining stay: a job may die after the end of its stay, in its last iteration


class _DeferredCalls:
    """Proxy that records calls of an object's methods until they can be made."""

    def __init__(self, target: object, calls: list[Callable[[], None]]) -> None:
        self._target = target
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._target, name)
        return lambda *fact: self._calls.append(partial(method, *fact))


class AbsentScheduler:
    """Recorder of the facts for a scheduler's `members` and `jobs` while the scheduler is away."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._calls: list[Callable[[], None]] = []
        self.members, self.jobs = _DeferredCalls(scheduler.members, self._calls), _DeferredCalls(scheduler.jobs, self._calls)

    def hand_over(self) -> None:
        """Report all recorded facts to the scheduler, in order."""
        for call in self._calls:
            call()
        self._calls.clear()


class FailureTimes:
    """The times at which jobs, nodes and the scheduler die.

    Args:
        failures: Rates and script of failures.
        seed: Seed of the random times.
        first_s: Time at which the scheduler's first life begins, in seconds.
    """

    def __init__(self, failures: Failures, seed: int, first_s: float) -> None:
        self._failures = failures
        self._seed = seed
        self._heap: list[tuple[float, int, Cause, Key]] = []
        self._order = count()
        self._lives: dict[str, Generator] = {}  # random generator of each job's lives
        self._next_failure: dict[str, int] = {}  # number of a job's valid failure; the job's other entries on the heap are void
        self._nodes: set[tuple[int, str, int]] = set()
        self._scheduler = generator(seed, "", "scheduler")
        self.begin_scheduler(first_s)
        for death in failures.deaths:
            heappush(self._heap, (death.at_s, next(self._order), "job", death))

    @property
    def next_s(self) -> float:
        """Time of the next failure in seconds, or infinity."""
        return self._heap[0][0] if self._heap else inf

    def begin_scheduler(self, now_s: float) -> None:
        """Draw the next failure of the scheduler, which starts now."""
        self._add(now_s, self._scheduler, self._failures.scheduler_h, "scheduler", None)

    def begin(self, job_id: str, seating: Seating, now_s: float) -> None:
        """Draw the next failure of a job that got a placement, and of each of its nodes, if it is not drawn yet."""
        if job_id not in self._next_failure and isfinite(self._failures.job_h):
            own = self._lives.setdefault(job_id, generator(self._seed, job_id, "failure"))
            self._next_failure[job_id] = self._add(now_s, own, self._failures.job_h, "job", job_id)
        if not isfinite(self._failures.node_h):
            return
        for pool, numbers in (("rollout", () if seating.colocated else seating.rollout), ("training", seating.training)):
            for node in ((seating.group, pool, number) for number in numbers):
                if node not in self._nodes:
                    self._nodes.add(node)
                    own = generator(self._seed, f"{seating.group}/{pool}", str(node[2]))
                    self._add(now_s, own, self._failures.node_h, "node", node)

    def end(self, job_id: str) -> None:
        """Make the next failure of a job void, because it died or departed."""
        self._next_failure.pop(job_id, None)

    def due(self, until_s: float) -> Iterator[tuple[Cause, Key]]:
        """Remove and yield the failures by `until_s`, including those of nodes that no group holds any longer."""
        while self.next_s <= until_s:
            _, order, cause, key = heappop(self._heap)
            if isinstance(key, Death):
                yield cause, key
            elif cause != "job" or self._next_failure.get(cast("str", key)) == order:
                self._next_failure.pop(cast("str", key), None)
                self._nodes.discard(cast("Node", key))
                yield cause, key

    def _add(self, now_s: float, own: Generator, mean_h: float, cause: Cause, key: Key) -> int:
        order = next(self._order)
        if isfinite(mean_h):
            heappush(self._heap, (now_s - 3600 * mean_h * log1p(-own.random()), order, cause, key))
        return order


class Dying:
    """Application of failures to a replay: it ends jobs, and reports their deaths and returns to the scheduler.

    Args:
        failures: Rates, checkpoints and script of failures.
        times: Times of the failures.
        jobs: Running jobs of the replay.
        scheduler: Scheduler of the replay.

    Attributes:
        times: Times of the failures.
        log: Failures so far.
        again: Replayed jobs that died and have no new placement yet, by id, with their progress.
        back_s: Time at which the scheduler restarts in seconds, or infinity while it runs.
        away: Jobs that died and arrive again only later, at a time that the script of failures gives.
    """

    def __init__(self, failures: Failures, times: FailureTimes, jobs: RunningJobs, scheduler: Scheduler) -> None:
        self._failures = failures
        self._jobs = jobs
        self._scheduler = scheduler
        self._absent = AbsentScheduler(scheduler)
        self.times = times
        self.log = FailureLog()
        self.again: dict[str, ReplayedJob] = {}
        self.back_s = inf
        self.away: list[Job] = []

    @property
    def next_back_s(self) -> float:
        """Time at which the scheduler or a job returns next in seconds, or infinity if none is away."""
        return min([self.back_s, *(job.arrival_s for job in self.away)])

    def kill_nodes(self, until_s: float, now_s: float) -> bool:
        """Apply the failures, restarts of the scheduler and returns of jobs that are due.

        Args:
            until_s: Time up to which they are due, in seconds.
            now_s: Current time, in seconds.

        Returns:
            Whether something happened that requires placement decisions.
        """
        log, before = self.log, len(self.log.losses)
        back = self.back_s <= until_s
        if back:
            self.back_s, self._jobs.listener = inf, self._scheduler
            self._absent.hand_over()
            self.times.begin_scheduler(now_s)
        coming = [job for job in self.away if job.arrival_s <= until_s]
        for job in coming:
            self.away.remove(job)
            self._jobs.listener.jobs.arrived(job)
        for cause, key in self.times.due(until_s):
            if cause == "scheduler":
                log.scheduler_s.append(now_s)
                self.back_s = now_s + self._failures.scheduler_down_s
                self._jobs.listener = cast("Scheduler", self._absent)
                continue
            victims = self._victims(key)
            log.nodes += cause == "node" and bool(victims)
            for job_run in victims:
                log.losses.append(Loss(now_s, job_run.job.id, cause, job_run.lost(now_s)))
                self._kill(job_run, now_s, key.arrives_s if isinstance(key, Death) else now_s)
                self.times.end(job_run.job.id)
        return back or bool(coming) or len(log.losses) > before

    def _victims(self, key: Key) -> list[ReplayedJob]:
        """Return the jobs that a failure kills. A job that has left its nodes for a move is not among them."""
        placed = [one for one in self._jobs.by_id.values() if one.placed]
        if not isinstance(key, tuple):
            return [one for one in placed if one.job.id == (key.job if isinstance(key, Death) else key)]
        group, pool, number = key
        members = [one for one in placed if one.place.group.number == group]
        return [one for one in members if pool == "training" or number in one.place.keys["rollout"]]

    def _kill(self, job_run: ReplayedJob, now_s: float, arrives_s: float) -> None:
        """Kill a job, and let it arrive again with its remaining work."""
        job, checkpoints, listener = job_run.job, job_run.checkpoints, self._jobs.listener
        saved = checkpoints.saved - checkpoints.begins
        self._jobs.cut(job_run, now_s)
        listener.jobs.failed(job.id)
        done = JobProgress(job.id, saved, job_run.busy_s["rollout"], job_run.busy_s["training"])
        listener.jobs.cleared(job.id, done)
        stay: dict[str, float | Estimate] = {"arrival_s": arrives_s}
        if job.iterations is not None:
            stay["iterations"] = job.iterations - saved
            if job.estimate is not None:
                stay["estimate"] = job.estimate.after(saved)
        else:
            stay["duration_s"] = max(job_run.place.leaves_s - now_s, _SHORTEST_S)
        job_run.job = job.model_copy(update=stay)
        shown = job_run.job.model_copy(update={"drift": ()})
        if arrives_s > now_s:
            self.away.append(shown)
        else:
            listener.jobs.arrived(shown)
        del self._jobs.by_id[job.id]
        self.again[job.id] = job_run
