"""Records of groups side by side: what a dispatch policy may see, and what only the simulation knows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Records = Any  # a structured array or a row of one, as compiled code reads them by attribute

NOTHING, ROLLOUT, TRAINING, TAIL, SYNC = 0, 1, 2, 3, 4
TRAINING_POOL = 1  # bit 0 stands for all training nodes, bit n + 1 for rollout node n
MOST_NODES = 61


def _record(whole: str, real: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in whole.split()] + [(name, np.float64) for name in real.split()])


# A member as a dispatch policy may see it; rows are in order of admission. `rollmux_env.scheduler.dispatcher` has the same.
#   nodes: its rollout nodes, a bit each       turn_rollout, turn_training: meta-iteration of the next phase of the kind
#   waits: NOTHING, ROLLOUT or TRAINING        number, overtaken: of the phase that waits
#   runs: NOTHING, ROLLOUT, TRAINING or TAIL   since_s: when that began   passed: its rollout is past the threshold
#   rollout_s, training_s: expected, seconds   planned_rollout_s, planned_training_s: worst cases
#   sync_s, slo, joined_s                      own_s: seconds of its finished phases
MEMBER = _record(
    "nodes turn_rollout turn_training waits number overtaken runs passed",
    "since_s rollout_s training_s planned_rollout_s planned_training_s sync_s slo joined_s own_s",
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
RUNNER = _record(
    "stamp next rollout_is_cold training_is_cold iteration rollouts_done trainings_done",
    "until_s base_rollout_s base_training_s rollout_warm_s rollout_cold_s training_warm_s training_cold_s rate left_s tail_s "
    "went_s began_s start_s switch_s sum_rollout_s sum_training_s solo_s ended_s behind_s",
)

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
    """E groups side by side, of at most M members on N nodes (the training nodes count as one), K iterations and L spans.

    Attributes:
        groups, clocks: (E,). members, runners: (E, M). last: (E, N) the member that each node last ran, or -1.
        luck: (E, M, 4, K) of each iteration: factors of rollout and training, threshold, stretch.
        history: (E, L) the latest spans, a ring.
    """

    groups: Records
    clocks: Records
    members: Records
    runners: Records
    last: NDArray[np.int64]
    luck: NDArray[np.float64]
    history: Records


def group_tables(envs: int, members: int, nodes: int, iterations: int, spans: int = 128) -> Groups:
    """Empty tables."""
    return Groups(
        groups=np.zeros(envs, dtype=GROUP),
        clocks=np.zeros(envs, dtype=CLOCK),
        members=np.zeros((envs, members), dtype=MEMBER),
        runners=np.zeros((envs, members), dtype=RUNNER),
        last=np.zeros((envs, nodes), dtype=np.int64),
        luck=np.zeros((envs, members, 4, iterations)),
        history=np.zeros((envs, spans), dtype=SPAN),
    )
