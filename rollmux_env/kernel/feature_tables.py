"""Observations of a decision: of one of many streams, or of a candidate table."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.candidates import ANY_NODES
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    SHARED,
    Out,
    candidate_features,
    cluster_features,
    job_features,
    move_features,
    shape_features,
    shared_features,
    value_features,
)
from rollmux_env.kernel.membership import shape_row
from rollmux_env.kernel.neighbourhood.enumerate import enumerate_moves
from rollmux_env.kernel.neighbourhood.table import Scratch, write_stop
from rollmux_env.kernel.pools import own_usd
from rollmux_env.kernel.tables import Floats, Records, View
from rollmux_env.kernel.valuation import (
    N_VALUES,
    Valuation,
    make_valuation,
    present_rates,
    value_group,
    value_members,
    value_now,
    work_price,
    write_stay,
    write_stays,
)

_CANDIDATES = len(CANDIDATE_FEATURES)
_NONE_YET = -2  # in place of a row of a group, which is negative for a new one


class Observations(NamedTuple):
    """Observations of a learner: (E, ...) numbers as `rollmux_env.kernel.features` defines them, and the mask."""

    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]
    mask: NDArray[np.int8]


class Names(NamedTuple):
    """Names of the columns of an observation: of what is decided about, of a row that may be chosen, and of the whole."""

    job: tuple[str, ...]
    candidates: tuple[str, ...]
    cluster: tuple[str, ...]


def observation_table(streams: int, rows: int, names: Names) -> Observations:
    """Return arrays for E observations: job (E, Fj), candidates (E, A, Fc), cluster (E, Fk), mask (E, A)."""
    return Observations(
        job=np.zeros((streams, len(names.job)), dtype=np.float32),
        candidates=np.zeros((streams, rows, len(names.candidates)), dtype=np.float32),
        cluster=np.zeros((streams, len(names.cluster)), dtype=np.float32),
        mask=np.zeros((streams, rows), dtype=np.int8),
    )


def columns(names: Sequence[str]) -> Any:
    """Return the numbers of columns by name, a constant for compiled code: `out[columns(names).next_end]` for `next end`."""
    words = (re.sub(r"\W+", "_", name.replace("'", "")).strip("_") for name in names)
    return namedtuple("Columns", [f"at_{word}" if word[0].isdigit() else word for word in words])(*range(len(names)))


class Workspace(NamedTuple):
    """Scratch for the features of places, one after the other.

    Attributes:
        valuation: Stays, terms and scratch to value groups.
        shared: (1,) record of `SHARED`, for the present group.
        base: (N_VALUES,) values of the present group without the job.
    """

    valuation: Valuation
    shared: Records
    base: Floats


def make_workspace(jobs: Records, groups: Records) -> Workspace:
    """Return scratch for tables like these records."""
    nodes = groups.dtype["node_number"].shape[0]
    valuation = make_valuation(len(jobs), nodes, jobs.dtype["pins"].shape[0])
    return Workspace(valuation, np.zeros(1, SHARED), np.zeros(N_VALUES))


@compiled(arrays=False)
def begin_values(view: View, known_stays: bool, job: int, workspace: Workspace) -> None:
    """Write how long the running jobs and a waiting one stay, and what counts in its decision."""
    rates = present_rates(view)
    stays, terms, asks = workspace.valuation.stays, workspace.valuation.terms[0], view.jobs[job]
    write_stays(view, known_stays, stays)
    for shape in range(1 + asks.more_shapes):
        stay = stays[shape_row(asks, job, shape)]
        stay.pause_h = 0.0
        write_stay(stay, asks.solo_s, asks.duration_s, asks.iterations, 0.0, 0.0, known_stays)
    terms.work_usd = work_price((rates[0] + own_usd(asks, view.limits), rates[1], rates[2] + 1.0, rates[3]))
    terms.migration_h = 0.0


@compiled(arrays=False)
def begin_group(view: View, group: int, workspace: Workspace) -> None:
    """Value a group as it is, for the places in it; a new one is nothing yet."""
    if group < 0:
        for k in range(len(workspace.base)):
            workspace.base[k] = 0.0
        value_members(view, workspace.valuation, group, 0.0)
    else:
        value_now(view, workspace.valuation, group, workspace.base)


@compiled(arrays=False, inline=True)
def place_values(view: View, job: int, place: Records, workspace: Workspace, out: Out) -> None:
    """Write `VALUE_FEATURES` of a place of a waiting job, after `begin_group` of its group.

    Args:
        view: Tables of the cluster.
        job: Row of the job, or of one of its shapes.
        place: Record of `rollmux_env.kernel.candidates.candidate_type`.
        workspace: Scratch for the features of places.
        out: Row of features; written.
    """
    asks = view.jobs[job]
    written = asks if asks.more_shapes == 0 else view.jobs[asks.first_shape]
    valuation, base = workspace.valuation, workspace.base
    values = valuation.values
    if place.period_s != valuation.members[0].period_s:
        value_members(view, valuation, place.group, place.period_s)
    value_group(view, valuation, place.group, job, place, values)
    for v in range(len(base)):
        values[v] -= base[v]
    value_features(base, values, own_usd(written, view.limits), valuation.terms[0].work_usd, out)


@compiled(arrays=False)
def begin_places(view: View, known_stays: bool, job: int, workspace: Workspace, out: Out) -> None:
    """Write the features of a waiting job, and prepare for those of its places."""
    asks, shared = view.jobs[job], workspace.shared[0]
    shared.stay_s = min(asks.duration_s, asks.iterations * asks.solo_s) if known_stays else 0.0
    shared.group = shared.row = _NONE_YET
    job_features(asks, view.limits, shared.stay_s, out)


@compiled(arrays=False, inline=True)
def place_features(
    view: View, known_stays: bool, job: int, place: Records, workspace: Workspace, values: Any, shapes_from: int, out: Out
) -> None:
    """Write the features of a waiting job's next place.

    Args:
        view: Tables of the cluster.
        known_stays: Whether it is known when jobs leave.
        job: Row of the job.
        place: Record of `rollmux_env.kernel.candidates.candidate_type`.
        workspace: Scratch for the features of places.
        values: Values to start from, after a call of `begin_values`; None if there are no columns of dollars and work.
        shapes_from: First column of the features of shapes, if `out` has room for them.
        out: Row of features; written.
    """
    shared, row = workspace.shared[0], shape_row(view.jobs[job], job, place.of_shape)
    if values is not None and place.group != shared.group:
        begin_group(view, place.group, workspace)
    if place.group != shared.group or row != shared.row:
        shared_features(view, known_stays, row, place.group, shared)
    candidate_features(view, row, place, shared, out)
    if values is not None:
        place_values(view, row, place, workspace, out)
    if len(out) > shapes_from:
        shape_features(view, row, out, shapes_from)


@compiled(arrays=False)
def features_of_places(
    view: View, known_stays: bool, first_s: float, job: int, rows: Records, workspace: Workspace, out: Observations
) -> None:
    """Write the features of a waiting job's candidates as those of the first stream, with those of shapes if there is room.

    Args:
        view: Tables of the cluster.
        known_stays: Whether it is known when jobs leave.
        first_s: Time of the first arrival, seconds.
        job: Row of the job.
        rows: (R,) records of `rollmux_env.kernel.candidates.candidate_type`.
        workspace: Scratch for the features of places.
        out: Observations; written.
    """
    begin_places(view, known_stays, job, workspace, out.job[0])
    cluster_features(view, first_s, False, out.cluster[0])
    begin_values(view, known_stays, job, workspace)
    for k in range(len(rows)):
        if rows[k].new_nodes != ANY_NODES:
            place_features(view, known_stays, job, rows[k], workspace, workspace.base, _CANDIDATES, out.candidates[0, k])


@compiled(arrays=False)
def features_of_moves(
    view: View, known_stays: bool, unit_usd: float, valuation: Valuation, scratch: Scratch, choices: Records, out: Out
) -> tuple[int, int]:
    """Write `stop`, the rows of moves, and their features.

    Args:
        view: Tables of the cluster.
        known_stays: Whether it is known when jobs leave.
        unit_usd: Mean price of the running jobs' own nodes, $/h.
        valuation: Stays, which are written here, terms and scratch.
        scratch: Scratch of `enumerate_moves`, whose result is returned.
        choices: (A,) records of choices; written.
        out: (A, F) features; written.
    """
    write_stop(choices[0])
    write_stays(view, known_stays, valuation.stays)
    count, total = enumerate_moves(view, valuation, scratch, choices)
    for k in range(count + 1):
        move_features(view, known_stays, unit_usd, valuation.terms[0].work_usd, choices[k], out[k])
    return count, total
