"""What happens between the service and jobs that run elsewhere, a fact each; they are among those of `runtime.journal.facts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.scheduler.view import HoldName


class OwnProcess(NamedTuple):
    """A process of an owner.

    Attributes:
        started: when the machine started it, in clock ticks since it was booted; 0 where it cannot be seen from here.
    """

    pid: int
    started: int


@dataclass(frozen=True)
class Attached:
    """An owner has a lease of its job's place; again with the same lease, its processes are known anew.

    Attributes:
        lease: its id. host: where the owner says that it is. boot: the machine and its uptime, as `runtime.machine.boot_id`,
            where that is this one; else empty. processes: those that it has named. nodes: names of the nodes of the place.
    """

    at_s: float
    job_id: str
    lease: str
    host: str
    boot: str
    processes: tuple[OwnProcess, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Confined:
    """A job may only be placed on some nodes: its owner names them, or is on their host.

    Attributes:
        nodes: their names.
    """

    at_s: float
    job_id: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Exceeded:
    """A job keeps more memory of its nodes' GPUs than it has stated: from now on it is alone in its group.

    Attributes:
        phase: of which it is. device_gb, stated_gb: what it keeps, and what it has stated, GB.
    """

    at_s: float
    job_id: str
    phase: HoldName
    device_gb: float
    stated_gb: float

    @property
    def why(self) -> str:
        """In words; one line."""
        keeps = f"keeps {self.device_gb:.2f} GB of its {self.phase} nodes' GPUs"
        return f"{keeps} and has stated {self.stated_gb:.2f} GB: alone in its group"


@dataclass(frozen=True)
class Granted:
    """An owner is being told that it may run a phase.

    Attributes:
        phase, iteration: which. extra: a rollout that counts no iteration.
        asked_s, start_s, switched: as of `runtime.journal.facts.PhaseSlice`, which says later that it is over.
    """

    at_s: float
    job_id: str
    lease: str
    phase: HoldName
    iteration: int
    extra: bool
    asked_s: float
    start_s: float
    switched: bool


@dataclass(frozen=True)
class LeaseEnded:
    """A lease is over.

    Attributes:
        done: so is the job, as its owner says. why: one line.
    """

    at_s: float
    job_id: str
    lease: str
    done: bool
    why: str


@dataclass(frozen=True)
class Suspected:
    """Nodes that a lease held when it was lost: nobody gets them until it is known that its owner does not use them.

    Attributes:
        nodes: their names.
    """

    at_s: float
    job_id: str
    lease: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Freed:
    """Nodes that a lost lease held are not used by its owner any more.

    Attributes:
        nodes: their names. why: how that is known; one line.
    """

    at_s: float
    job_id: str
    lease: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Continued:
    """A job goes on with what it had in hand: its lease, when the coordinator has been replaced, or samples of its checkpoint.

    Attributes:
        phase, runs, sampled: as of `rollmux_env.scheduler.facts.Continued`.
    """

    at_s: float
    job_id: str
    phase: HoldName
    runs: bool
    sampled: int | None = None
