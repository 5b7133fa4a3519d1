"""Features of dollars and work from now on, and of rows of moves: see `rollmux_env.kernel.features`."""

from __future__ import annotations

from typing import Any

from rollmux_env.kernel.compiled import uncounted
from rollmux_env.kernel.features import CANDIDATE_FEATURES, PLACE_FEATURES, Out, signed, squash, unit
from rollmux_env.kernel.horizons import HORIZONS_H, N_HORIZONS
from rollmux_env.kernel.membership import departure_s
from rollmux_env.kernel.rows import EXCHANGE, MERGER, MOVE, MOVES_MOST, NEW_GROUP
from rollmux_env.kernel.tables import Floats, GroupTable, JobTable, Limits

_VALUES = len(PLACE_FEATURES)
_MOVES = len(CANDIDATE_FEATURES)


@uncounted
def value_features(before: Floats, more: Floats, unit_usd: float, work_usd: float, out: Out) -> None:
    """Write `VALUE_FEATURES` of a row.

    Args:
        before, more: (N_VALUES,) what the groups concerned come to, and how that changes: `rollmux_env.kernel.horizons`.
        unit_usd: $/h. work_usd: worth of a work-hour, $.
    """
    for h in range(N_HORIZONS):
        per_unit = 1.0 / (unit_usd * HORIZONS_H[h]) if unit_usd > 0.0 else 0.0
        out[_VALUES + h] = signed(before[h] * per_unit)
        out[_VALUES + N_HORIZONS + h] = signed(more[h] * per_unit)
        out[_VALUES + 2 * N_HORIZONS + h] = signed(more[N_HORIZONS + h] * work_usd * per_unit)


@uncounted
def move_features(
    jobs: JobTable,
    groups: GroupTable,
    limits: Limits,
    now_s: float,
    known_stays: bool,
    unit_usd: float,
    work_usd: float,
    choice: Any,
    out: Out,
) -> None:
    """Write `CANDIDATE_FEATURES` and `MOVE_FEATURES` of a row of moves, a record of `rollmux_env.kernel.rows.choice_type`."""
    out[:] = 0.0
    out[0] = 1.0
    if choice.n_moves == 0:
        return
    per_unit = 1.0 / unit_usd if unit_usd > 0.0 else 0.0
    new = asked = 0
    for k in range(choice.n_moves):
        new += choice.new_nodes[k]
        asked += jobs.rollout_nodes[choice.job[k]]
        if choice.group[k] == NEW_GROUP:
            out[3] = 1.0
    job = choice.job[0]
    home = jobs.group[job]
    solo = jobs.solo_s[job]
    out[1] = unit(choice.usd * per_unit)
    out[2] = new / asked
    out[4] = 1.0 - solo / choice.period_s
    value_features(choice.before, choice.more, unit_usd, work_usd, out)
    out[_MOVES] = signed(choice.gain * per_unit)
    out[_MOVES + 1] = signed(choice.price * per_unit)
    out[_MOVES + 2] = choice.n_moves / MOVES_MOST
    out[_MOVES + 3] = 1.0 if choice.kind == MOVE else 0.0
    out[_MOVES + 4] = 1.0 if choice.kind == EXCHANGE else 0.0
    out[_MOVES + 5] = 1.0 if choice.kind == MERGER else 0.0
    out[_MOVES + 6] = groups.n_members[home] / limits.group_size_max
    out[_MOVES + 7] = 1.0 - solo / groups.period_s[home]
    out[_MOVES + 8] = squash(solo, 600.0)
    out[_MOVES + 9] = jobs.rollout_s[job] / solo
    out[_MOVES + 10] = 1.0 - solo / jobs.limit_s[job]
    out[_MOVES + 11] = squash(jobs.rollout_nodes[job], 4.0)
    out[_MOVES + 12] = squash(max(0.0, departure_s(jobs, groups, job) - now_s) / 3600.0, 24.0) if known_stays else 0.0
