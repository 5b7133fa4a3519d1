"""Part 3: where may an arriving job go, what does it cost there, and which placement does Algorithm 1 choose?

The possible placements of a job are listed as **candidates**: first every existing group that can take the job, with every choice
of old and new rollout nodes, and at last a new group. Each has its extra cost per hour, and the reason against it if there is one.
A policy chooses from this list: Algorithm 1 takes the cheapest feasible entry, `solo` always the last one, and a learned policy
(part 6) scores the entries and is masked by their feasibility.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from examples.mini.group import Group
from examples.mini.model import Cluster, Job, Scenario


@dataclass(frozen=True)
class Candidate:
    """One possible placement of a job."""

    strategy: str  # direct_packing (no new nodes), rollout_scaling (some), isolated (a new group)
    group: Group  # group after the admission, with the job as its last member
    new_nodes: int  # rollout nodes that are added for the job
    usd_per_hour: float  # marginal cost
    saturated: bool  # whether the group was saturated before
    problem: str  # first reason against it, or an empty string if it is feasible

    @property
    def feasible(self) -> bool:
        return not self.problem


Policy = Callable[[Sequence[Candidate]], Candidate | None]  # returns a feasible candidate, or None to let the job wait


@dataclass
class State:
    """All groups at one instant, in order of creation."""

    cluster: Cluster
    groups: list[Group] = field(default_factory=list)
    groups_made: int = 0

    def nodes(self, side: str) -> int:
        """Return the number of nodes of all groups in the pool `side`, `rollout` or `training`."""
        return sum(len(group.rollout_nodes) if side == "rollout" else group.training_nodes for group in self.groups)

    def place(self, candidate: Candidate) -> None:
        """Admit a job: replace its group by the candidate's, or add a new group."""
        self.groups = [candidate.group if group.id == candidate.group.id else group for group in self.groups]
        if candidate.strategy == "isolated":
            self.groups.append(candidate.group)
            self.groups_made += 1

    def remove(self, job: Job) -> None:
        """Remove a job. A group without members is closed, and all its nodes are released."""
        left = [group.without(job) if job in group.jobs else group for group in self.groups]
        self.groups = [group for group in left if group.members]


def candidates(state: State, job: Job) -> list[Candidate]:
    """Return all candidates of a job: oldest groups first, fewest new nodes first, lowest node numbers first.

    A group that is full, has too few training nodes for the job, or has no memory left on them, is left out.
    """
    cluster, n = state.cluster, job.rollout.nodes
    entries = []
    for group in state.groups:
        full = len(group.members) >= cluster.max_group_size
        if full or group.training_nodes < job.training.nodes or not group.joined(job, (), n).fits_training_memory(cluster):
            continue
        for new in range(n + 1):
            for old in subsets(group, n - new):
                after = group.joined(job, old, new)
                strategy = "rollout_scaling" if new else "direct_packing"
                usd_per_hour = new * cluster.rollout.node_usd_per_hour
                entries.append(Candidate(strategy, after, new, usd_per_hour, group.saturated, problem(state, after, new)))
    own = Group(state.groups_made, job.training.nodes).joined(job, (), n)
    room = state.nodes("training") + job.training.nodes <= cluster.training.max_nodes
    reason = problem(state, own, n) if room else "max_nodes"
    return [*entries, Candidate("isolated", own, n, own.usd_per_hour(cluster), False, reason)]


def subsets(group: Group, size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of existing rollout nodes in lexicographic order.

    Nodes with the same jobs on them are interchangeable: of sets that differ only in such nodes, only the first is listed.
    """
    earlier = set()
    for nodes in combinations(group.rollout_nodes, size):
        alike = tuple(sorted(tuple(job.id for job in group.on(node)) for node in nodes))
        if alike not in earlier:
            earlier.add(alike)
            yield nodes


def problem(state: State, after: Group, new_nodes: int) -> str:
    """Return the first reason against a group after an admission that adds `new_nodes` rollout nodes, or an empty string."""
    if not after.fits_rollout_memory(state.cluster):
        return "memory"
    if new_nodes and state.nodes("rollout") + new_nodes > state.cluster.rollout.max_nodes:
        return "max_nodes"
    return "" if after.keeps_slos() else "an SLO"


def algorithm1(entries: Sequence[Candidate]) -> Candidate | None:
    """Choose as Algorithm 1 of arXiv 2512.11306: the first of the cheapest feasible candidates, no saturated group."""
    allowed = [entry for entry in entries if entry.feasible and not entry.saturated]
    return min(allowed, key=lambda entry: entry.usd_per_hour, default=None)


def solo(entries: Sequence[Candidate]) -> Candidate | None:
    """Give every job its own nodes, the common practice: `solo`, the baseline of the other policies."""
    return entries[-1] if entries[-1].feasible else None


def plan(scenario: Scenario, policy: Policy) -> tuple[list[Candidate | None], State]:
    """Admit jobs in order of arrival, without departures. When one cannot be placed (None), all later ones wait."""
    state, choices = State(scenario.cluster), []
    for job in scenario.jobs:
        choice = None if None in choices else policy(candidates(state, job))
        choices.append(choice)
        if choice is not None:
            state.place(choice)
    return choices, state
