"""The observation of a decision, as a Gymnasium space."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

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
    return spaces.Dict(
        {
            "job": _unit(len(JOB_FEATURES)),
            "candidates": _unit(candidates, len(names)),
            "cluster": _unit(len(CLUSTER_FEATURES)),
            "mask": spaces.Box(0, 1, (candidates,), np.int8),
        }
    )


def observation_table(streams: int, candidates: int, names: tuple[str, ...]) -> Observations:
    """Arrays for the observations of E streams, which the kernel writes."""
    return Observations(
        job=np.zeros((streams, len(JOB_FEATURES)), dtype=np.float32),
        candidates=np.zeros((streams, candidates, len(names)), dtype=np.float32),
        cluster=np.zeros((streams, len(CLUSTER_FEATURES)), dtype=np.float32),
        mask=np.zeros((streams, candidates), dtype=np.int8),
    )


def _unit(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, np.float32)
