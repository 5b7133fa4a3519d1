"""Part 2: a group of jobs that share nodes, and how long a round of it takes.

A **co-execution group** has its own rollout nodes and training nodes. Each member's rollouts run on the rollout nodes that it is
*pinned* to; every member trains on all of the group's training nodes. The members take turns by strict **round robin**: in each
round (a *meta-iteration*) every member runs one rollout and one training, on every node in order of admission. A phase begins as
soon as the job's previous one is over and the job has its turn on all nodes of the phase.

`next_round` is that rule as a program. It only adds times and takes the larger of two, so it is linear in the max-plus algebra
(where "plus" is max, and "times" is +) and has an eigenvalue: whatever the first round, in the long run every round takes the same
time, the group's **period**. Every member's iteration then takes one period, which decides whether the member keeps its SLO.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from examples.mini.model import Cluster, Job, at_most

TRAINING = -1  # number of all training nodes of a group, which work as one; rollout nodes are numbered from 0


@dataclass(frozen=True)
class Member:
    """A job and the numbers of the rollout nodes to which it is pinned."""

    job: Job
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Members in order of admission, and the nodes that they share. Immutable: `joined` and `without` return another group.

    Rollout nodes come and go with members, and no number is used twice: the next new one gets the number `nodes_made`. Training
    nodes stay the same until the group is empty.
    """

    id: int
    training_nodes: int
    members: tuple[Member, ...] = ()
    rollout_nodes: tuple[int, ...] = ()
    nodes_made: int = 0

    @property
    def jobs(self) -> list[Job]:
        return [member.job for member in self.members]

    def on(self, node: int) -> list[Job]:
        """Return the jobs that use a node, in order of admission."""
        return [member.job for member in self.members if node == TRAINING or node in member.nodes]

    def training_s(self, job: Job) -> float:
        """Return the seconds of a member's training, which may be faster on more nodes than it asked for."""
        return job.training.seconds_on(self.training_nodes)

    def usd_per_hour(self, cluster: Cluster) -> float:
        rollout, training = cluster.rollout.node_usd_per_hour, cluster.training.node_usd_per_hour
        return len(self.rollout_nodes) * rollout + self.training_nodes * training

    @cached_property
    def cycle_s(self) -> float:
        """T_cycle: the longest iteration of a member alone. No round is shorter."""
        return max(job.solo_s for job in self.jobs)

    @cached_property
    def load_s(self) -> float:
        """T_load: the most work of a node in one round. No round is shorter."""
        rollouts = [sum(job.rollout.worst_case_s for job in self.on(node)) for node in self.rollout_nodes]
        return max([*rollouts, sum(self.training_s(job) for job in self.jobs)])

    @property
    def saturated(self) -> bool:
        """Whether some node has no gap into which another job could fit. Algorithm 1 adds no job to such a group."""
        return at_most(self.cycle_s, self.load_s)

    @cached_property
    def period_s(self) -> float:
        """The length of a round in the long run: the eigenvalue of `next_round`, by Karp's theorem.

        `next_round` keeps N times. Run N rounds from 0. For each time, take its average growths over the last 1, 2, ..., N rounds,
        and of these the smallest. The largest of the N results is the period. It is exact after N rounds, even if the rounds
        themselves need more to settle (R. M. Karp, A characterization of the minimum cycle mean in a digraph, 1978).

        max(T_cycle, T_load) is the same if every member is pinned to one node and none has a sync or trains on more nodes than it
        asks for. Otherwise it may be too short, and a planner that relied on it would break SLOs.
        """
        rounds: list[dict[str | int, float]] = [dict.fromkeys([TRAINING, *self.rollout_nodes, *(job.id for job in self.jobs)], 0.0)]
        for _ in rounds[0]:
            rounds.append(self.next_round(rounds[-1]))
        *earlier, last = rounds
        return max(min((last[entry] - at[entry]) / (len(earlier) - k) for k, at in enumerate(earlier)) for entry in last)

    def next_round(self, free: dict[str | int, float]) -> dict[str | int, float]:
        """Return the times at which nodes (by number) and jobs (by id) are free, one meta-iteration after `free`."""
        free = dict(free)
        for job, nodes in ((member.job, member.nodes) for member in self.members):
            rollout_end = max(free[job.id], *(free[node] for node in nodes)) + job.rollout.worst_case_s
            training_end = max(rollout_end, free[TRAINING]) + self.training_s(job)
            free.update(dict.fromkeys(nodes, rollout_end))
            free[TRAINING] = training_end
            free[job.id] = training_end + job.sync_s
        return free

    def keeps_slos(self) -> bool:
        return all(at_most(self.period_s, job.limit_s) for job in self.jobs)

    def fits_rollout_memory(self, cluster: Cluster) -> bool:
        """Return whether each rollout node can hold the state of all its pinned jobs at once (residency)."""
        limit = cluster.rollout.node_memory_gb
        return all(at_most(sum(job.rollout.host_memory_gb for job in self.on(node)), limit) for node in self.rollout_nodes)

    def fits_training_memory(self, cluster: Cluster) -> bool:
        return at_most(sum(job.training.host_memory_gb for job in self.jobs), cluster.training.node_memory_gb)

    def joined(self, job: Job, nodes: tuple[int, ...], new_nodes: int) -> Self:
        """Return the group with a job as its last member, pinned to `nodes` of the group and to `new_nodes` new ones."""
        new = tuple(range(self.nodes_made, self.nodes_made + new_nodes))
        return replace(
            self,
            members=(*self.members, Member(job, nodes + new)),
            rollout_nodes=self.rollout_nodes + new,
            nodes_made=self.nodes_made + new_nodes,
        )

    def without(self, job: Job) -> Self:
        """Return the group after a departure. Rollout nodes without a pinned member are released at once."""
        members = tuple(member for member in self.members if member.job != job)
        used = {node for member in members for node in member.nodes}
        return replace(self, members=members, rollout_nodes=tuple(node for node in self.rollout_nodes if node in used))
