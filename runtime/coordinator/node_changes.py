"""Drains, undrains and joins of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollmux_env.errors import Conflict, NotFound, Stopping
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.seats import Seat, nodes_of
from rollmux_env.validation_errors import one_line
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.run_loop import RunLoop
from runtime.journal.write import Unwritable
from runtime.machine import Node


class NodeChanges:
    """Changes of the nodes that a run has and uses.

    Args:
        run: The run.
        known: All nodes that the run ever had.
    """

    def __init__(self, run: RunLoop, known: Sequence[Node]) -> None:
        self._run = run
        self.known = {node.name: node for node in known}

    def drain(self, name: str) -> dict[str, Any]:
        """Move the jobs of a node away at the end of their iteration, and place no other job on it.

        Args:
            name: Name of the node.

        Returns:
            `moves`: ids of jobs that move to other nodes. `queues`: ids of jobs without another place now, which will wait first in
            the queue. `waits_for`: ids of jobs that cannot leave before their end.

        Raises:
            NotFound: If there is no such node; one line.
            Conflict: If it is drained already; one line.
            Unwritable: If the journal cannot be written; one line.
            Stopping: If the run is about to end, after which its nodes belong to the next one; one line.
        """
        run = self._run
        self.check_drainable(name)
        run.apply(Consequences((facts.Drained(frozenset({name})),), lines=(f"{name}: is drained",)))
        seats = self._seats_on(name)
        moves = [seat.job_id for seat in seats if seat.moving or seat.guest]
        parking = run.scheduler.planner.parking
        queues = [seat.job_id for seat in seats if seat.job_id in parking or run.scheduler.must_vacate(seat.job_id)]
        waits_for = [seat.job_id for seat in seats if seat.job_id not in (*moves, *queues)]
        return {"node": name, "drained": not seats, "moves": moves, "queues": queues, "waits_for": waits_for}

    def jobs_on(self, name: str) -> list[str]:
        """Return the ids of the jobs that have a node, still hold it, or are moving to it."""
        return [seat.job_id for seat in self._seats_on(name)]

    def staying_on(self, name: str) -> list[str]:
        """Return the ids of the jobs on a node that cannot leave it before their end."""
        state, parking = self._run.scheduler.state, self._run.scheduler.planner.parking
        seats = (seat for seat in self._seats_on(name) if not (seat.moving or seat.guest or seat.job_id in parking))
        return [seat.job_id for seat in seats if not state.job(seat.job_id).may_leave]

    def _seats_on(self, name: str) -> list[Seat]:
        run = self._run
        return [seat for seat in run.scheduler.members.seats.values() if name in nodes_of(seat, run.scheduler.state, run.nodes)]

    def undrain(self, name: str) -> dict[str, Any]:
        """Use a drained node again.

        Args:
            name: Name of the node.

        Raises:
            NotFound: If there is no such node; one line.
            Conflict: If it is not drained; one line.
            Unwritable: If the journal cannot be written; one line.
            Stopping: If the run is about to end; one line.
        """
        run = self._run
        self.check_writable()
        if name not in run.nodes.drained:
            self._check_known(name)
            raise Conflict(f"{name}: is not drained")
        run.apply(Consequences((facts.Undrained(frozenset({name})),), lines=(f"{name}: is used again",)))
        return {"node": name, "drained": False}

    def join(self, nodes: Sequence[Node], compares: bool = True) -> None:
        """Add nodes that have joined.

        Args:
            nodes: The nodes.
            compares: Whether nodes unlike the others of their pool are left out, and logged. Hosts that a cluster file names cannot
                be compared: their devices are unknown.
        """
        run = self._run
        fits = []
        for node in nodes:
            self.known[node.name] = node
            if compares and (problem := self._misfits(node)):
                run.log.say(f"{node.name} has joined, and is not used: {problem}")
            else:
                run.log.say(f"{node.name} has joined: {node.device}, {node.memory_gb:g} GB")
                fits.append(node)
        if fits:
            run.apply(Consequences((facts.Joined(tuple(fits)),)))

    def check_drainable(self, name: str) -> None:
        """Check that a node can be drained. Raises as `drain` does."""
        self.check_writable()
        self._check_known(name)
        if name in self._run.nodes.drained:
            raise Conflict(f"{name}: is drained already")

    def check_writable(self) -> None:
        """Check that changes of nodes can be written down now.

        Raises:
            Unwritable: If the journal cannot be written; one line.
            Stopping: If the run is about to end; one line.
        """
        if self._run.stopping:
            raise Stopping("the service is stopping; ask the next one")
        if self._run.log.problem is not None:
            raise Unwritable(self._run.log.problem)

    def _check_known(self, name: str) -> None:
        if all(node.name != name for node in self._run.capacity.nodes()):
            raise NotFound(f"{one_line(name, 80)}: this service has no such node")

    def _misfits(self, node: Node) -> str | None:
        """Return the reason why jobs that were profiled on a pool's other nodes may run differently on a node, or None."""
        others = [other for other in self._run.capacity.nodes() if other.pool == node.pool]
        least_gb = min((other.memory_gb for other in others if other.memory_gb), default=0.0)
        if others and node.device != others[0].device:
            return f"it has {node.device}, and the others of its pool {others[0].device}"
        if 0 < node.memory_gb < least_gb:  # it is 0 if unknown, as on other hosts
            return f"it has {node.memory_gb:g} GB of host memory, and the others of its pool {least_gb:g}"
        return None
