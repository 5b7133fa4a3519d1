"""Part 5: the same round robin phase by phase, as a cluster runs it.

Part 2 computes when rounds end, but nothing there tells a phase to start. Here every phase is an event. `RoundRobin` is the
**dispatcher** of a group: it is told that a job is ready or has finished, and returns the phases that may start now. It has no
clock, so it can be driven by a simulator or by a real cluster: `rollmux run` drives such a dispatcher with messages of real
processes. `simulate` is the simulator: it keeps a heap of future ends, and its clock jumps from one to the next.

After enough rounds, a round takes one period on average: the exact period of part 2, which the dispatcher does not know.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from examples.mini.group import TRAINING, Group


class Slice(NamedTuple):
    """A phase that ran, in round number `round` of its job."""

    job: str
    kind: str  # rollout or training
    round: int
    nodes: tuple[int, ...]
    start_s: float
    end_s: float


class RoundRobin:
    """Dispatcher of a group. A phase may start if its job is ready and has the turn on all of the phase's nodes.

    Members are numbered in order of admission. A turn ends with its phase, so that no node ever runs two.
    """

    def __init__(self, group: Group) -> None:
        self.nodes = {
            **{(k, "rollout"): member.nodes for k, member in enumerate(group.members)},
            **{(k, "training"): (TRAINING,) for k in range(len(group.members))},
        }
        self.turns: dict[int, deque[int]] = {}  # by node: its members, beginning with the one that has the turn
        for (k, _), nodes in self.nodes.items():
            for node in nodes:
                self.turns.setdefault(node, deque()).append(k)
        self.waiting: dict[int, str] = {}  # by member: the phase for which it is ready

    def ready(self, member: int, kind: str) -> None:
        """Record that a member is ready for its next phase."""
        self.waiting[member] = kind

    def finished(self, member: int, kind: str) -> None:
        """Record that a phase is over, and give the turn on its nodes to the next member."""
        for node in self.nodes[member, kind]:
            self.turns[node].rotate(-1)

    def grants(self) -> list[tuple[int, str]]:
        """Return the phases that start now, and remove them from the waiting ones."""
        starting = [(k, kind) for k, kind in self.waiting.items() if all(self.turns[node][0] == k for node in self.nodes[k, kind])]
        for member, _ in starting:
            del self.waiting[member]
        return starting


def simulate(group: Group) -> Iterator[Slice]:
    """Yield the phases of a group in order of their starts, without end. Every phase takes its worst case."""
    dispatcher, rounds = RoundRobin(group), [0] * len(group.members)
    events = [(0.0, k, "sync") for k in range(len(group.members))]  # (end, member, phase): a rollout follows a sync
    while True:
        now_s = events[0][0]
        while events and events[0][0] == now_s:
            _, member, ended = heapq.heappop(events)
            if ended != "sync":
                dispatcher.finished(member, ended)
            if ended == "training":
                heapq.heappush(events, (now_s + group.jobs[member].sync_s, member, "sync"))
            else:
                dispatcher.ready(member, "rollout" if ended == "sync" else "training")
        for member, kind in dispatcher.grants():
            job = group.jobs[member]
            end_s = now_s + (job.rollout.worst_case_s if kind == "rollout" else group.training_s(job))
            heapq.heappush(events, (end_s, member, kind))
            yield Slice(job.id, kind, rounds[member], dispatcher.nodes[member, kind], now_s, end_s)
            rounds[member] += kind == "training"


def measured_period_s(group: Group, settle: int = 200, rounds: int = 240) -> float:
    """Return the mean seconds between the first member's trainings, over `rounds` rounds after `settle` earlier ones."""
    first = group.jobs[0].id
    ends = (part.end_s for part in simulate(group) if part.job == first and part.kind == "training")
    times = [next(ends) for _ in range(settle + rounds + 1)]
    return (times[-1] - times[settle]) / rounds


def gantt(group: Group, from_round: int = 10, rounds: int = 2, width: int = 96) -> str:
    """Return a text chart of rounds: a line per node, a letter per job, a dot per idle time (a *dependency bubble*)."""
    parts = list(islice(simulate(group), 2 * len(group.members) * (from_round + rounds + 2)))
    start_s, seconds = min(part.start_s for part in parts if part.round == from_round), rounds * group.period_s
    letters = {job.id: chr(ord("a") + k) for k, job in enumerate(group.jobs)}
    lines = {node: ["."] * width for node in [*group.rollout_nodes, TRAINING]}
    for part in parts:
        first, last = (min(max(round((at_s - start_s) / seconds * width), 0), width) for at_s in (part.start_s, part.end_s))
        for node in part.nodes:
            lines[node][first:last] = letters[part.job] * (last - first)
    names = {node: "training" if node == TRAINING else f"rollout {node}" for node in lines}
    who = ", ".join(f"{letter} = {job_id}" for job_id, letter in letters.items())
    return "\n".join([*(f"{names[node]:>10} |{''.join(line)}|" for node, line in lines.items()), f"{'':11} {who}"])
