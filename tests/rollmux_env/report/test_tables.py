"""Figures of tables as text: what rounding may not hide."""

from __future__ import annotations

import pytest

from rollmux_env.bench.columns import SLO_KEPT
from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.suite import Suite, SuiteRow
from rollmux_env.bench.suites import SUITES
from rollmux_env.report.latex import to_latex
from rollmux_env.report.suites import suite_table
from rollmux_env.report.tables import percent, percentage


@pytest.mark.parametrize(
    "share, digits, text",
    [
        (1.0, 1, "100.0%"),
        (0.0, 1, "0.0%"),
        (1998 / 2000, 1, "99.9%"),
        (2999 / 3000, 1, "99.97%"),
        (1 / 3000, 1, "0.03%"),
        (0.999, 0, "99.9%"),
        (0.5, 0, "50%"),
    ],
)
def test_a_share_that_is_neither_all_nor_none_is_not_shown_as_either(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text


def test_what_rounding_alone_keeps_from_all_is_shown_as_all() -> None:
    assert percentage(100 - 1e-12) == "100.0%" and percentage(1e-12) == "0.0%"


def test_a_suite_says_that_an_slo_is_broken() -> None:
    suite = Suite("suite", "title", "source", SUITES["mixed"].cases[:1], (SLO_KEPT,))
    rows = [SuiteRow(suite.cases[0].label, "solo", {SLO_KEPT.heading: Mean(100 * 2999 / 3000, 0.04)})]
    assert r"99.97\% $\pm$ 0.0" in to_latex(suite_table(suite, rows, [0, 1], False))
