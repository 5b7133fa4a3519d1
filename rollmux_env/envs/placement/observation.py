"""Observations of a placement decision: names and values of the features."""

from __future__ import annotations

from rollmux_env.envs.placement.types import ADMIT, CONSOLIDATE, Rules, Streams, view_of
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Names, Observations, Workspace, begin_places, begin_values, place_features
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    CLUSTER_FEATURES,
    JOB_FEATURES,
    MOVE_FEATURES,
    PLACE_FEATURES,
    SHAPE_FEATURES,
    Out,
    cluster_features,
    move_features,
)
from rollmux_env.kernel.neighbourhood.table import Scratch
from rollmux_env.kernel.tables import Records, View
from rollmux_env.kernel.valuation import present_rates, work_price

_PLACES, _CANDIDATES, _ROWS = len(PLACE_FEATURES), len(CANDIDATE_FEATURES), len(CANDIDATE_FEATURES + MOVE_FEATURES)


def candidate_names(moves: bool, shapes: bool = False) -> tuple[str, ...]:
    """Return the names of the candidates' features in order. `shapes` adds those for streams whose jobs have several shapes."""
    return (CANDIDATE_FEATURES + MOVE_FEATURES if moves else PLACE_FEATURES) + (SHAPE_FEATURES if shapes else ())


def feature_names(moves: bool, shapes: bool) -> Names:
    """Return the names of all features, with the arguments of `candidate_names`."""
    return Names(JOB_FEATURES, candidate_names(moves, shapes), CLUSTER_FEATURES)


@compiled(arrays=False)
def _observe_places(
    streams: Streams, s: int, rules: Rules, choices: Records, workspace: Workspace, scratch: Scratch | None, out: Observations
) -> None:
    """Write the observation of a waiting job and its possible placements."""
    c = streams.clock[s]
    view = view_of(streams, s, rules.limits)
    job, known = c.admitted, rules.known_stays
    place = workspace.valuation.place[0]
    begin_places(view, known, job, workspace, out.job[s])
    if scratch is not None:
        begin_values(view, known, job, workspace)
    for k in range(c.choices):
        choice, row = choices[k], out.candidates[s, k]
        place.group, place.of_shape, place.new_nodes = choice.group[0], choice.of_shape[0], choice.new_nodes[0]
        place.usd, place.period_s = choice.usd, choice.period_s
        for v in range(len(place.nodes)):
            place.nodes[v] = choice.nodes[0, v]
        for v in range(_CANDIDATES if scratch is not None else len(row), len(row)):
            row[v] = 0.0
        place_features(view, known, job, place, workspace, scratch, _PLACES if scratch is None else _ROWS, row)


@compiled(arrays=False)
def _observe_moves(view: View, known_stays: bool, choices: Records, count: int, out: Out) -> None:
    """Write the observation of possible moves of running jobs."""
    rates = present_rates(view)
    unit_usd = rates[1] / max(rates[3], 1)
    for k in range(count):
        move_features(view, known_stays, unit_usd, work_price(rates), choices[k], out[k])


@compiled(arrays=False)
def observe(
    streams: Streams, s: int, rules: Rules, choices: Records, workspace: Workspace, scratch: Scratch | None, out: Observations
) -> None:
    """Write the observation of a decision."""
    c = streams.clock[s]
    view = view_of(streams, s, rules.limits)
    count = c.choices
    cluster_features(view, view.jobs[0].arrival_s, c.asks == CONSOLIDATE, out.cluster[s])
    for k in range(count):
        out.mask[s, k] = choices[k].allowed
    for v in range(out.job.shape[1]):
        out.job[s, v] = 0.0
    if c.asks == ADMIT:
        _observe_places(streams, s, rules, choices, workspace, scratch, out)
    elif scratch is not None and count > 0:
        _observe_moves(view, rules.known_stays, choices, count, out.candidates[s])
    for k in range(count, out.mask.shape[1]):
        out.mask[s, k] = 0
        for v in range(out.candidates.shape[2]):
            out.candidates[s, k, v] = 0.0
    if count == 0:
        out.mask[s, 0] = 1  # the episode is over, but sampling under the mask needs one allowed action
