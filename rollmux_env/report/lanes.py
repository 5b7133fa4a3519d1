"""The nodes and members of a group over time, and the shares of its node time: the data behind the pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Departed, Event, Moved, Parked, Resumed
from rollmux_env.cluster.group import Group
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.replay.run import PhaseRun

POOLS = ("rollout", "training")


class NodeUse(NamedTuple):
    """The time in which a group holds a node, from its provisioning to its release.

    A node that a moved job vacates and no other job uses is held until the pause of the move ends, since it is paid for until then.

    Attributes:
        group: Number of the group.
        pool: Side of the group, `rollout` or `training`.
        node: Number of the node on this side.
        from_s: Start, in seconds.
        until_s: End, in seconds.
        other_pool: Name of the cluster's pool, or "" if it is the name of the side.
    """

    group: int
    pool: str
    node: int
    from_s: float
    until_s: float
    other_pool: str = ""

    @property
    def owner(self) -> str:
        """Name of the cluster's pool to which the node belongs."""
        return self.other_pool or self.pool


class Membership(NamedTuple):
    """A group's members from a time on.

    Attributes:
        group: Number of the group.
        at_s: Start, in seconds.
        jobs: Members in order of admission; empty if the group has ended.
        period_s: Planned period of the group, in seconds.
    """

    group: int
    at_s: float
    jobs: tuple[str, ...]
    period_s: float


class TimeShares(NamedTuple):
    """Shares of the node-seconds of some lanes. They sum to 1.

    Attributes:
        running: Share in which phases run.
        switching: Share of switches.
        bubble: Share in which nodes are idle.
    """

    running: float
    switching: float
    bubble: float


def follow(cluster: Cluster, log: Iterable[Event]) -> tuple[list[NodeUse], list[Membership]]:
    """Derive lanes and memberships from an event log.

    Args:
        cluster: Cluster of the log.
        log: Events in order of time.

    Returns:
        Lanes by group, pool and node, those still provisioned ending at the last event; and memberships in order of time, only the
        last one of each group and instant.
    """
    state = State(cluster, observed=True)
    since_s: dict[int, dict[_Node, float]] = {}  # time at which each node was provisioned, by group
    vacated: dict[str, list[NodeUse]] = {}  # by job: lanes of the nodes that its move vacated; their end is set when the pause ends
    lanes: list[NodeUse] = []
    members: dict[tuple[float, int], Membership] = {}
    for event in log:
        at_s = event.at_s
        if isinstance(event, Resumed):
            lanes += [lane._replace(until_s=at_s) for lane in vacated.pop(event.job_id, [])]
        for number, now in _apply_event(state, event).items():
            members.pop((at_s, number), None)  # keeps the dictionary in order of time
            members[at_s, number] = Membership(number, at_s, now.jobs if now else (), now.period_s if now else 0.0)
            known, nodes = since_s.setdefault(number, {}), _nodes(now)
            gone = [_lane(number, node, known.pop(node), at_s) for node in [*known] if node not in nodes]
            known.update({node: at_s for node in nodes if node not in known})
            if isinstance(event, Moved):
                vacated.setdefault(event.job_id, []).extend(gone)
            else:
                lanes += gone
    lanes += [lane._replace(until_s=state.now_s) for left in vacated.values() for lane in left]
    lanes += [_lane(number, node, at_s, state.now_s) for number, known in since_s.items() for node, at_s in known.items()]
    return sorted(lanes), list(members.values())


def _apply_event(state: State, event: Event) -> dict[int, Group | None]:
    """Apply an event and return the groups whose members it changes, by number, as they are after it.

    A group that has ended is None.
    """
    if not isinstance(event, Admitted | Moved | Departed | Parked):
        apply(state, event)
        return {}
    touched: dict[int, Group | None] = {}
    members = [event.job_id]
    if state.is_running(event.job_id):
        left = state.group_of(event.job_id)
        touched[left.id] = None
        members = [*[job_id for job_id in left.jobs if job_id != event.job_id][:1], event.job_id]
    apply(state, event)
    now = [state.group_of(job_id) for job_id in members if state.is_running(job_id)]
    return touched | {group.id: group for group in now}


def node_steps(lanes: Iterable[NodeUse], pools: Collection[str] = POOLS) -> list[tuple[float, dict[str, int]]]:
    """Return the numbers of provisioned nodes over time.

    Args:
        lanes: Nodes to count.
        pools: Names of the cluster's pools to count.

    Returns:
        Pairs of a time at which a number changes and the number of nodes by pool from then on, in order of time.
    """
    changes: dict[float, Counter[str]] = {}
    for lane in lanes:
        for at_s, by in ((lane.from_s, 1), (lane.until_s, -1)):
            changes.setdefault(at_s, Counter())[lane.owner] += by
    nodes = dict.fromkeys(pools, 0)
    steps = []
    for at_s in sorted(changes):
        nodes = {pool: nodes[pool] + changes[at_s][pool] for pool in pools}
        steps.append((at_s, nodes))
    return steps


def shares(phases: Iterable[PhaseRun], lanes: Sequence[NodeUse], from_s: float, until_s: float) -> TimeShares | None:
    """Divide the node-seconds of some lanes within a span of time.

    Args:
        phases: Phases; those on other nodes do not count.
        lanes: Nodes to count.
        from_s: Start of the span, in seconds.
        until_s: End of the span, in seconds.

    Returns:
        The shares, or None if the lanes have no time within the span.
    """
    total_s = sum(max(0.0, min(lane.until_s, until_s) - max(lane.from_s, from_s)) for lane in lanes)
    if total_s <= 0.0:
        return None
    keys = {(lane.group, lane.pool, lane.node) for lane in lanes}
    running_s = switching_s = 0.0
    for phase in phases:
        nodes = phase.share * sum((phase.group, phase.pool, node) in keys for node in phase.nodes)
        runs_s = phase.start_s + phase.switch_s
        switching_s += nodes * max(0.0, min(runs_s, until_s) - max(phase.start_s, from_s))
        running_s += nodes * max(0.0, min(phase.end_s, until_s) - max(runs_s, from_s))
    running, switching = running_s / total_s, switching_s / total_s
    return TimeShares(running, switching, max(0.0, 1.0 - running - switching))


class _Node(NamedTuple):
    """A node of a group.

    Attributes:
        side: Side of the group.
        number: Number of the node on this side.
        pool: Name of the cluster's pool.
    """

    side: str
    number: int
    pool: str


def _nodes(group: Group | None) -> set[_Node]:
    """Return the nodes of a group in its current state."""
    if group is None:
        return set()
    training = {_Node("training", node, group.training_pool) for node in range(group.training_nodes)}
    return training | {_Node("rollout", node, group.rollout_pool) for node in group.rollout_nodes}


def _lane(group: int, node: _Node, from_s: float, until_s: float) -> NodeUse:
    return NodeUse(group, node.side, node.number, from_s, until_s, "" if node.pool == node.side else node.pool)
