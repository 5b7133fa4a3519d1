"""The observation of a decision: its columns by name, its arrays, and its Gymnasium space."""

from __future__ import annotations

from typing import NamedTuple

from gymnasium import spaces

from rollmux_env.envs.observations import Widths, space_of, table_of
from rollmux_env.kernel.feature_tables import Observations

# Seconds are in units of the longest member's planned iteration, as x / (1 + |x|). "Its nodes": those of the row's phase.
# Iterations are those of a member alone: of a stale one, T_solo.
GROUP_FEATURES = (
    "members",  # as n / (1 + n)
    "training load",  # expected trainings over the largest of all loads and iterations
    "rollout load",  # the most loaded rollout node's
    "iteration",  # the longest one
    "against plan",  # mean of expected over planned iterations, capped at 2, halved
)
ROW_FEATURES = (
    "wait",  # the row that does nothing now
    "rollout",  # the phase that would start
    "training",
    "tail",  # the rollout whose tail would migrate
    "in turn",  # nobody comes before it in strict round robin
    "round robin",  # what strict round robin with migration does now
    "seconds",  # expected, of a tail what is left of the rollout; of the row that waits, until something ends
    "other phase",  # expected seconds of the member's other phase
    "slack",  # SLO * seconds of its own phases - time since it joined
    "relative slack",  # the same over SLO * own seconds plus a unit
    "overtaken",  # over the members
    "younger",  # how many phases waited longer for its nodes, over the members
    "rivals",  # expected seconds of what else waits for its nodes
    "shortest rival",
    "rival's slack",  # the least one
    "next in",  # expected seconds until another phase wants its nodes; 1 where none will
    "next for",  # expected seconds of that phase
    "next one's slack",
    "nodes",  # share of the group's rollout nodes
    "training free",  # expected seconds until no training waits or runs, less what the row's rollout takes
    "beside a tail",
    "lead",  # meta-iterations ahead of the slowest that shares its nodes
    "run",  # of a tail: elapsed over expected seconds
)
STATE_FEATURES = (
    "waiting rollouts",  # over the members
    "waiting trainings",
    "training left",  # expected seconds of the training that runs
    "busy nodes",  # share of the rollout nodes
    "tails",
    "least slack",
    "mean slack",
    "next end",  # expected seconds until a running phase ends; 1 where nothing runs
)
# Where members may be stale, after the others of their kind.
STALE_GROUP_FEATURES = ("stale members",)  # their share
STALE_ROW_FEATURES = (
    "staleness",  # as e / (1 + e)
    "sampled",  # rollouts that are over whose trainings are not, over 1 + e
    "other left",  # expected seconds of what the member runs on the other side
    "holds up",  # the member neither runs nor waits for anything on the other side; so it is on-policy
)
STALE_STATE_FEATURES = ("sampled",)  # the members' mean


class Names(NamedTuple):
    """The columns of an observation: of the group, of a row, and of the state."""

    job: tuple[str, ...]
    candidates: tuple[str, ...]
    cluster: tuple[str, ...]


ON_POLICY = Names(GROUP_FEATURES, ROW_FEATURES, STATE_FEATURES)
STALE = Names(GROUP_FEATURES + STALE_GROUP_FEATURES, ROW_FEATURES + STALE_ROW_FEATURES, STATE_FEATURES + STALE_STATE_FEATURES)


def observation_space(members: int, stale: bool) -> spaces.Dict:
    """The space of one group's observations, of so many members at most, any of which may be stale or none."""
    return space_of(_widths(members, stale))


def observation_table(envs: int, members: int, stale: bool) -> Observations:
    """Arrays for E observations of A rows, 1 + members or, where members may be stale, 1 + 2 * members: `actions` says of what.

    job: (E, Fj) of the group. candidates: (E, A, Fc). cluster: (E, Fk) of its state. mask: (E, A) int8.
    """
    return table_of(envs, _widths(members, stale))


def _widths(members: int, stale: bool) -> Widths:
    names = STALE if stale else ON_POLICY
    return Widths(1 + members * (1 + stale), len(names.job), len(names.candidates), len(names.cluster))
