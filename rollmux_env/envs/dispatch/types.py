"""A co-execution group, and many of them as records: what a dispatch policy may see, and what only the simulation knows."""

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

MOST_NODES = 61
THRESHOLD = 5  # what comes next for a rollout that is not past it; else a phase of `rollmux_env.kernel.dispatch.rows`
MOST_AHEAD = 65  # iterations of a stale member that may be on their way: 1 + the largest staleness
MIGRATION = Migration()  # of the tails that an agent may have moved


@dataclass(frozen=True)
class Group:
    """A co-execution group and how long to watch it.

    Attributes:
        cluster: prices of nodes.
        jobs: its members, in order of admission; all are there at time 0 and stay.
        pins: the rollout nodes of each, ascending; numbered from 0 on in the order in which members first need them.
        training_nodes: of the group.
        horizon_s: seconds until the episode ends.
        seed: of the sampled durations.
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
        """How many it has."""
        return 1 + max(max(pins) for pins in self.pins)

    @property
    def usd_per_hour(self) -> float:
        """Price of its nodes, $/h."""
        rollout, training = self.cluster.pools[self.jobs[0].rollout.pool], self.cluster.pools[self.jobs[0].training.pool]
        return self.rollout_nodes * rollout.usd_per_node_hour + self.training_nodes * training.usd_per_node_hour


# A member as the simulation runs it. What there is of rollout and training, or of rollout, training and sync, is in this order.
#   ends_s, stamps: when what comes next of each is over, and which of what comes together is first; the sync is the oldest one
#   next: what comes next of its rollout   base_s: the phases' worst cases as placed   warm_s, cold_s: switches
#   is_cold: not yet started here   rate, left_s, tail_s, went_s: of its rollout, as in `rollmux_env.kernel.dispatch.pace`
#   began_s: of its rollout   start_s: of the spans in hand   switch_s: how long of these is the switch
#   sampled, trained, iteration: rollouts, trainings, and iterations with their syncs that are over
#   sampled_s, trained_s, solo_s: when those of its last iteration would have ended alone   ended_s: the last iteration's end
#   behind_s: how far it was behind its SLO then
PROGRESS = np.dtype(
    [
        *fields("next sampled trained iteration"),
        ("stamps", "i8", 3),
        ("is_cold", "i8", 2),
        ("ends_s", "f8", 3),
        *((name, "f8", 2) for name in ("base_s", "warm_s", "cold_s", "start_s", "switch_s")),
        *fields("", "rate left_s tail_s went_s began_s sampled_s trained_s solo_s ended_s behind_s"),
    ]
)

# A group as the simulation runs it.
#   over: 1 at the end of the episode, horizon_s   stamps, spans: counters   invalid: the last action was masked
#   work_s, behind_s: T_solo seconds done, and lost against SLOs, in the interval since the last decision at since_s
#   all_work_s, decisions, migrations: since the beginning
CLOCK = np.dtype(
    fields("over stamps spans invalid decisions migrations", "horizon_s usd_per_hour since_s work_s behind_s all_work_s")
)

# A span of time in which a phase held the same share of the same nodes.
SPAN = np.dtype(fields("member what iteration nodes", "start_s end_s switch_s share"))


class Groups(NamedTuple):
    """E groups side by side, of at most M members on N nodes (the training nodes count as one), K iterations and L spans. A
    iterations of a member may be on their way: `MOST_AHEAD` where members may be stale.

    Attributes:
        groups, clocks: (E,). members, progress: (E, M). last: (E, N) the member that each node last ran, or -1.
        durations: (E, M, 4, K) sampled for each iteration: factors of rollout and training, threshold, stretch.
        history: (E, L) the latest spans, a ring.
        syncs: (E, M, A, 3) of the latest iterations, a ring: when the sync ends, its stamp, and when it would have ended alone.
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
    """Empty tables; `stale` where members may be."""
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
    """What the simulation needs of tails: the share that one keeps, the speed beside one, seconds of its move."""

    share: float
    rate: float
    move_s: float
