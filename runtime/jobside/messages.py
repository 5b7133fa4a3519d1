"""Messages between the coordinator and the controllers of jobs."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.journal.facts import PhaseMeasures
from runtime.machine import Node, Pool
from runtime.residency.choice import OffloadLevels

Nodes = dict[Pool, tuple[Node, ...]]
MOST_WARNINGS = 20
"""Number of different warnings that a job may print."""


@dataclass(frozen=True)
class IterationOrder:
    """An order to a controller: the job's next iteration.

    Attributes:
        iteration: Number of the iteration, from 0.
        profile: Whether it is the worst-case iteration of the profiler.
        nodes: Nodes of the job's placement, by the pool of the phase. A co-located job has training nodes under both.
        folder: Folder of the job's checkpoints.
        checkpoint: Checkpoint from which a job that has to be made continues, or None.
        keep: Whether the job must only write a checkpoint of its present state, because it leaves its place.
    """

    iteration: int
    profile: bool
    nodes: Nodes
    folder: str
    checkpoint: str | None = None
    keep: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        iterations: Number of completed iterations.
        folder: Folder of the checkpoint.
        seconds: Seconds to write it.
        gb: Size in GB.
    """

    iterations: int
    folder: str
    seconds: float = 0.0
    gb: float = 0.0


@dataclass(frozen=True)
class IterationResult:
    """The result of an order.

    Attributes:
        metrics: Metrics that the job reported.
        movable: Whether the job could continue in another placement; after a profile, whether it ever could.
        has_checkpoints: Whether it has checkpoints.
        checkpoint: Checkpoint of the very last iteration, which is complete only when that is written, or None.
        is_state_kept: Whether, after a profile, the job's state stays in its processes for its first iteration.
    """

    metrics: dict[str, float]
    movable: bool = False
    has_checkpoints: bool = False
    checkpoint: Checkpoint | None = None
    is_state_kept: bool = False


@dataclass(frozen=True)
class PhaseReport(PhaseMeasures):
    """The report of a phase that had a permit. Times are those of the coordinator's clock.

    Attributes:
        phase: Name of the phase: `init`, `rollout` or `training`.
        keeps_permit: Whether the next phase uses the same permit.
        begun_s: Time at which the permit reached the job.
        run_s: Time at which the method began.
        done_s: Time at which the method ended.
        warm_s: Seconds of loading and offloading in a warm switch, in a profile.
        load_wait_s: Seconds without a core before `run_s`, in a profile; `core_wait_s` is then from `run_s` to `done_s`.
        waits: Ways in which the state may wait between phases, or None if they were not measured.
        own_s: Seconds of the job's own work between its rollout and its request for this training, in a profile.
        taken_gb: Memory of each GPU that is not free after the phase, in GB; 0 without GPUs.
    """

    phase: str
    keeps_permit: bool
    begun_s: float
    run_s: float
    done_s: float
    warm_s: float = 0.0
    load_wait_s: float = 0.0
    waits: OffloadLevels | None = None
    own_s: float = 0.0
    taken_gb: float = 0.0


@dataclass(frozen=True)
class JobEnd:
    """The end of a controller.

    Attributes:
        outcome: `done`, `stopped`, `failed` (by the job's code) or `died` (one of its processes).
        where: Place of a failure, as in `runtime.journal.facts.JobFailed`.
        problem: Line about a failure; for a job that is done, a line for the user or "".
        details: Traceback of a failure.
        out_of_memory: Whether the job failed or died because a GPU had too little memory.
    """

    outcome: str
    where: str = ""
    problem: str = ""
    details: str = ""
    out_of_memory: bool = False


class Stopped(Exception):
    """Interruption of a job at a phase boundary, where its processes must end; the text is the reason, for its log."""


class CallOutOfOrder(Exception):
    """Error: the job asks for a phase that cannot be the next one of an iteration; one line."""
