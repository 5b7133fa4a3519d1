"""Seats of jobs in groups.

A seat is a job's membership in a group: its nodes there, and the phases whose nodes it holds now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollmux_env.cluster.state import State
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.nodes import POOLS, NodePool, PoolName, PoolNode
from rollmux_env.scheduler.view import HoldName


class Seat:
    """A job in a group.

    Attributes:
        job_id: Identifier of the job.
        group: Dispatcher of the group.
        seating: Nodes of the job in the group.
        guest: Whether it is being profiled; the state does not know a guest.
        moving: Whether it has to move to another place.
        failed: Whether it gets no more permits.
        parts: Last reported parts into which its rollout nodes are divided.
        holds: Phases whose nodes it holds; only if nodes have names.
    """

    __slots__ = ("failed", "group", "guest", "holds", "job_id", "moving", "parts", "seating")

    def __init__(self, job_id: str, group: Dispatcher, seating: Seating, guest: bool = False) -> None:
        self.job_id = job_id
        self.group = group
        self.seating = seating
        self.guest = guest
        self.moving = self.failed = False
        self.parts: tuple[PoolNode, ...] = ()
        self.holds: set[HoldName] = set()

    def nodes(self) -> set[str]:
        """Return the names of all its nodes."""
        return {node.name for node in self.every_node()}

    def every_node(self) -> tuple[PoolNode, ...]:
        """Return all its nodes, each once."""
        rollout_nodes, training_nodes = self.seating.rollout_nodes, self.seating.training_nodes
        return training_nodes if self.seating.colocated else rollout_nodes + training_nodes


def seating_of(state: State, nodes: NodePool | None, job_id: str) -> Seating:
    """Return the nodes of a running job in its placement of the state."""
    group = state.group_of(job_id)
    training = tuple(range(group.training_nodes))
    pins = state.pins(job_id)
    if nodes is None:
        return Seating(group.id, pins or training, training, colocated=not pins)
    return _seating_in(nodes, group.id, pins, training)


def guest_seating(state: State, nodes: NodePool, number: int, needs: Mapping[PoolName, int]) -> Seating:
    """Return the first nodes of a group, or of lent ones, as many as a guest asks for."""
    hosts = next((group.rollout_nodes for group in state.group_list() if group.id == number), None)
    rollout = tuple(range(needs["rollout"])) if hosts is None else hosts[: needs["rollout"]]
    return _seating_in(nodes, number, rollout, tuple(range(needs["training"])))


def seating_on(nodes: NodePool, names: Collection[str]) -> Seating | None:
    """Return the nodes of a job by their names, or None if they do not all have places in one group."""
    places = nodes.places(names)
    if len(places) < len(names) or len({group for group, _, _ in places}) != 1:
        return None
    rollout, training = (tuple(k for _, pool, k in places if pool == side) for side in POOLS)
    return _seating_in(nodes, places[0][0], rollout, training)


def _seating_in(nodes: NodePool, number: int, rollout: tuple[int, ...], training: tuple[int, ...]) -> Seating:
    """Return nodes of a group, or of lent ones, by their numbers. Without rollout nodes both phases are on the training nodes."""
    rollout_nodes = tuple(nodes.node(number, "rollout", k) for k in rollout)
    training_nodes = tuple(nodes.node(number, "training", k) for k in training)
    return Seating(number, rollout or training, training, rollout_nodes or training_nodes, training_nodes, not rollout)


def nodes_of(seat: Seat, state: State, nodes: NodePool) -> set[str]:
    """Return the names of a job's nodes; of a moving job those of both places."""
    next_seating = seating_of(state, nodes, seat.job_id) if seat.moving else None
    return seat.nodes() | (
        {node.name for node in next_seating.rollout_nodes + next_seating.training_nodes} if next_seating else set()
    )


def join(group: Dispatcher, state: State, job_id: str, pins: tuple[int, ...], now_s: float) -> None:
    """Make a running job the last member of its group."""
    group.group.now_s = now_s
    job = state.job(job_id)
    group.joined(job_id, pins, *state.planned_s(job_id), job.staleness, job.slo)
