"""A co-execution group, and many of them as records: what a dispatch policy may see, and what only the simulation knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster_keys import Cluster
from rollmux_env.errors import InputError
from rollmux_env.job_keys import Job
from rollmux_env.kernel.tables import Records
from rollmux_env.network_keys import refuse_network
from rollmux_env.queue_keys import refuse_queue_keys
from rollmux_env.timing.migration import Migration

NOTHING, ROLLOUT, TRAINING, TAIL, SYNC = 0, 1, 2, 3, 4
TRAINING_POOL = 1  # bit 0 stands for all training nodes, bit n + 1 for rollout node n
MOST_NODES = 61
ABSENT = 1 << 62  # turn of a member that has no rollout to come, as in `rollmux_env.scheduler.members`
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


def _record(whole: str, real: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in whole.split()] + [(name, np.float64) for name in real.split()])


# A member as a dispatch policy may see it; rows are in order of admission. `rollmux_env.scheduler.members` has the same.
#   nodes: its rollout nodes, a bit each       turn_rollout, turn_training: meta-iteration of the next phase of the kind
#   waits: NOTHING, ROLLOUT or TRAINING        number, overtaken: of the phase that waits
#   runs: NOTHING, ROLLOUT, TRAINING or TAIL   since_s: when that began   passed: its rollout is past the threshold
#   rollout_s, training_s: expected, seconds   planned_rollout_s, planned_training_s: worst cases
#   sync_s, slo, joined_s                      own_s: seconds that its finished phases take alone
# Of a member of a staleness above 0 these are about its rollouts; its trainings go on beside them:
#   beside_waits, beside_runs: 1 where one does   beside_number, beside_overtaken, beside_since_s: as above
MEMBER = _record(
    "nodes turn_rollout turn_training waits number overtaken runs passed staleness "
    "beside_waits beside_number beside_overtaken beside_runs",
    "since_s rollout_s training_s planned_rollout_s planned_training_s sync_s slo joined_s own_s beside_since_s",
)

# A group as a dispatch policy may see it: members, nodes that run a full phase, nodes of which a tail holds a share, the clock.
GROUP = _record("n busy tails", "now_s")

# A member as the simulation runs it.
#   until_s, stamp, next: when what comes next, and which of what comes together is first
#   base_*_s: the phases' worst cases as placed   *_warm_s, *_cold_s: switches   *_is_cold: not yet started here
#   begun: its iteration has had its rollout   rate, left_s, tail_s, went_s: of a rollout, from `went_s` on, as in the event replay
#   began_s: of the phase   start_s, switch_s: of the span in hand, and how long it only switches
#   *s_done, sum_*_s: finished phases   iteration   solo_s: of finished iterations, alone   ended_s: the last one's end
#   behind_s: how far it was behind its SLO then
PROGRESS = _record(
    "stamp next rollout_is_cold training_is_cold iteration rollouts_done trainings_done",
    "until_s base_rollout_s base_training_s rollout_warm_s rollout_cold_s training_warm_s training_cold_s rate left_s tail_s "
    "went_s began_s start_s switch_s sum_rollout_s sum_training_s solo_s ended_s behind_s",
)

# A stale member as the simulation runs it, beside its rollouts.
#   sampled, trained: rollouts and trainings that are over   until_s, stamp: when its training ends, as above
#   began_s, switch_s: of the training   sampled_s, trained_s: when those of its last iteration would have ended alone
PIPELINE = _record("stamp sampled trained", "until_s began_s switch_s sampled_s trained_s")

# A group as the simulation runs it.
#   over: 1 at the end of the episode, horizon_s   stamps, requests, spans: counters   invalid: the last action was masked
#   work_s, behind_s: T_solo seconds done, and lost against SLOs, in the interval since the last decision at since_s
#   all_work_s, decisions, migrations: since the beginning
CLOCK = _record(
    "over stamps requests spans invalid decisions migrations",
    "horizon_s usd_per_hour since_s work_s behind_s all_work_s",
)

# A span of time in which a phase held the same share of the same nodes.
SPAN = _record("member what iteration nodes", "start_s end_s switch_s share")


class Groups(NamedTuple):
    """E groups side by side, of at most M members on N nodes (the training nodes count as one), K iterations and L spans. S is M
    where members may be stale, else 0.

    Attributes:
        groups, clocks: (E,). members, progress: (E, M). last: (E, N) the member that each node last ran, or -1.
        durations: (E, M, 4, K) sampled for each iteration: factors of rollout and training, threshold, stretch.
        history: (E, L) the latest spans, a ring.
        pipelines: (E, S). syncs: (E, S, MOST_AHEAD, 3) of the latest iterations, a ring: when the sync ends, its stamp, and when it
            would have ended alone.
    """

    groups: Records
    clocks: Records
    members: Records
    progress: Records
    last: NDArray[np.int64]
    durations: NDArray[np.float64]
    history: Records
    pipelines: Records
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
        pipelines=np.zeros((envs, members * stale), dtype=PIPELINE),
        syncs=np.zeros((envs, members * stale, MOST_AHEAD, 3)),
    )


class TailParameters(NamedTuple):
    """What the simulation needs of tails: the share that one keeps, the speed beside one, seconds of its move."""

    share: float
    rate: float
    move_s: float
