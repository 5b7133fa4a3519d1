"""A placement policy that does again what was done in a run: the same groups, nodes and moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Arrived, Event, Moved, Placement, Resumed, Ticked
from rollmux_env.cluster.plan import Move, Place, Plan, Wait
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from runtime.journal.record import RunRecord

_TICKS = 20  # in the shortest iteration of a job that moves
_MOST_TICKS = 2000  # in a run


class Seat(NamedTuple):
    """A place in a run: the group's number there, the numbers of the job's rollout nodes, the group's training nodes, and in which
    shape."""

    group: int
    pins: tuple[int, ...]
    training_nodes: int
    colocated: bool
    shape: int


class Relocation(NamedTuple):
    """A move: the job has done so many iterations when it goes to its new place."""

    iterations: int
    seat: Seat


class Places(NamedTuple):
    """Where each job was first, and where it went then, in order."""

    first: dict[str, Seat]
    moves: dict[str, list[Relocation]]


def places_of(record: RunRecord) -> Places:
    """What a run's events say of places.

    Raises:
        InputError: a job was placed twice; one line.
    """
    state = State(record.started.cluster, observed=True)
    first: dict[str, Seat] = {}
    moves: dict[str, list[Relocation]] = {}
    for event in record.log:
        apply_recorded(state, event)
        match event:
            case Admitted(job_id=job_id):
                if job_id in first:
                    raise InputError(f"compare: job {job_id} was placed twice, after it had left its nodes and waited for others")
                first[job_id] = _seat(state, job_id, event.placement)
            case Moved(job_id=job_id):
                moves.setdefault(job_id, []).append(Relocation(-1, _seat(state, job_id, event.placement)))
            case Resumed(job_id=job_id, at_s=at_s):
                done = sum(one.job_id == job_id and one.end_s <= at_s for one in record.iterations)
                moves[job_id][-1] = moves[job_id][-1]._replace(iterations=done)
    gone = {job_id: [move for move in own if move.iterations > 0] for job_id, own in moves.items()}
    return Places(first, {job_id: own for job_id, own in gone.items() if own})


def _seat(state: State, job_id: str, placement: Placement) -> Seat:
    group = state.group_of(job_id)
    return Seat(group.id, state.pins(job_id), group.training_nodes, placement.colocated, placement.shape)


class RecordedPlacements:
    """Does again what was done.

    A job goes to the group whose members it had. Where that group is no more, as its members are done sooner than they were, it
    begins a new one of the same size. It waits where there are too few nodes, because the jobs before it take longer than they did.

    Args:
        places: of all jobs. iteration_s: of the jobs that move, mean seconds. span_s: of the whole run.
    """

    keeps_slo = False

    def __init__(self, places: Places, iteration_s: Mapping[str, float], span_s: float) -> None:
        self._first = places.first
        self._moves: dict[str, Sequence[Relocation]] = dict(places.moves)
        self._groups: dict[int, int] = {}  # number in the run: number here
        self._nodes: dict[tuple[int, int], int] = {}  # group and number in the run: number here
        self._placed: tuple[str, Seat] | None = None  # whose numbers are not known yet
        shortest_s = min((iteration_s[job_id] for job_id in places.moves), default=None)
        self.wakes_every_s = None if shortest_s is None else max(shortest_s / _TICKS, span_s / _MOST_TICKS)

    def decide(self, state: State, event: Event) -> Plan:
        """The recorded placement of a job that arrives, or the next move that is due."""
        self._learn_numbers(state)
        if isinstance(event, Arrived):
            job_id = event.job.id
            seat = self._first.get(job_id)
            placement = None if seat is None else self._placement(state, job_id, seat)
            if seat is None or placement is None:
                return (Wait(job_id),)
            self._placed = (job_id, seat)
            return (Place(job_id, placement),)
        return self._move(state) if isinstance(event, Ticked) else ()

    def _move(self, state: State) -> Plan:
        """One of the moves whose time has come; the others come with the next ticks."""
        for job_id, moves in self._moves.items():
            if not moves or not state.is_running(job_id) or state.is_paused(job_id):
                continue
            due, seat = moves[0]
            placement = self._placement(state, job_id, seat)
            if state.iterations_done(job_id) < due or placement is None:
                continue
            self._moves[job_id] = moves[1:]
            if placement.group != state.group_of(job_id).id or placement.shape != state.shape(job_id):
                self._placed = (job_id, seat)
                return (Move(job_id, placement),)
        return ()

    def _placement(self, state: State, job_id: str, seat: Seat) -> Placement | None:
        """A recorded place of a job in the state as it is here; None where there are too few nodes."""
        here = next((group for group in state.group_list() if group.id == self._groups.get(seat.group, -1)), None)
        there = {number for pin in seat.pins if (number := self._nodes.get((seat.group, pin), -1)) >= 0}
        if here is None:
            placement = Placement(None, (), len(seat.pins), seat.training_nodes, seat.colocated, seat.shape)
        else:
            present = tuple(sorted(there & set(here.rollout_nodes)))
            placement = Placement(here.id, present, len(seat.pins) - len(present), shape=seat.shape)
        return placement if state.has_room({job_id: placement}) else None

    def _learn_numbers(self, state: State) -> None:
        """What numbers the last placement has brought about: new nodes come last."""
        if self._placed is None:
            return
        job_id, seat = self._placed
        self._placed = None
        if not state.is_running(job_id):
            return
        group, pins = state.group_of(job_id), state.pins(job_id)
        if self._groups.get(seat.group) != group.id:
            self._groups[seat.group] = group.id
            self._nodes = {node: number for node, number in self._nodes.items() if node[0] != seat.group}
        known = {self._nodes.get((seat.group, pin)) for pin in seat.pins} & set(pins)
        new = [pin for pin in seat.pins if self._nodes.get((seat.group, pin)) not in known]
        for pin, number in zip(new, [number for number in pins if number not in known], strict=True):
            self._nodes[seat.group, pin] = number
