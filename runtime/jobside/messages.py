"""What the coordinator and the controllers of jobs say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.journal.facts import PhaseMeasures
from runtime.machine import Node, Pool
from runtime.residency.choice import Waits

Nodes = dict[Pool, tuple[Node, ...]]
MOST_WARNINGS = 20
"""Different texts that a job may tell the user."""


@dataclass(frozen=True)
class Order:
    """What a job is to do next: one iteration.

    Attributes:
        iteration: its number, from 0. profile: it is the worst-case pass of the profiler.
        nodes: of the job's placement, by pool of the phase (a co-located job rolls out on training nodes).
        folder: of the job's checkpoints. checkpoint: the one that a job which has to be made goes on from, or None.
        keep: no iteration, but a checkpoint of what it is now: it has to leave its place.
    """

    iteration: int
    profile: bool
    nodes: Nodes
    folder: str
    checkpoint: str | None = None
    keep: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """What a job is after some iterations is on the disk.

    Attributes:
        iterations: how many it had done. folder: where it is. seconds, gb: what writing it took.
    """

    iterations: int
    folder: str
    seconds: float = 0.0
    gb: float = 0.0


@dataclass(frozen=True)
class Done:
    """What became of an order.

    Attributes:
        metrics: what the job reported. movable: it could go on from here in another placement; of a profile, it ever could.
        keeps: it has checkpoints. checkpoint: of the last iteration of all, which is only done when that is written.
        alive: of a profile, the job's state stays in its processes, for its first iteration.
    """

    metrics: dict[str, float]
    movable: bool = False
    keeps: bool = False
    checkpoint: Checkpoint | None = None
    alive: bool = False


@dataclass(frozen=True)
class Report(PhaseMeasures):
    """What became of a phase that had its permit.

    Attributes:
        phase: `init`, `rollout` or `training`. keeps: the job keeps the permit for what follows.
        begun_s: the permit had reached the job. run_s: the method began. done_s: it was over. All by the coordinator's clock.
        core_wait_s: as of `PhaseMeasures`; of a profile, from `run_s` to `done_s`. load_wait_s: of a profile, likewise before
            `run_s`. warm_s: of a profile, seconds of loading and offloading in a warm switch. waits: how it may wait. own_s:
            seconds of the job's own between its rollout and its wish for this training.
        taken_gb: Memory of each GPU that is not free when the phase is over, GB; 0 where there is none.
    """

    phase: str
    keeps: bool
    begun_s: float
    run_s: float
    done_s: float
    warm_s: float = 0.0
    load_wait_s: float = 0.0
    waits: Waits | None = None
    own_s: float = 0.0
    taken_gb: float = 0.0


@dataclass(frozen=True)
class End:
    """Why a controller has ended.

    Attributes:
        outcome: `done`; `stopped`; `failed`, by its own code, or `died`, with a process of its; then `where` and `problem` say more
            (see `runtime.journal.facts.Failed`). Of one that is done `problem` may be a line for the user.
        out_of_memory: Whether it has failed or died because a GPU had too little memory.
    """

    outcome: str
    where: str = ""
    problem: str = ""
    details: str = ""
    out_of_memory: bool = False


class Stopped(Exception):
    """The job's processes are to end at this phase boundary; the text says why, for its log."""


class OutOfOrder(Exception):
    """The job asks for a phase that cannot be the next one of an iteration; one line."""
