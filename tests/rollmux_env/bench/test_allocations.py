"""The suite `areal-hex`: the paper's figures have their cells, budgets cost what is said, and gains are ratios of throughput."""

from __future__ import annotations

import pytest

from policies.makers import makers
from rollmux_env.allocation.allocation import GpuBudget, usd_per_hour
from rollmux_env.bench.suites.areal_hex import (
    AGAINST,
    ALL_H800,
    CASES,
    CHEAPER,
    GAIN,
    GAP,
    H20,
    H800,
    PLANNER,
    PRICE,
    RATE,
    SUITE,
    AllocationCase,
    GapCase,
    allocation_rows,
    columns,
)
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.work import IterationWork
from tests.conftest import Command


def test_every_figure_of_the_paper_has_its_cell() -> None:
    budgets = [case for case in CASES if isinstance(case, AllocationCase)]
    cells = {(case.label, row, column.heading) for case in budgets for row in case.rows for column in SUITE.columns}
    assert set(SUITE.paper) <= cells and len(SUITE.paper) == 30
    assert len({case.label for case in CASES}) == len(CASES)


def test_homogeneous_budgets_cost_no_more_than_the_mixture() -> None:
    for case in CASES:
        if isinstance(case, AllocationCase):
            usd = {row: usd_per_hour(budget) or 0 for row, (_, budget) in case.rows.items()}
            if "throughput" in case.label:
                assert (usd["hex"], usd[ALL_H800]) == pytest.approx((86.64, 126.72))
            elif "smaller" in case.label:
                assert (usd["hex"], usd[ALL_H800], usd[AGAINST[1]]) == pytest.approx((131.04, 126.72, 125.8))
            else:
                assert usd["hex"] == pytest.approx(171.12) and max(usd[base] for base in AGAINST) <= usd["hex"]


def test_the_goal_is_measured_at_16_24_and_32_gpus() -> None:
    assert {sum(case.budget.counts) for case in CASES if isinstance(case, GapCase)} == {16, 24, 32}


def test_gains_are_ratios_of_throughput_and_of_dollars() -> None:
    work = IterationWork(SHAPES["1.5B"], 256)
    rows = {"hex": ("hex", GpuBudget({H800: 4, H20: 4})), ALL_H800: ("exhaustive", GpuBudget({H800: 5}))}
    cases = (AllocationCase("one", work, rows, (ALL_H800,)), GapCase("two", (work,), GpuBudget({H800: 2, H20: 2})))
    measured = {(row.case, row.policy): row.figures for row in allocation_rows(cases, AGAINST, (), False, makers())}
    assert all(list(figures) == [column.heading for column in columns(AGAINST)] for figures in measured.values())
    mixed, alone = (
        {heading: mean.mean for heading, mean in measured["one", row].items() if mean is not None} for row in ("hex", ALL_H800)
    )
    assert mixed[GAIN.format(ALL_H800)] == pytest.approx(mixed[RATE] / alone[RATE])
    assert mixed[CHEAPER.format(ALL_H800)] == pytest.approx(mixed[RATE] / mixed[PRICE] * alone[PRICE] / alone[RATE])
    assert set(alone) == {RATE, PRICE, PLANNER}
    gaps = {policy: figures[GAP] for (case, policy), figures in measured.items() if case == "two"}
    assert all(gap is not None and gap.mean >= -1e-3 for gap in gaps.values())


def test_the_suite_takes_no_policies(command: Command) -> None:
    status, _, err = command("bench", "--suite", "areal-hex", "-p", "solo")
    assert status == 2 and "compares allocators" in err
