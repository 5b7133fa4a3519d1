"""Notes below tables that say what the exact yardsticks minimise, and which policies are below them."""

from __future__ import annotations

from collections.abc import Sequence

from rollmux_env.bench.comparison import ComparisonRow

_ROUNDING = 1e-9  # relative tolerance


def yardstick_notes(tables: Sequence[Sequence[ComparisonRow]]) -> list[str]:
    """Return a note for each of `optimal` and `optimal-work` that is in the tables.

    Args:
        tables: Rows of each table, such as those of each point of a sweep.
    """
    policies = dict.fromkeys(row.policy for rows in tables for row in rows)
    return [_note(policy, tables) for policy in policies if policy.partition(",")[0] in ("optimal", "optimal-work")]


def _note(yardstick: str, tables: Sequence[Sequence[ComparisonRow]]) -> str:
    of_work = yardstick.startswith("optimal-work") or "objective=work" in yardstick
    below = [row for rows in tables for row in _below(yardstick, rows, of_work)]
    keeping = dict.fromkeys(row.policy for row in below if row.slo_attainment.mean == 1)
    breaking = dict.fromkeys(row.policy for row in below if row.policy not in keeping)
    note = f"{yardstick}: least {'$/work-h' if of_work else '$/h'} now, regrouped for free"
    note += f", no bound: {', '.join(keeping)} {'have' if len(keeping) > 1 else 'has'} less" if keeping else ""
    verb = "have less and break" if len(breaking) > 1 else "has less and breaks"
    return note + (f"; {', '.join(breaking)} {verb} SLOs" if breaking else "")


def _below(yardstick: str, rows: Sequence[ComparisonRow], of_work: bool) -> list[ComparisonRow]:
    """Return the rows whose figure is below that of a yardstick."""
    figures = {row.policy: (row.usd_per_work_hour if of_work else row.cost_usd).mean for row in rows}
    return [row for row in rows if figures[row.policy] < figures[yardstick] * (1 - _ROUNDING)]
