"""The observation of a decision, as a Gymnasium space."""

from __future__ import annotations

from gymnasium import spaces

from rollmux_env.envs.observations import Widths, space_of, table_of
from rollmux_env.kernel.feature_tables import Observations
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    CLUSTER_FEATURES,
    JOB_FEATURES,
    MOVE_FEATURES,
    PLACE_FEATURES,
    SHAPE_FEATURES,
)


def candidate_names(moves: bool, shapes: bool = False) -> tuple[str, ...]:
    """Names of the candidates' features, in order; with `shapes`, of streams in which jobs have several."""
    return (CANDIDATE_FEATURES + MOVE_FEATURES if moves else PLACE_FEATURES) + (SHAPE_FEATURES if shapes else ())


def observation_space(candidates: int, names: tuple[str, ...]) -> spaces.Dict:
    """The space of one stream's observations, with these features of candidates."""
    return space_of(_widths(candidates, names))


def observation_table(streams: int, candidates: int, names: tuple[str, ...]) -> Observations:
    """Arrays for the observations of E streams, which the kernel writes."""
    return table_of(streams, _widths(candidates, names))


def _widths(candidates: int, names: tuple[str, ...]) -> Widths:
    return Widths(candidates, len(JOB_FEATURES), len(names), len(CLUSTER_FEATURES))
