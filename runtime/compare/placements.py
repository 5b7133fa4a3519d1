"""A placement policy that repeats the placements of a run: the same groups, nodes, moves and parks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Arrived, Event, Parked, Placement, Ticked
from rollmux_env.cluster.plan import Move, Park, Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.scheduler.order import FirstCome, QueueRules
from runtime.journal.record import RunRecord
from runtime.placement_spans import PlacementSpan

_TICKS = 20  # ticks in the shortest iteration of a job that moves
_MOST_TICKS = 2000  # ticks in a run


class Relocation(NamedTuple):
    """A move of a job, or a park and the next place.

    Attributes:
        iterations: Number of iterations that the job has completed when it leaves its place.
        span: Placement span of the job in its new place.
    """

    iterations: int
    span: PlacementSpan


class RunPlacements(NamedTuple):
    """The placements of a run.

    Attributes:
        first: First span of each job.
        moves: Moves and parks of each job that moved or was parked, in order.
        admitted: Jobs in the order in which they got places; one that was parked is there again.
    """

    first: dict[str, PlacementSpan]
    moves: dict[str, list[Relocation]]
    admitted: list[str]


def places_of(record: RunRecord, spans: Mapping[str, Sequence[PlacementSpan]]) -> RunPlacements:
    """Return the placements, moves and parks of a run.

    Args:
        record: Record of the run.
        spans: Placement spans of each job, in order.

    Raises:
        InputError: If a job was placed twice without having been parked; one line.
    """
    admitted = [event.job_id for event in record.log if isinstance(event, Admitted)]
    parked = [event.job_id for event in record.log if isinstance(event, Parked)]
    if twice := next((job_id for job_id in spans if admitted.count(job_id) > 1 + parked.count(job_id)), None):
        raise InputError(f"compare: job {twice} was placed twice, after it had left its nodes and waited for others")
    moves: dict[str, list[Relocation]] = {}
    for job_id, own in spans.items():
        for span in own[1:]:
            if done := sum(one.end_s <= span.from_s for one in record.iterations_of(job_id)):
                moves.setdefault(job_id, []).append(Relocation(done, span))
    return RunPlacements({job_id: own[0] for job_id, own in spans.items()}, moves, admitted)


class RecordedPlacements:
    """Policy that repeats the recorded placements.

    A job goes to the group whose members it had. If that group has ended earlier than in the run, the job begins a new group of the
    same size. A job waits if too few nodes are free because jobs before it take longer than in the run. A parked job also waits
    until all jobs that got their places before it in the run have them.

    Args:
        places: Placements and moves of the run.
        iteration_s: Mean seconds of an iteration of each job that moves.
        span_s: Seconds of the whole run.
    """

    keeps_slo = False

    def __init__(self, places: RunPlacements, iteration_s: Mapping[str, float], span_s: float) -> None:
        self._first = places.first
        self._moves: dict[str, Sequence[Relocation]] = dict(places.moves)
        self._groups: dict[int, int] = {}  # group's number in the replay, by its number in the run
        self._nodes: dict[tuple[int, int], int] = {}  # node's number in the replay, by its group and number in the run
        self._to_admit = [*places.admitted]
        if any(move.span.parked for moves in places.moves.values() for move in moves):
            self.queue_rules = QueueRules(FirstCome(), "fcfs", backfill=True)  # jobs for which another one was parked come after it
        self._placed: tuple[str, PlacementSpan] | None = None  # last placement, whose numbers in the replay are not known yet
        shortest_s = min((iteration_s[job_id] for job_id in places.moves), default=None)
        self.wakes_every_s = None if shortest_s is None else max(shortest_s / _TICKS, span_s / _MOST_TICKS)

    def decide(self, state: State, event: Event) -> Plan:
        """Return the recorded placement of a job that arrives, or the next move that is due."""
        self._learn_numbers(state)
        if isinstance(event, Arrived):
            return self._place(state, event.job.id)
        return self._move(state) if isinstance(event, Ticked) else ()

    def _place(self, state: State, job_id: str) -> Plan:
        """Return the recorded placement of a waiting job, its first one or the next one after a park."""
        again = job_id in state.stays.parked
        span = self._moves[job_id][0].span if again else self._first.get(job_id)
        placement = None if span is None else self._placement(state, job_id, span)
        if span is None or placement is None or (again and self._to_admit[0] != job_id):
            return (Wait(job_id),)
        if again:
            self._moves[job_id] = self._moves[job_id][1:]
        self._to_admit.remove(job_id)
        self._placed = (job_id, span)
        return (Place(job_id, placement),)

    def _move(self, state: State) -> Plan:
        """Return one of the moves and parks that are due; the others follow at the next ticks."""
        for job_id, moves in self._moves.items():
            if not moves or not state.is_running(job_id) or state.is_paused(job_id):
                continue
            due, span = moves[0]
            if span.parked:
                if state.iterations_done(job_id) >= due - 1:  # it leaves at the end of the iteration that runs
                    return (Park(job_id),)
                continue
            placement = self._placement(state, job_id, span)
            if state.iterations_done(job_id) < due or placement is None:
                continue
            self._moves[job_id] = moves[1:]
            if placement.group != state.group_of(job_id).id or placement.shape != state.shape(job_id):
                self._placed = (job_id, span)
                return (Move(job_id, placement),)
        return ()

    def _placement(self, state: State, job_id: str, span: PlacementSpan) -> Placement | None:
        """Return a recorded placement in terms of the replay's state, or None if too few nodes are free."""
        here = next((group for group in state.group_list() if group.id == self._groups.get(span.group, -1)), None)
        there = {number for pin in span.pins if (number := self._nodes.get((span.group, pin), -1)) >= 0}
        if here is None:
            placement = Placement(None, (), len(span.pins), span.training_nodes, span.colocated, span.shape)
        else:
            present = tuple(sorted(there & set(here.rollout_nodes)))
            placement = Placement(here.id, present, len(span.pins) - len(present), shape=span.shape)
        return placement if state.has_room({job_id: placement}) else None

    def _learn_numbers(self, state: State) -> None:
        """Record the numbers that the last placement has in the replay; new nodes have the last numbers."""
        if self._placed is None:
            return
        job_id, span = self._placed
        self._placed = None
        if not state.is_running(job_id):
            return
        group, pins = state.group_of(job_id), state.pins(job_id)
        if self._groups.get(span.group) != group.id:
            self._groups[span.group] = group.id
            self._nodes = {node: number for node, number in self._nodes.items() if node[0] != span.group}
        known = {self._nodes.get((span.group, pin)) for pin in span.pins} & set(pins)
        new = [pin for pin in span.pins if self._nodes.get((span.group, pin)) not in known]
        for pin, number in zip(new, [number for number in pins if number not in known], strict=True):
            self._nodes[span.group, pin] = number
