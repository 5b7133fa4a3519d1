"""The observation of a decision: its columns by name, its arrays, and its Gymnasium space."""

from __future__ import annotations

from gymnasium import spaces

from rollmux_env.envs.observations import Widths, space_of, table_of
from rollmux_env.kernel.feature_tables import Observations

# Seconds are in units of the longest member's planned iteration, as x / (1 + |x|). "Its nodes": those of the row's phase.
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


def observation_space(rows: int) -> spaces.Dict:
    """The space of one group's observations with so many rows of choices."""
    return space_of(_widths(rows))


def observation_table(envs: int, rows: int) -> Observations:
    """Arrays for E observations of A rows: row 0 waits, row k + 1 does what member k wants.

    job: (E, Fj) of the group. candidates: (E, A, Fc). cluster: (E, Fk) of its state. mask: (E, A) int8.
    """
    return table_of(envs, _widths(rows))


def _widths(rows: int) -> Widths:
    return Widths(rows, len(GROUP_FEATURES), len(ROW_FEATURES), len(STATE_FEATURES))
