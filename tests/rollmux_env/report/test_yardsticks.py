"""Tables say what the exact yardsticks minimise, and which policies have less."""

from __future__ import annotations

from rollmux_env.bench.comparison import ComparisonRow
from rollmux_env.bench.intervals import Mean
from rollmux_env.report.yardsticks import yardstick_notes


def row(policy: str, usd: float, usd_per_work_hour: float, slo_attainment: float = 1.0) -> ComparisonRow:
    one = Mean(1.0, None)
    slo = Mean(slo_attainment, None)
    return ComparisonRow(policy, Mean(usd, None), Mean(usd_per_work_hour, None), one, one, slo, None, one, None, one, one, {}, 0.0)


def test_a_table_without_yardsticks_has_no_note() -> None:
    assert yardstick_notes([[row("solo", 3, 3), row("rollmux", 2, 2)]]) == []


def test_a_yardstick_that_nothing_undercuts() -> None:
    rows = [row("solo", 3, 3), row("optimal,node_limit=1", 2, 2), row("optimal-work", 2 + 1e-12, 2)]
    assert yardstick_notes([rows]) == [
        "optimal,node_limit=1: least $/h now, regrouped for free",
        "optimal-work: least $/work-h now, regrouped for free",
    ]


def test_policies_that_have_less_are_named() -> None:
    rows = [
        row("consolidate", 2, 1),
        row("rollmux", 1, 3),
        row("random", 1, 1, 0.4),
        row("optimal", 3, 1),
        row("optimal-work", 3, 2),
    ]
    assert yardstick_notes([rows]) == [
        "optimal: least $/h now, regrouped for free, no bound: consolidate, rollmux have less; random has less and breaks SLOs",
        "optimal-work: least $/work-h now, regrouped for free, no bound: consolidate, optimal have less; "
        "random has less and breaks SLOs",
    ]


def test_one_point_of_a_sweep_is_enough() -> None:
    points = [[row("consolidate", usd, 1), row("optimal", 3, 1)] for usd in (4, 2)]
    assert yardstick_notes(points) == ["optimal: least $/h now, regrouped for free, no bound: consolidate has less"]
