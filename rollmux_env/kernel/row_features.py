"""Features of dollars and work from now on, and of rows of moves: see `rollmux_env.kernel.features`."""

from __future__ import annotations

from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.features import (
    CANDIDATE_FEATURES,
    IS_ROW,
    MOVE_FEATURES,
    NEW_GROUP,
    NEW_NODES,
    PLACE_FEATURES,
    PRICE,
    STRETCH,
    Out,
    shape_features,
    signed,
    squash,
    unit,
)
from rollmux_env.kernel.membership import departure_s, shape_row
from rollmux_env.kernel.neighbourhood.table import EXCHANGE, MERGER, MOVE, MOVES_MOST
from rollmux_env.kernel.neighbourhood.table import NEW_GROUP as IN_NEW_GROUP
from rollmux_env.kernel.tables import Floats, Records, View
from rollmux_env.kernel.valuation import HORIZONS_H, N_HORIZONS

_VALUES, _ROWS = len(PLACE_FEATURES), len(CANDIDATE_FEATURES + MOVE_FEATURES)
(
    _GAIN,
    _HELD,
    _MOVED,
    _IS_MOVE,
    _IS_EXCHANGE,
    _IS_MERGER,
    _LEAVES_MEMBERS,
    _NOW_STRETCH,
    _SOLO,
    _ROLLOUT_SHARE,
    _TOLERATED,
    _ROLLOUT_NODES,
    _REMAINING,
) = range(len(CANDIDATE_FEATURES), len(CANDIDATE_FEATURES) + 13)


@compiled(arrays=False)
def value_features(before: Floats, more: Floats, unit_usd: float, work_usd: float, out: Out) -> None:
    """Write `VALUE_FEATURES` of a row.

    Args:
        before, more: (N_VALUES,) what the groups concerned come to, and how that changes: `rollmux_env.kernel.valuation`.
        unit_usd: $/h. work_usd: worth of a work-hour, $.
    """
    for h in range(N_HORIZONS):
        per_unit = 1.0 / (unit_usd * HORIZONS_H[h]) if unit_usd > 0.0 else 0.0
        out[_VALUES + h] = signed(before[h] * per_unit)
        out[_VALUES + N_HORIZONS + h] = signed(more[h] * per_unit)
        out[_VALUES + 2 * N_HORIZONS + h] = signed(more[N_HORIZONS + h] * work_usd * per_unit)


@compiled(arrays=False)
def move_features(view: View, known_stays: bool, unit_usd: float, work_usd: float, choice: Records, out: Out) -> None:
    """Write `CANDIDATE_FEATURES` and `MOVE_FEATURES` of a row of moves, and where there is room `SHAPE_FEATURES` of the first move.

    Args:
        unit_usd: mean price of the running jobs' own nodes, $/h. work_usd: worth of a work-hour, $.
        choice: a record of `rollmux_env.kernel.neighbourhood.table.choice_type`.
    """
    for k in range(len(out)):
        out[k] = 0.0
    out[IS_ROW] = 1.0
    if choice.n_moves == 0:
        return
    per_unit = 1.0 / unit_usd if unit_usd > 0.0 else 0.0
    new = asked = 0
    for k in range(choice.n_moves):
        new += choice.new_nodes[k]
        moved = choice.job[k]
        asked += view.jobs[shape_row(view.jobs[moved], moved, choice.of_shape[k])].rollout_nodes
        if choice.group[k] == IN_NEW_GROUP:
            out[NEW_GROUP] = 1.0
    row = choice.job[0]
    job = view.jobs[row]
    home = view.groups[job.group]
    solo = job.solo_s
    out[PRICE] = unit(choice.usd * per_unit)
    out[NEW_NODES] = new / max(asked, 1)
    out[STRETCH] = 1.0 - solo / choice.period_s
    value_features(choice.before, choice.more, unit_usd, work_usd, out)
    out[_GAIN] = signed(choice.gain * per_unit)
    out[_HELD] = signed(choice.price * per_unit)
    out[_MOVED] = choice.n_moves / MOVES_MOST
    out[_IS_MOVE] = 1.0 if choice.kind == MOVE else 0.0
    out[_IS_EXCHANGE] = 1.0 if choice.kind == EXCHANGE else 0.0
    out[_IS_MERGER] = 1.0 if choice.kind == MERGER else 0.0
    out[_LEAVES_MEMBERS] = home.n_members / view.limits.group_size_max
    out[_NOW_STRETCH] = 1.0 - solo / home.period_s
    out[_SOLO] = squash(solo, 600.0)
    out[_ROLLOUT_SHARE] = job.rollout_s / solo
    out[_TOLERATED] = 1.0 - solo / job.limit_s
    out[_ROLLOUT_NODES] = squash(job.rollout_nodes, 4.0)
    left_s = max(0.0, departure_s(view.jobs, view.groups, row) - view.clock.now_s)
    out[_REMAINING] = squash(left_s / 3600.0, 24.0) if known_stays else 0.0
    if len(out) > _ROWS:
        shape_features(view, shape_row(job, row, choice.of_shape[0]), out, _ROWS)
