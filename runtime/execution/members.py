"""What the coordinator knows of a run and of its jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rollmux_env.scenario import Cluster, Job
from rollmux_env.scheduler.dispatcher import Dispatcher
from runtime.execution.messages import Nodes, Order
from runtime.execution.profiles import Measured
from runtime.facts import Node, Pool
from runtime.jobs.spec import JobSpec

PROFILE = -1  # in place of an iteration's number


@dataclass(frozen=True)
class Patience:
    """How long a job may be silent before it counts as dead.

    Attributes:
        times: a phase may take so many times its worst case with a cold start, and what lies between phases so many times a whole
            iteration. least_s: but no job is given up before so many seconds. profile_s: of a phase that nobody knows yet.
    """

    times: float = 10.0
    least_s: float = 300.0
    profile_s: float = 3600.0


@dataclass(frozen=True)
class RunPlan:
    """What a run is asked to do.

    Attributes:
        specs: the jobs. cluster: pools, prices and limits that the policy sees. nodes: all nodes.
        policy, dispatch: by name. seed: of policies that take one.
        folder: where the journal and checkpoints go.
        cached: profiles that were measured before may be used.
        only_profile: stop when all jobs are profiled.
        bounds: measure what taking turns could gain, with the first two jobs that arrive together.
        resume: the folder holds a run, which goes on.
        patience: with jobs that hang.
    """

    specs: tuple[JobSpec, ...]
    cluster: Cluster
    nodes: tuple[Node, ...]
    policy: str
    dispatch: str
    seed: int
    folder: str
    cached: bool = True
    only_profile: bool = False
    bounds: bool = False
    resume: bool = False
    patience: Patience = Patience()


class Gang:
    """The members of a group, or jobs that are being profiled: those who share a dispatcher."""

    def __init__(self, number: int, dispatcher: Dispatcher) -> None:
        self.number = number
        self.dispatcher = dispatcher


@dataclass
class Hold:
    """A permit in a job's hands."""

    pool: Pool
    asked_s: float
    start_s: float
    switched: bool
    paired: bool  # another one was given at the same time


@dataclass(eq=False)
class Runner:
    """A job, as the coordinator knows it."""

    spec: JobSpec
    controller: Any = None
    gang: Gang | None = None
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    iteration: int = 0  # the one in hand, or the next
    begins: int = 0  # the one that its place begins with
    checkpoint: str | None = None  # the last one
    keeping_s: float = 0.0  # how long writing it took
    done: int = 0  # the most iterations that it ever had done
    deaths: int = 0  # since it had done as many
    restarted: str = ""  # why it is made anew
    since_s: float | None = None  # it has had no need to wait since; None while it waits
    began_s: float | None = None  # when its rollout was ready
    job: Job | None = None  # as the policy sees it; None until it is profiled
    passes: int = 0  # of the profiler, that it still has to make
    passed: asyncio.Future[None] | None = None  # they are over, or it has ended
    next: asyncio.Future[Order | None] | None = None  # what it waits to be told between iterations
    wanted: asyncio.Future[None] | None = None  # the permit that it waits for
    asked_s: float = 0.0
    hold: Hold | None = None
    parts: tuple[Node, ...] = ()  # what its rollout nodes are cut into, of a job that can do with a part of them
    past_threshold: bool = False  # the rollout in hand has reached the threshold of migration
    stirred: asyncio.Event = field(default_factory=asyncio.Event)  # its rollout is to use other parts, or is over
    moves_to: Gang | None = None
    measured: dict[str, Measured] = field(default_factory=dict)
    sync_s: float = 0.0
    movable: bool = True  # as its profile said
    busy_s: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "training": 0.0})
    workers: list[Any] = field(default_factory=list)
    progress: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # of the phase, by who counts
    gone: bool = False
