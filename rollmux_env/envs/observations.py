"""Observations of all environments: of what a decision is about, of each row that may be chosen, of the whole, and the mask."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from rollmux_env.kernel.feature_tables import Observations


class Widths(NamedTuple):
    """How wide an observation is.

    Attributes:
        rows: A, that may be chosen. job, candidate, cluster: Fj, Fc and Fk, features of what is decided about, of a row, and of the
            whole.
    """

    rows: int
    job: int
    candidate: int
    cluster: int


def space_of(widths: Widths) -> spaces.Dict:
    """The space of one stream's observations."""
    return spaces.Dict(
        {
            "job": _unit(widths.job),
            "candidates": _unit(widths.rows, widths.candidate),
            "cluster": _unit(widths.cluster),
            "mask": spaces.Box(0, 1, (widths.rows,), np.int8),
        }
    )


def table_of(streams: int, widths: Widths) -> Observations:
    """Arrays for E observations, which compiled code writes: job (E, Fj), candidates (E, A, Fc), cluster (E, Fk), mask (E, A)."""
    return Observations(
        job=np.zeros((streams, widths.job), dtype=np.float32),
        candidates=np.zeros((streams, widths.rows, widths.candidate), dtype=np.float32),
        cluster=np.zeros((streams, widths.cluster), dtype=np.float32),
        mask=np.zeros((streams, widths.rows), dtype=np.int8),
    )


def _unit(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, np.float32)
