"""What the coordinator knows of a job, in records that each have one writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollmux_env.scheduler.view import HoldName
from runtime.execution.messages import End, Nodes, Order
from runtime.execution.profiles import Measured
from runtime.machine import Node, Pool
from runtime.residency.choice import Waits


class Asked(NamedTuple):
    """A permit that a job wants.

    Attributes:
        at_s: since when. iteration: number of that which the phase belongs to; rollouts may be ahead of trainings.
    """

    at_s: float
    iteration: int


@dataclass
class Hold:
    """A permit in a job's hands.

    Attributes:
        pool: the phase, as its nodes' pool; `sync` where it is for all nodes of the job.
        iteration: number of that which the phase belongs to; rollouts may be ahead of trainings.
        since_s: when the job could begin: `start_s`, or when others had made room for it.
    """

    pool: HoldName
    asked_s: float
    start_s: float
    switched: bool
    paired: bool  # another one was given at the same time
    iteration: int = 0
    since_s: float = 0.0


@dataclass
class Place:
    """Where a job is; written when the scheduler gives it a place, or takes it back.

    Attributes:
        group: the number of its group, or `LEASE`; None where it has no place. numbers, nodes: of its place, by phase. shape: in
            which it runs there.
        moving: it is to go to another place. leaving: before it leaves this one, it writes a checkpoint.
        parks: of an attached job: it asks for no place until its owner comes.
    """

    group: int | None = None
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    shape: int = 0
    moving: bool = False
    leaving: bool = False
    parks: bool = False


@dataclass
class Permits:
    """What a job asks for and has; written when its owner says something, and when the scheduler grants it.

    Attributes:
        holds: by phase: one, or where rollouts are ahead one a side. asks: those that it has asked for and not had.
        waits: by phase, what its owner waits for. A permit that names pools is none: the job is first to leave what it has on their
            nodes.
        pauses: its rollouts wait with what comes next, since it is to leave its place.
        since_s: it has had no need to wait since; None while it waits. began_s: when the rollouts of iterations that are not over
            were ready, by number. follows_s: when the iteration before the one in hand was over, or it got its place since.
        interrupted: the iteration in hand has waited for room on a disk. busy_s: node-seconds of its phases, by pool.
    """

    holds: dict[HoldName, Hold] = field(default_factory=dict)
    asks: dict[HoldName, Asked] = field(default_factory=dict)
    waits: dict[HoldName, asyncio.Future[tuple[Pool, ...]]] = field(default_factory=dict)
    pauses: bool = False
    since_s: float | None = None
    began_s: dict[int, float] = field(default_factory=dict)
    follows_s: float = 0.0
    interrupted: bool = False
    busy_s: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "training": 0.0})


@dataclass
class Tail:
    """How far a job's rollout is, and which of its nodes it uses; written when its processes say so, and by the dispatcher.

    Attributes:
        parts: what its rollout nodes are cut into, of a job that can do with a part of them. uses: numbers of those that its
            rollout is to use; knows: of those that it knows of. past_threshold: its rollout has reached that of migration.
        wake: finished responses at which its rollout stops, to ask its rollout policy; None: at none.
        progress: finished responses, all, and tokens, by who counts.
    """

    parts: tuple[Node, ...] = ()
    uses: tuple[int, ...] = ()
    knows: tuple[int, ...] = ()
    past_threshold: bool = False
    wake: int | None = None
    progress: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def is_woken(self) -> bool:
        """Whether as many responses have finished as the rollout stops for."""
        return self.wake is not None and how_far(self.progress)[0] >= self.wake


@dataclass
class ProfilePass:
    """How a job is being measured; written by the profiler.

    Attributes:
        passes: that it still has to make. over: they are over, or it has ended. measurements, sync_s, own_s, movable: what they
            have shown. without_core: phases that had no core when they were last measured; repeats: that has been measured once
            more. loads_first: no engine like its own has been loaded here before.
        asks: of one whose first iterations are measured: it has asked for nodes. longest_s: of its phases then, by name.
    """

    passes: int = 0
    over: asyncio.Future[None] | None = None
    measurements: dict[str, Measured] = field(default_factory=dict)
    sync_s: float = 0.0
    own_s: float = 0.0
    movable: bool = True
    without_core: set[Pool] = field(default_factory=set)
    repeats: bool = False
    loads_first: bool = False
    asks: bool = False
    longest_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Saved:
    """The checkpoints of a job.

    Attributes:
        last: the folder of the last one. recorded: iterations of those that the journal knows. seconds: that writing the last one
            took. full: the next one finds no room; what the system says.
    """

    last: str | None = None
    recorded: set[int] = field(default_factory=set)
    seconds: float = 0.0
    full: str | None = None


@dataclass
class Ending:
    """Why and how a job's processes end; written by the lifecycle.

    Attributes:
        why: they are being ended; None: they are not. again: the job is made anew then. cleared: they have ended.
        resting: they are ending, since the job waits for a place. over_budget: it ends when its checkpoint is written.
        deaths: since it had done as many iterations. restarted: why it was made anew.
    """

    why: End | None = None
    again: bool = False
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    resting: bool = False
    over_budget: bool = False
    deaths: int = 0
    restarted: str = ""

    @property
    def reason(self) -> str:
        """Why they end, in words."""
        return self.why.problem or self.why.outcome if self.why else "it is over"


@dataclass
class Actors:
    """The processes of a job; written by who starts them, and as they come.

    Attributes:
        controller, workers: what is started for the job; None, and none, while nothing is. has_come: the controller has asked for
            an order. alive: they have the job's state, on its nodes, since its profile.
        order: that the controller waits for. warnings: that they have told the user.
    """

    controller: Any = None
    workers: list[Any] = field(default_factory=list)
    has_come: bool = False
    alive: bool = False
    order: asyncio.Future[Order | None] | None = None
    warnings: set[str] = field(default_factory=set)


@dataclass
class Residency:
    """What a job keeps on its nodes between phases.

    Attributes:
        waits: how its state may wait, by pool. to_leave: pools on whose nodes its state is no longer to stay.
        exceeds: it keeps more than it has stated; how much.
    """

    waits: dict[Pool, Waits] = field(default_factory=dict)
    to_leave: set[Pool] = field(default_factory=set)
    exceeds: str = ""


def how_far(progress: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """(finished, all, tokens) of a phase, from what each of its processes says."""
    counts = progress.values()
    return (
        sum(done for done, _, _ in counts),
        max((total for _, total, _ in counts), default=0),
        sum(tokens for _, _, tokens in counts),
    )


class Bell:
    """Wakes all who wait. Who has been woken looks at what it waits for, and may wait again."""

    def __init__(self) -> None:
        self._rings = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it rings, or for so long, seconds; None: without end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rings.wait(), None if timeout_s is None else max(0.0, timeout_s))

    def ring(self) -> None:
        """Something has changed."""
        self._rings.set()
        self._rings = asyncio.Event()
