"""What happens in a world: its jobs, and the faults that are to come; drawn from a seed, written as JSON, and made smaller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.network import FATES

USERS = ("ann", "ann", "bob")
KINDS = ("plain", "plain", "synced", "sync", "asynchronous", "evaluates")
DISK = ("torn", "full", "slow disk", "dies before", "dies after")
_OF_OWNERS = ("kill owner", "kill owner", "pause owner", "twin")
_OF_SERVICE = ("kill service", "kill service", "pause service", "machine sleeps", "terminate", "second service", "wall clock")
_OF_USERS = ("cancel", "drain")
_WINDOW = "window"
_OF_ACCOUNTS = ("quota", "month")
BAD_MINUTES = ("disk stays full", "disk stays slow")
_BAD_S = 300.0
_POLICIES = ("rollmux", "rollmux", "rollmux,switches=true", "consolidate,budget=200")  # a search that costs no more than the rest
_PARKING = (
    *("solo,order=fcfs,park=true", "solo,order=attained,park=true", "rollmux,order=fcfs,park=true"),
    *("fleet,order=attained,park=true,moves=false", "solo,order=fair,half_life_h=0.1,held_h=0.25,park=true"),
    "solo,order=gittins,park=true",
)
STATED_GB = 2.0  # of device memory, where any is
_LAST_S = 25.0  # of faults that come at a time


@dataclass(frozen=True)
class JobPlan:
    """A job and its owner.

    Attributes:
        kind: of `KINDS`: what its owner does in an iteration. here: on the service's machine, which sees its processes.
        worst_s: of each of its phases, as its file says; they take at most that, times `overruns`.
        inits: its owner has a turn of `init` first. late_s: its owner comes so much later. keeps_gb: of each GPU, as it reports.
        fails: how often work on a phase raises an error, from 0 to 1. moves: its owner goes on elsewhere in the same process.
        ranks: Whether the work of its phases is done by processes of their own, in other sessions, as of torchrun under
            `rollmux exec`: they outlive an owner that is killed, until its next one ends them.
        comes_s: Time by which it is submitted later, with its owner, so that the journal may be rolled over before.
        entry: further keys of its job file.
        saves_every: Iterations between two checkpoints of its owner, or 0 if the owner continues where the service counts.
    """

    id: str
    kind: str
    iterations: int
    here: bool
    worst_s: float
    movable: bool
    user: str = USERS[0]
    overruns: float = 1.0
    inits: bool = False
    late_s: float = 0.0
    keeps_gb: float | None = None
    fails: float = 0.0
    moves: bool = False
    saves_every: int = 0
    ranks: bool = False
    comes_s: float = 0.0
    entry: dict[str, Any] = field(default_factory=dict)


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
        pairs: of nodes. policy, dispatch, grace_s: as of the service. quota: of nodes, of either user; 0: none.
        one_device: a node does both phases. hosts: nodes and owners are on two. file: the journal is in a file of SQLite.
        min_run_s, resume_s: as of the cluster; a job that is parked has had its place for so long, and then pauses for so long.
        hooked: The service has a webhook.
        rolls_at: New facts of a part with which the journal is rolled over although jobs are present; 0: not at all.
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
    policy: str = "rollmux"
    quota: int = 0
    one_device: bool = False
    hosts: bool = False
    min_run_s: float = 1800.0
    resume_s: float = 0.0
    hooked: bool = False
    rolls_at: int = 0

    @property
    def keeps_windows(self) -> bool:
        """Whether no job uses a node after the deadline of its drain: nothing else goes wrong, and each job can leave it."""
        if any(fault.kind != _WINDOW for fault in self.faults):
            return False
        leaving = (job.movable or job.entry.get("parkable", False) for job in self.jobs)
        return all(leaving) and not any({"nodes", "profile"} & job.entry.keys() for job in self.jobs)

    @property
    def spares_owners(self) -> bool:
        """Whether only the service and its disk go wrong, of which no owner ends if the service is back in time.

        Nodes that are lent to a job that is being measured are not kept by the next service.
        """
        kinds = {fault.kind for fault in self.faults}
        lent = any("profile" in job.entry for job in self.jobs)
        return not lent and kinds <= {*DISK, *BAD_MINUTES, "kill service", "terminate", "second service"}

    @property
    def parks(self) -> bool:
        """Whether its policy parks jobs."""
        return "park=true" in self.policy

    def text(self) -> str:
        """As JSON, in one line."""
        return json.dumps(asdict(self))

    @property
    def bounds_waits(self) -> bool:
        """Whether each wait for a permit ends within a period in which each job has its phases once: nobody waits for a place."""
        alone = any(job.late_s or job.comes_s or "profile" in job.entry or (job.keeps_gb or 0.0) > STATED_GB for job in self.jobs)
        return not (self.faults or self.quota or alone or self.parks) and self.dispatch != "shortest-first"

    @property
    def calm_s(self) -> float:
        """After this time nothing goes wrong that comes at a time."""
        timed = [fault for fault in self.faults if fault.kind in TIMED]
        return max((fault.at + (0.0 if fault.kind == "wall clock" else fault.seconds) for fault in timed), default=0.0)


TIMED = frozenset({*_OF_OWNERS, *_OF_SERVICE, *_OF_USERS, _WINDOW, *_OF_ACCOUNTS, *BAD_MINUTES} - {"kill service"})


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
    grace_s, drifts, watched = draw.choice([None, 5.0]), draw.random() < 0.3, draw.random() < 0.1
    policy, quota, one_device = draw.choice(_POLICIES), draw.choice([0, 0, 0, 2]), draw.random() < 0.1
    if one_device:
        jobs = tuple(_on_one_device(job) for job in jobs)
    hosts = draw.random() < 0.2
    world = Schedule(seed, jobs, pairs, dispatch, grace_s, file, faults, drifts, watched, policy, quota, one_device, hosts)
    world = _restless(draw, world) if draw.random() < 0.25 else world
    world = replace(world, faults=(*world.faults, _bad_minutes(draw))) if draw.random() < 0.1 else world
    world = _with_checkpoints(Random(f"checkpoints {seed}"), world)
    world = _with_parks(Random(f"parks {seed}"), world)
    world = _with_accounts(Random(f"accounts {seed}"), world)
    world = _with_windows(Random(f"windows {seed}"), world)
    world = replace(world, hooked=Random(f"webhook {seed}").random() < 0.2)
    world = _with_rollovers(Random(f"rollovers {seed}"), world)
    world = replace(world, rolls_at=Random(f"parts {seed}").choice([0, 0, 0, 60, 120]))
    return _with_ranks(Random(f"ranks {seed}"), world) if grace_s is None else world  # else all have ended by then


def _with_accounts(draw: Random, world: Schedule) -> Schedule:
    """Return a schedule in some of which quotas change while jobs run, and a calendar month begins."""
    acts = [Fault("quota", round(draw.uniform(0, _LAST_S), 3), draw.choice(["ann", "*"]), draw.choice([2.0, 9.0, 30.0]))]
    acts += [Fault("month", round(draw.uniform(0, _LAST_S), 3))] * draw.choice([0, 1])
    return replace(world, faults=(*world.faults, *acts)) if draw.random() < 0.2 else world


def _with_windows(draw: Random, world: Schedule) -> Schedule:
    """Return a schedule in some of which a node is drained by a deadline, which is announced."""
    if draw.random() < 0.9:
        return world
    node, seconds = f"{draw.choice(['rollout', 'training'])}-{draw.randrange(world.pairs)}", draw.choice([70.0, 90.0, 120.0])
    window = Fault(_WINDOW, round(draw.uniform(0, _LAST_S), 3), "training-0" if world.one_device else node, seconds)
    if draw.random() < 0.5:
        return replace(world, faults=(*world.faults, window))
    free = (_without(_without(job, "nodes"), "profile") for job in world.jobs)
    jobs = tuple(_leaving(draw, replace(job, iterations=job.iterations + 2)) for job in free)
    return replace(world, faults=(window,), jobs=jobs)


def _leaving(draw: Random, job: JobPlan) -> JobPlan:
    """The same, which leaves a drained node: for another one, or for the queue."""
    movable = draw.random() < 0.6
    return replace(job, movable=movable, entry=job.entry | ({} if movable else {"parkable": True}))


def _with_rollovers(draw: Random, world: Schedule) -> Schedule:
    """Return a schedule in some of which the last job comes after a while without jobs, in which the journal is rolled over."""
    if draw.random() < 0.95 or len(world.jobs) == 1:
        return world
    last = replace(world.jobs[-1], comes_s=draw.choice([450.0, 700.0]))
    faults = [
        Fault(draw.choice(DISK[2:]), draw.randrange(20, 60)),
        Fault("terminate", draw.uniform(300.0, 450.0)),
        Fault("month", 420.0),
    ]
    return replace(world, jobs=(*world.jobs[:-1], last), faults=(*world.faults, *draw.sample(faults, draw.randrange(3))))


def _with_ranks(draw: Random, world: Schedule) -> Schedule:
    """Return a schedule some of whose owners work by processes in other sessions."""
    return replace(world, jobs=tuple(replace(job, ranks=draw.random() < 0.4) for job in world.jobs))


def _with_parks(draw: Random, world: Schedule) -> Schedule:
    """Return a schedule some of whose jobs may be parked: they are longer, of different priorities, and compete for nodes."""
    if draw.random() < 0.65 or len(world.jobs) == 1:
        return world
    jobs = tuple(_parkable(draw, job) for job in world.jobs)
    pairs = draw.choice([1, 1, world.pairs]) if not world.hosts else world.pairs
    faults = tuple(fault for fault in world.faults if fault.kind != "drain" or not fault.target.endswith("-1") or pairs == 2)
    policy, min_run_s, resume_s = draw.choice(_PARKING), draw.choice([0.0, 0.0, 3.0, 10.0]), draw.choice([0.0, 0.0, 5.0])
    if "order=fair" in policy:  # users take turns every few seconds here: an owner that saves less often would never end
        jobs = tuple(replace(job, saves_every=0) for job in jobs)
    return replace(world, jobs=jobs, pairs=pairs, faults=faults, policy=policy, min_run_s=min_run_s, resume_s=resume_s)


def _parkable(draw: Random, job: JobPlan) -> JobPlan:
    entry = {key: value for key, value in job.entry.items() if key != "nodes" or draw.random() < 0.5}
    entry |= {"priority": draw.choice([0, 1, 2]), "parkable": draw.random() < 0.9, "arrival_s": draw.choice([0.0, 4.0, 9.0])}
    return replace(job, entry=entry, iterations=job.iterations + draw.choice([0, 2, 4]), user=draw.choice(USERS))


def _with_checkpoints(draw: Random, world: Schedule) -> Schedule:
    """Return a schedule some of whose owners have checkpoints of their own, which may be older than the service's count."""
    jobs = (replace(job, saves_every=draw.choice([0, 0, 1, 2, 3])) for job in world.jobs)
    return replace(world, jobs=tuple(jobs)) if draw.random() < 0.5 else world


def _bad_minutes(draw: Random) -> Fault:
    return Fault(draw.choice(BAD_MINUTES), round(draw.uniform(0, _LAST_S), 3), seconds=_BAD_S)


def _restless(draw: Random, world: Schedule) -> Schedule:
    """The same with more jobs that move, and more reasons for it."""
    jobs = tuple(
        replace(_without(job, "nodes"), movable=draw.random() < 0.8, keeps_gb=draw.choice([None, None, 3.0]), late_s=0.0)
        for job in world.jobs
    )
    drains = tuple(_drain(draw, 2, draw.choice([5.0, 10.0, 20.0])) for _ in range(draw.choice([1, 2, 3])))
    return replace(world, jobs=jobs, pairs=2, one_device=False, faults=world.faults + drains)


def _job(draw: Random, name: str) -> JobPlan:
    kind, iterations, here = draw.choice(KINDS), draw.choice([1, 2, 2, 3]), draw.random() < 0.6
    plain = JobPlan(name, kind, iterations, here, draw.choice([1.0, 2.0, 5.0]), draw.random() < 0.3)
    user = draw.choice(USERS)
    entry: dict[str, Any] = {"priority": draw.choice([0, 0, 0, 1])}
    if draw.random() < 0.1:
        entry["budget"] = draw.choice([{"hours": 0.003}, {"usd": 0.01}])
    if iterations > 1 and draw.random() < 0.15:
        entry["profile"] = {"iterations": draw.randrange(1, iterations)}
    elif draw.random() < 0.1:
        entry["nodes"] = {pool: [f"{pool}-0"] for pool in ("rollout", "training")}
    keeps_gb, late_s = draw.choice([None, None, None, 1.0, 3.0]), draw.choice([0.0] * 19 + [310.0])
    return replace(
        plain,
        user=user,
        overruns=draw.choice([1.0] * 5 + [1.5]),
        inits=draw.random() < 0.2,
        late_s=late_s,
        keeps_gb=keeps_gb,
        fails=draw.choice([0.0] * 5 + [0.1]),
        moves=kind != "asynchronous" and draw.random() < 0.5,
        entry=entry,
    )


def _on_one_device(job: JobPlan) -> JobPlan:
    named = {"nodes": {"training": job.entry["nodes"]["training"]}} if "nodes" in job.entry else {}
    return replace(job, kind="plain" if job.kind == "asynchronous" else job.kind, entry=job.entry | named)


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
        if draw.choice(_OF_USERS) == "drain":
            return _drain(draw, pairs, 10.0)
        return Fault("cancel", round(draw.uniform(0, _LAST_S), 3), draw.choice(ids))
    kind = draw.choice(_OF_SERVICE)
    if kind == "kill service":
        return Fault(kind, draw.randrange(1, draw.choice([50, 500, 3000])), str(draw.choice([1, 1, 2, 3])))
    lengths_s = {"pause service": (1.5, 12.0, 33.0, 50.0), "machine sleeps": (5.0, 60.0), "wall clock": (-3600.0, 3600.0)}
    return Fault(kind, round(draw.uniform(0, _LAST_S), 3), "", draw.choice(lengths_s.get(kind, (0.0,))))


def _without(job: JobPlan, gone: str) -> JobPlan:
    """The same without a key of its entry."""
    return replace(job, entry={key: value for key, value in job.entry.items() if key != gone})


def _drain(draw: Random, pairs: int, seconds: float) -> Fault:
    node = f"{draw.choice(['rollout', 'training'])}-{draw.randrange(pairs)}"
    return Fault("drain", round(draw.uniform(0, _LAST_S), 3), node, seconds)


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
        for simpler in _simpler(job):
            yield replace(schedule, jobs=(*schedule.jobs[:place], simpler, *schedule.jobs[place + 1 :]))


def _simpler(job: JobPlan) -> Iterator[JobPlan]:
    if job.iterations > job.entry.get("profile", {}).get("iterations", 0) + 1:
        yield replace(job, iterations=job.iterations - 1)
    yield from (_without(job, key) for key in job.entry)
    for name in ("user", "overruns", "inits", "late_s", "keeps_gb", "fails", "moves", "saves_every", "ranks", "comes_s"):
        if getattr(job, name) != getattr(JobPlan, name):
            yield replace(job, **{name: getattr(JobPlan, name)})
