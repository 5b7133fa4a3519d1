"""What happens in a world: its jobs, and the faults that are to come; drawn from a seed, written as JSON, and made smaller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from tests.simulation.network import FATES

KINDS = ("plain", "plain", "synced", "sync", "asynchronous", "evaluates")
DISK = ("torn", "full", "slow disk", "dies before", "dies after")
_OF_OWNERS = ("kill owner", "kill owner", "pause owner", "twin")
_OF_SERVICE = ("kill service", "kill service", "pause service", "machine sleeps", "terminate", "second service", "wall clock")
_OF_USERS = ("cancel", "drain")
_LAST_S = 25.0  # of faults that come at a time


@dataclass(frozen=True)
class JobPlan:
    """A job and its owner.

    Attributes:
        kind: of `KINDS`: what its owner does in an iteration. here: on the service's machine, which sees its processes.
        worst_s: of each of its phases, as its file says; they take at most that.
    """

    id: str
    kind: str
    iterations: int
    here: bool
    worst_s: float
    movable: bool


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        at: the number of the request or of the commit, the step of the service that is killed, or a time, seconds.
        target: a job, a node, or which start of the service. seconds: of a pause or a jump.
    """

    kind: str
    at: float
    target: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A world. `seed` gives all that is not said here: delays, turns, lengths of phases.

    Attributes:
        pairs: of nodes. grace_s: as of the service. file: the journal is in a file of SQLite.
        drifts: clocks run at rates of their own. watched: somebody follows the journal over HTTP.
    """

    seed: int
    jobs: tuple[JobPlan, ...]
    pairs: int
    dispatch: str
    grace_s: float | None
    file: bool
    faults: tuple[Fault, ...]
    drifts: bool = False
    watched: bool = False

    def text(self) -> str:
        """As JSON, in one line."""
        return json.dumps(asdict(self))

    @property
    def calm_s(self) -> float:
        """After this time nothing goes wrong that comes at a time."""
        timed = [fault for fault in self.faults if fault.kind in TIMED]
        return max((fault.at + (0.0 if fault.kind == "wall clock" else fault.seconds) for fault in timed), default=0.0)


TIMED = frozenset({*_OF_OWNERS, *_OF_SERVICE, *_OF_USERS} - {"kill service"})


def schedule_of(text: str) -> Schedule:
    """The schedule that `Schedule.text` has written."""
    read = json.loads(text)
    jobs, faults = (JobPlan(**job) for job in read.pop("jobs")), (Fault(**fault) for fault in read.pop("faults"))
    return Schedule(**read, jobs=tuple(jobs), faults=tuple(faults))


def drawn(seed: int) -> Schedule:
    """The schedule of a seed."""
    draw = Random(f"schedule {seed}")
    ids = [f"job{k}" for k in range(draw.choice([1, 2, 2, 3, 3, 4]))]
    jobs = tuple(_job(draw, name) for name in ids)
    file, pairs = draw.random() < 0.1, draw.choice([1, 1, 2])
    faults = tuple(_fault(draw, ids, pairs, file) for _ in range(draw.choice([0, 1, 2, 3, 4, 6, 8])))
    dispatch = draw.choice(["round-robin", "fifo", "shortest-first"])
    grace_s, drifts, watched = draw.choice([None, 5.0]), draw.random() < 0.3, draw.random() < 0.2
    return Schedule(seed, jobs, pairs, dispatch, grace_s, file, faults, drifts, watched)


def _job(draw: Random, name: str) -> JobPlan:
    kind, iterations, here = draw.choice(KINDS), draw.choice([1, 2, 2, 3]), draw.random() < 0.6
    return JobPlan(name, kind, iterations, here, draw.choice([1.0, 2.0, 5.0]), draw.random() < 0.3)


def _fault(draw: Random, ids: list[str], pairs: int, file: bool) -> Fault:
    group = draw.choice(["network", "network", "disk", "owner", "owner", "service", "service", "users"])
    if group == "network":
        return Fault(draw.choice(FATES), draw.randrange(1, 20 + 15 * len(ids)))
    if group == "disk":
        return Fault(draw.choice((*DISK, "torn") if file else DISK[1:]), draw.randrange(1, 10 + 10 * len(ids)))
    if group == "owner":
        kind, seconds = draw.choice(_OF_OWNERS), draw.choice([1.0, 20.0, 29.5, 31.0, 40.0, 70.0])
        return Fault(kind, round(draw.uniform(0, _LAST_S), 3), draw.choice(ids), seconds if kind == "pause owner" else 0.0)
    if group == "users":
        kind = draw.choice(_OF_USERS)
        target = draw.choice(ids) if kind == "cancel" else f"{draw.choice(['rollout', 'training'])}-{draw.randrange(pairs)}"
        return Fault(kind, round(draw.uniform(0, _LAST_S), 3), target, 10.0 if kind == "drain" else 0.0)
    kind = draw.choice(_OF_SERVICE)
    if kind == "kill service":
        return Fault(kind, draw.randrange(1, draw.choice([50, 500, 3000])), str(draw.choice([1, 1, 2, 3])))
    lengths_s = {"pause service": (1.5, 12.0, 33.0, 50.0), "machine sleeps": (5.0, 60.0), "wall clock": (-3600.0, 3600.0)}
    return Fault(kind, round(draw.uniform(0, _LAST_S), 3), "", draw.choice(lengths_s.get(kind, (0.0,))))


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """The smallest schedule that is found to fail still: with fewer faults, jobs and iterations."""
    smaller = True
    while smaller:
        smaller = False
        for other in _smaller(schedule):
            if fails(other):
                schedule, smaller = other, True
                break
    return schedule


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    count = len(schedule.faults)
    for size in (count // 2, 1):
        for first in range(0, count, size) if size else ():
            yield replace(schedule, faults=schedule.faults[:first] + schedule.faults[first + size :])
    for gone in schedule.jobs if len(schedule.jobs) > 1 else ():
        others: Any = tuple(job for job in schedule.jobs if job is not gone)
        faults = tuple(fault for fault in schedule.faults if fault.target != gone.id)
        yield replace(schedule, jobs=others, faults=faults)
    for place, job in enumerate(schedule.jobs):
        if job.iterations > 1:
            jobs = (*schedule.jobs[:place], replace(job, iterations=job.iterations - 1), *schedule.jobs[place + 1 :])
            yield replace(schedule, jobs=jobs)
