"""What a rollout policy sees at a decision, by name; `rollmux_env.envs.rollout.features` computes it."""

from __future__ import annotations

from gymnasium import spaces

from rollmux_env.envs.observations import Widths, space_of, table_of
from rollmux_env.envs.rollout.types import ROWS
from rollmux_env.kernel.feature_tables import Observations

JOB_FEATURES = (
    "gpus",
    "size",  # of the replicas now, log2 of their GPUs over 3
    "configured size",
    "responses a gpu",  # wanted, over the GPUs
    "group",  # responses to a prompt
    "known",  # lengths of earlier rollouts of this kind are remembered
    "median",  # remembered lengths, over the cap: quantiles and mean
    "80%",
    "95%",
    "longest",
    "mean",
    "tail",  # share of the longest remembered that the 80% are
    "long",  # the round runs what was put off
    "put off",  # prompts that wait, over those of an iteration
    "fixed",  # seconds of a decode step that are fixed, of those with half of the responses running
    "arithmetic",  # whether such a step is bound by arithmetic: its seconds over those of memory
)
ROW_FEATURES = (
    "keep",
    "launch spare",
    "rebalance",
    "migrate tail",
    "put off",
    "abort",
    "resize",
    "size",  # of the replicas after it
    "seconds",  # forecast of the rest after it, over what keep has
    "gain",  # those of keep less them, over keep's
    "held",  # share of the GPUs that is held after it
    "held seconds",  # forecast, times that share, over keep's
    "moved",  # share of the open responses that it moves
    "dropped",  # share of the open responses that it aborts
    "dropped tokens",  # over those of the open ones
    "rest",  # forecast seconds of the rest after it, over those and what the rollout has taken so far
)
STATE_FEATURES = (
    "launching",
    "finished",  # over those wanted
    "complete",  # prompts, over those wanted
    "open",  # over those launched
    "waiting",  # share of the open ones
    "cache",  # the fullest
    "uneven",  # most running on a replica, less the mean, over most
    "longest so far",  # of the open ones, over the cap
    "mean so far",
    "ahead",  # mean forecast tokens of the open ones, over the cap
    "longest ahead",
    "tail moved",
    "resized",
    "surplus prompts",  # share of those in hand
    "elapsed",  # seconds so far, over those and the forecast rest
    "switch",  # seconds of another size, over those and the forecast rest
)
# Behind these, where rewards take time.
JOB_REWARD_FEATURES = (
    "reward",  # seconds of one, over those and what the longest response decodes with half of the responses running
    "rewards",  # seconds of all that are wanted on the reward nodes, over the same
)
STATE_REWARD_FEATURES = (
    "rewards waiting",  # responses that have finished and whose reward has not ended, over those wanted
    "rewards ahead",  # seconds until the last of these ends, over those and the forecast rest
)


def feature_names(rewards: bool) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Names of the features of the job, of a row and of the rollout in hand."""
    if not rewards:
        return JOB_FEATURES, ROW_FEATURES, STATE_FEATURES
    return JOB_FEATURES + JOB_REWARD_FEATURES, ROW_FEATURES, STATE_FEATURES + STATE_REWARD_FEATURES


def observation_space(rewards: bool = False) -> spaces.Dict:
    """The space of one job's observations; of one whose rewards take time."""
    return space_of(_widths(rewards))


def observation_table(envs: int, rewards: bool = False) -> Observations:
    """Arrays for E observations: of the job, (E, Fj); of each row, (E, ROWS, Fc); of the rollout in hand, (E, Fk); and the mask."""
    return table_of(envs, _widths(rewards))


def _widths(rewards: bool) -> Widths:
    job, row, state = map(len, feature_names(rewards))
    return Widths(ROWS, job, row, state)
