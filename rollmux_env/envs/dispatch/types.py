"""A co-execution group, and tables of many groups: the part that a dispatch policy may see, and that of the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.rows import GROUP, MEMBER
from rollmux_env.kernel.tables import Records, fields
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.keys.unsupported import refuse_network, refuse_queue_keys
from rollmux_env.timing.tail import Migration

MOST_NODES = 61  # one bit of an integer for each, next to that of the training nodes
THRESHOLD = 5  # next event of a rollout before its threshold; otherwise a phase of `rollmux_env.kernel.dispatch.rows`
MOST_AHEAD = 65  # largest number of iterations of a stale member in progress: 1 + the largest staleness
MIGRATION = Migration()  # threshold and share of the tails that an agent may migrate


@dataclass(frozen=True)
class SimulatedGroup:
    """A co-execution group, and how long to simulate it.

    Attributes:
        cluster: Cluster with the prices of nodes.
        jobs: Members in order of admission. All are present from time 0 to the end.
        pins: Rollout nodes of each member, ascending. Nodes are numbered from 0 in the order in which members first need them.
        training_nodes: Number of training nodes.
        horizon_s: Length of the episode, seconds.
        seed: Seed of the sampled durations.
    """

    cluster: Cluster
    jobs: tuple[Job, ...]
    pins: tuple[tuple[int, ...], ...]
    training_nodes: int
    horizon_s: float
    seed: int

    def __post_init__(self) -> None:
        if not self.jobs or len(self.jobs) != len(self.pins) or not all(self.pins):
            raise InputError("group: needs members, and at least one rollout node for each")
        known = 0
        for pins in self.pins:
            new = [node for node in pins if node >= known]
            if list(pins) != sorted(set(pins)) or new != list(range(known, known + len(new))) or known + len(new) >= MOST_NODES:
                raise InputError(f"group: rollout nodes must be numbered as members first need them, fewer than {MOST_NODES}")
            known += len(new)
        if self.training_nodes < 1 or not 0 < self.horizon_s < float("inf"):
            raise InputError("group: needs a training node and a horizon above 0 s")
        if self.cluster.one_device:
            raise InputError("group: needs two pools; the cluster is one_device")
        if len({(job.rollout.pool, job.training.pool) for job in self.jobs}) > 1:
            raise InputError("group: its members must be on the same pools")
        refuse_network(self.cluster, "an environment")
        refuse_queue_keys(self.cluster, self.jobs, "environment")

    @property
    def rollout_nodes(self) -> int:
        """Number of rollout nodes."""
        return 1 + max(max(pins) for pins in self.pins)

    @property
    def usd_per_hour(self) -> float:
        """Price of the group's nodes, $/h."""
        rollout, training = self.cluster.pools[self.jobs[0].rollout.pool], self.cluster.pools[self.jobs[0].training.pool]
        return self.rollout_nodes * rollout.usd_per_node_hour + self.training_nodes * training.usd_per_node_hour


# A member as the simulation runs it. Columns of rollout and training, or of rollout, training and sync, are in this order.
#   ends_s, stamps: time of the next event of each, and its rank among simultaneous ones; for the sync, the oldest in progress
#   next: next event of its rollout   base_s: the phases' worst cases as placed   warm_s, cold_s: switches
#   is_cold: not yet started here   rate, left_s, tail_s, went_s: progress of its rollout (`rollmux_env.kernel.dispatch.pace`)
#   began_s: start of its rollout   start_s: starts of the spans in progress   switch_s: part of these spans that is the switch
#   sampled, trained, iteration: numbers of rollouts, trainings, and iterations with their syncs that have ended
#   sampled_s, trained_s, solo_s: when those of its last iteration would have ended alone   ended_s: end of the last iteration
#   behind_s: seconds behind its SLO at that time
PROGRESS = np.dtype(
    [
        *fields("next sampled trained iteration"),
        ("stamps", "i8", 3),
        ("is_cold", "i8", 2),
        ("ends_s", "f8", 3),
        *((name, "f8", 2) for name in ("base_s", "warm_s", "cold_s", "start_s", "switch_s")),
        *fields("", "rate left_s tail_s updated_s began_s sampled_s trained_s solo_s ended_s behind_s"),
    ]
)

# A group as the simulation runs it.
#   over: 1 at the end of the episode, horizon_s   stamps, spans: counters   invalid: 1 if the last action was masked
#   work_s, behind_s: T_solo seconds done, and lost against SLOs, since the last decision at decided_s
#   all_work_s, decisions, migrations: totals of the episode
CLOCK = np.dtype(
    fields("over stamps spans invalid decisions migrations", "horizon_s usd_per_hour decided_s work_s behind_s all_work_s")
)

# A span of time in which a phase held the same share of the same nodes.
SPAN = np.dtype(fields("member what iteration nodes", "start_s end_s switch_s share"))


class Groups(NamedTuple):
    """Tables of E parallel groups.

    They have room for M members on N nodes (all training nodes count as one), K iterations and L spans. A iterations of a member
    may be in progress, `MOST_AHEAD` if members may be stale.

    Attributes:
        groups: Groups as a dispatcher sees them, shape (E,).
        clocks: Groups as the simulation runs them, shape (E,).
        members: Members as a dispatcher sees them, shape (E, M).
        progress: Members as the simulation runs them, shape (E, M).
        last: Member that each node last ran, or -1, shape (E, N).
        durations: Samples of each iteration, shape (E, M, 4, K): factors of rollout and training, threshold, stretch.
        history: Ring of the latest spans, shape (E, L).
        syncs: Ring of the latest iterations, shape (E, M, A, 3): end of the sync, its stamp, and the end it would have had alone.
    """

    groups: Records
    clocks: Records
    members: Records
    progress: Records
    last: NDArray[np.int64]
    durations: NDArray[np.float64]
    history: Records
    syncs: NDArray[np.float64]


def group_table(envs: int, members: int, nodes: int, iterations: int, stale: bool, spans: int = 128) -> Groups:
    """Create empty tables. `stale` states whether members may be stale."""
    return Groups(
        groups=np.zeros(envs, dtype=GROUP),
        clocks=np.zeros(envs, dtype=CLOCK),
        members=np.zeros((envs, members), dtype=MEMBER),
        progress=np.zeros((envs, members), dtype=PROGRESS),
        last=np.zeros((envs, nodes), dtype=np.int64),
        durations=np.zeros((envs, members, 4, iterations)),
        history=np.zeros((envs, spans), dtype=SPAN),
        syncs=np.zeros((envs, members, MOST_AHEAD if stale else 2, 3)),
    )


class TailParameters(NamedTuple):
    """Parameters of tails.

    Attributes:
        share: Share of its nodes that a migrated tail keeps.
        rate: Relative speed of a rollout beside a tail.
        move_s: Seconds of a migration.
    """

    share: float
    rate: float
    move_s: float
