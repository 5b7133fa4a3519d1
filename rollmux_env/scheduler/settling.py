"""Assignment of named nodes to places.

A place is a position in a group, or among the lent nodes of guests: group, pool and number. The state says which places exist; this
module decides which node in service has each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

from rollmux_env.cluster.events import Admitted, Departed, Lent, Moved, Parked
from rollmux_env.kernel.tables import ROLLOUT, TRAINING
from rollmux_env.keys.cluster import Cluster
from rollmux_env.scheduler.guests import Guests
from rollmux_env.scheduler.nodes import POOLS, PROFILING_GROUP, Assigned, NodePool, NodeSlot, PoolName, PoolNode, Returned
from rollmux_env.scheduler.planner import Planner, Restrictions
from rollmux_env.scheduler.seats import Seat


class Settling:
    """Assigns nodes to the places of groups when the state has changed, and takes back those of former places.

    The methods under "Facts" receive the facts of their names.

    Args:
        nodes: Nodes by name.
        planner: Planner whose state and events are followed.
        restrictions: Restrictions of the jobs' places.
        guests: Guests with lent nodes.
        seats: Seats of jobs by id. No other job gets the nodes that they still hold.

    Attributes:
        nodes: Nodes by name.
        uncleared: Identifiers of jobs on missing nodes that are not cleared yet.
        resizes: Whether the number of nodes in service may differ from that in the state.
    """

    def __init__(
        self, nodes: NodePool, planner: Planner, restrictions: Restrictions, guests: Guests, seats: Mapping[str, Seat]
    ) -> None:
        self.nodes = nodes
        self.uncleared: set[str] = set()
        self.resizes = False
        self._planner = planner
        self._restrictions = restrictions
        self._state = planner.state
        self._guests = guests
        self._seats = seats
        self._caps = _caps(self._state.cluster)
        self._lent: Counter[PoolName] = Counter()
        self._assignments: list[Assigned | Returned] = []
        self._unsettled: set[int] | None = None  # groups whose nodes may differ from the state and the seats, or None for all
        self._homes: dict[str, int] = {}  # group of each job when nodes were last settled

    # Facts.

    def drained(self, names: frozenset[str]) -> None:
        """Give nodes no new places."""
        self.nodes.drained |= names
        self.resizes = True

    def undrained(self, names: frozenset[str]) -> None:
        """Give nodes places again."""
        self.nodes.drained -= names
        self.resizes = True

    def joined(self, nodes: tuple[PoolNode, ...]) -> None:
        """Add nodes."""
        for node in nodes:
            self._caps[node.pool] = None if (cap := self._caps.get(node.pool)) is None else cap + 1
        self.nodes.add(nodes)
        self.resizes = True

    def alone(self, job_id: str) -> None:
        """Let no other job share a group with a job."""
        self._restrictions.alone.add(job_id)
        self.resizes = True

    # Consequences.

    @property
    def is_due(self) -> bool:
        """Whether the nodes in service, or the jobs to which nodes are lent, may differ from those of the state."""
        if (charged := self._state.charges.lent_to) and charged.keys() != self._guests.present:
            return True
        return self.resizes or (bool(self.nodes.missing) and not self.uncleared)

    @property
    def is_settled(self) -> bool:
        """Whether as many nodes are free as the state says."""
        state, nodes = self._state, self.nodes
        pools, used = state.cluster.pools, {"rollout": state.rollout_nodes, "training": state.training_nodes}
        return not nodes.missing and all(
            nodes.free_count(side) >= min(inf if (most := pools[side].max_nodes) is None else most, nodes.count(side)) - used[side]
            for side in state.cluster.sides
        )

    def follow(self) -> None:
        """Settle the places after departures, and update the number of nodes in service in the state."""
        if self.nodes.missing and not self.uncleared:
            self._unsettled = None
            self._assignments += self.nodes.lose(self._state.now_s)
            self.resizes = True
        self.follow_guests()
        if self.resizes or self.nodes.drained or self._restrictions.alone:
            self.resize()
            self._restrictions.hidden = self.nodes.drained_groups() | {self._state.group_of(job_id).id for job_id in self._alone()}

    def follow_guests(self) -> None:
        """Settle the places. Nodes that only guests use are out of service, and are charged to the guests."""
        self.settle()
        guests, lent, charged = self._guests, self._lent_nodes(), self._state.charges.lent_to
        users = {job_id: guests.users.get(job_id, "") for job_id in sorted(guests.present)} if lent else {}
        if users.keys() != charged.keys() or (users and lent != self._lent):
            counts = (lent["rollout"], lent["training"]) if users else (0, 0)
            self._planner.note(Lent(self._state.now_s, users, *counts))
        if lent != self._lent:
            self._lent, self.resizes = lent, True

    def take_assignments(self) -> list[Assigned | Returned]:
        """Return and clear the assignments and returns since the last call."""
        assignments, self._assignments = self._assignments, []
        return assignments

    def most(self) -> dict[PoolName, int]:
        """Return the number of nodes of each pool that the state may provision."""
        in_service = {pool: self.nodes.in_service(pool) - self._lent[pool] for pool in POOLS}
        return {pool: min(in_service[pool], self._caps.get(pool) or in_service[pool]) for pool in POOLS}

    def resize(self) -> None:
        """Update the number of nodes in service in the state.

        It is at least the number that the state uses, which a moving job may raise by drained nodes.
        """
        state, cluster, most = self._state, self._state.cluster, self.most()
        used: dict[PoolName, int] = {"rollout": state.rollout_nodes, "training": state.training_nodes}
        limits = {pool: max(count, used[pool]) for pool, count in most.items()}
        if any(cluster.pools[side].max_nodes != limits[side] for side in cluster.sides):
            self._planner.resize(state.now_s, limits["rollout"], limits["training"])
        elif self.resizes:  # the number is the same, but not the nodes
            self._planner.wake()
        self.resizes = limits != most

    def is_drained(self, seat: Seat) -> bool:
        """Return whether a job has to leave its nodes, and can: to another place if it is movable, else to the queue.

        It has to if one of them is drained, or if it shares its group with a job that no other one may share a group with.
        """
        if seat.guest or seat.failed or not (self.nodes.drained or self._restrictions.alone):
            return False
        state, others = self._state, {*self._alone()} - {seat.job_id}
        disturbs = bool(others) and not others.isdisjoint(state.group_of(seat.job_id).jobs)  # no member has been told to leave it
        if not disturbs and not seat.nodes() & self.nodes.drained:
            return False
        return state.job(seat.job_id).may_leave and not state.is_paused(seat.job_id)

    def mark_unsettled(self, number: int) -> None:
        """Mark a group, or the lent nodes, as possibly different from the state and the seats."""
        if self._unsettled is not None:
            self._unsettled.add(number)

    def settle(self, job_id: str | None = None) -> None:
        """Make the nodes of groups match the state.

        Args:
            job_id: Job that may just have got its place and needs particular nodes (`Planner.own_nodes`), or None.
        """
        changed = self._find_changed_groups()
        if changed is not None and not changed:
            return
        state, nodes = self._state, self.nodes
        places = self._places(changed)
        # A job's nodes belong to its group, so only jobs of changed groups can still use nodes that are taken back.
        used: set[str] = set()
        if changed is None or any(nodes.others(number, places) for number in changed):
            seats = (seat for seat in self._seats.values() if changed is None or seat.seating.group in changed)
            used = {name for seat in seats for name in seat.nodes()}
        self._assignments += nodes.settle(places, used, state.now_s, self._find_allowed_nodes(job_id), changed)

    def _find_allowed_nodes(self, job_id: str | None) -> dict[NodeSlot, frozenset[str]]:
        """Return the names of the nodes that some places may have: those of a job that just got its place, and of guests."""
        state, names = self._state, None
        own = dict.fromkeys(self._guests.places() if self._guests.names else (), self._guests.names)
        if job_id is not None and state.is_running(job_id):
            names = self._planner.own_nodes(job_id)
        if job_id is None or names is None:
            return own
        group = state.group_of(job_id)
        own |= {(group.id, "rollout", number): names for number in state.pins(job_id)}
        return own | {(group.id, "training", number): names for number in range(group.training_nodes)}

    def restore(self, cluster: Cluster) -> None:
        """Continue with the groups of the state, and take back the nodes of former places, except those of moving jobs' seats.

        Args:
            cluster: Cluster with the limits of its pools.
        """
        self._caps = _caps(cluster)
        used = {name for seat in self._seats.values() for name in seat.nodes()}
        self._assignments += self.nodes.take_back(self._places(None), used, self._state.now_s)

    def _lent_nodes(self) -> Counter[PoolName]:
        """Return the number of nodes of each pool that are charged to guests: those that no group has and no moving job holds."""
        number, nodes, state = self._guests.group, self.nodes, self._state
        if number is None:
            return Counter()
        if number == PROFILING_GROUP:
            return Counter(pool for _, pool, _ in nodes.others(number, ()))
        seats = [seat for seat in self._seats.values() if seat.seating.group == number]
        of_guests = {name for seat in seats if seat.guest for name in seat.nodes()}
        moving = state.pauses.held_nodes(seat.job_id for seat in seats if seat.moving).sum(axis=0)
        left = nodes.others(number, self._places([number]))
        unheld = Counter(pool for _, pool, _ in left)
        unheld.subtract({"rollout": int(moving[ROLLOUT]), "training": int(moving[TRAINING])})
        return Counter(place[1] for place in left if nodes.node(*place).name in of_guests) & unheld

    def _alone(self) -> list[str]:
        """Return the running jobs with which no other job may share a group."""
        return [job_id for job_id in self._restrictions.alone if job_id in self._seats and self._state.is_running(job_id)]

    def _places(self, numbers: Iterable[int] | None) -> set[NodeSlot]:
        """Return the places of groups and of guests, whose number is `PROFILING_GROUP`; of all groups if `numbers` is None."""
        places: set[NodeSlot] = set()
        groups = self._state.view.groups
        for number in [PROFILING_GROUP, *self._state.tables.group_rows] if numbers is None else numbers:
            if number == PROFILING_GROUP:
                places |= self._guests.places()
            elif (row := self._state.tables.group_rows.get(number)) is not None:
                group = groups[row]
                places |= {(number, "rollout", node) for node in group["node_number"][: group["n_nodes"]].tolist()}
                places |= {(number, "training", node) for node in range(group["training_nodes"])}
        return places

    def _find_changed_groups(self) -> set[int] | None:
        """Return the groups whose places may have changed since the last call, or None for all."""
        state = self._state
        changed, self._unsettled = self._unsettled, set()
        for event in self._planner.unreported_events():
            if isinstance(event, Admitted | Moved | Departed | Parked):
                numbers = {self._homes.pop(event.job_id, None)}
                if state.is_running(event.job_id):
                    self._homes[event.job_id] = number = state.group_of(event.job_id).id
                    numbers.add(number)
                if changed is not None:
                    changed |= {number for number in numbers if number is not None}
        if changed is None:
            self._homes = {job_id: group.id for group in state.group_list() for job_id in group.jobs}
        return changed


def _caps(cluster: Cluster) -> dict[str, int | None]:
    return {name: pool.max_nodes for name, pool in cluster.pools.items()}
