"""Drives a dispatcher with scripted durations, joins and leaves, and records which phase ran where and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from hypothesis import strategies as st

from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.view import DispatchPolicy, GroupView, MemberView, PhaseName, WaitingPhase

POOL = "training pool"


@dataclass(frozen=True)
class Player:
    """A job: its pins, when it joins, when it wants to leave (None: never), and whether it then goes in the middle of a phase."""

    name: str
    pins: tuple[int, ...]
    duration: Callable[[str, int], float]  # (phase, iteration) -> seconds
    joins: float = 0.0
    leaves: float | None = None
    abruptly: bool = False
    sync: float = 0.0


class Ran(NamedTuple):
    job: str
    phase: str
    iteration: int
    nodes: tuple[object, ...]
    start: float
    end: float


@dataclass
class Watched:
    """A dispatch policy that notes by how many each chosen phase was overtaken while it waited."""

    policy: DispatchPolicy
    overtaken: list[int] = field(default_factory=list)

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        request = self.policy.choose(group)
        if isinstance(request, WaitingPhase):
            self.overtaken.append(request.overtaken)
        return request


def drive(policy: DispatchPolicy, players: Sequence[Player], until: float) -> list[Ran]:
    """Play until a time. A permit that nobody asked for, or for a node in use, fails an assertion."""
    dispatcher = Dispatcher(policy)
    heap: list[tuple[float, int, str, str]] = []
    count = 0
    by_name = {player.name: player for player in players}
    iteration = dict.fromkeys(by_name, 0)
    present: set[str] = set()
    asked: set[tuple[str, str]] = set()
    running: dict[str, Ran] = {}
    ran: list[Ran] = []

    def push(at: float, what: str, name: str) -> None:
        nonlocal count
        count += 1
        heapq.heappush(heap, (at, count, what, name))

    for player in players:
        push(player.joins, "joins", player.name)
        if player.leaves is not None:
            push(player.leaves, "leaves", player.name)
    while heap and heap[0][0] <= until:
        now = heap[0][0]
        while heap and heap[0][0] == now:
            _, _, what, name = heapq.heappop(heap)
            player = by_name[name]
            if what == "joins":
                dispatcher.joined(name, player.pins, player.duration("rollout", 0), player.duration("training", 0))
                present.add(name)
                what = "round"
            if what == "leaves" and player.abruptly:
                if name in running:
                    ran.append(running.pop(name)._replace(end=now))
                asked = {entry for entry in asked if entry[0] != name}
                present.discard(name)
                dispatcher.gone(name)
            elif what == "leaves":
                if dispatcher.leaving(name):
                    present.discard(name)
                    asked.discard((name, "rollout"))
            elif name not in present:
                continue
            elif what in ("rollout", "training"):
                phase = running.pop(name)
                ran.append(phase)
                dispatcher.finished(name, cast(PhaseName, what), phase.end - phase.start)
                if what == "rollout":
                    dispatcher.ready(name, "training")
                    asked.add((name, "training"))
                else:
                    iteration[name] += 1
                    push(now + player.sync, "round", name)
            elif dispatcher.ready(name, "rollout"):
                asked.add((name, "rollout"))
            else:
                present.discard(name)
        for job_id, granted in dispatcher.permits():
            asked.remove((job_id, granted))
            player = by_name[job_id]
            nodes = player.pins if granted == "rollout" else (POOL,)
            in_use = {node for phase in running.values() for node in phase.nodes}
            assert not in_use & set(nodes)
            end = now + player.duration(granted, iteration[job_id])
            running[job_id] = Ran(job_id, granted, iteration[job_id], nodes, now, end)
            push(end, granted, job_id)
    return ran


def taking(seconds: Sequence[float]) -> Callable[[str, int], float]:
    """Durations of phases, one after the other and again."""
    return lambda phase, i: seconds[(2 * i + (phase == "training")) % len(seconds)]


@st.composite
def lively_groups(draw: st.DrawFn) -> list[Player]:
    """Up to five jobs on up to four rollout nodes, with random durations, that join and leave at random times."""
    players = []
    for k in range(draw(st.integers(1, 5))):
        pins = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(sorted))
        seconds = draw(st.lists(st.integers(1, 9), min_size=4, max_size=9))
        joins = draw(st.sampled_from([0, 0, 3, 17, 40]))
        stay = draw(st.sampled_from([None, None, 1, 30, 71]))
        players.append(
            Player(
                f"j{k}",
                tuple(pins),
                taking(seconds),
                joins,
                None if stay is None else joins + stay,
                draw(st.booleans()),
                draw(st.sampled_from([0, 0, 4])),
            )
        )
    return players
