"""In a pipe no table is wider than 120 columns, and none loses a character by it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.table import Table

from rollmux_env.bench.comparison import ComparisonRow
from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.suite import Suite, SuiteRow
from rollmux_env.bench.suites import SUITES, rollout
from rollmux_env.bench.suites.rollout import COLUMNS
from rollmux_env.report.bench_tables import comparison_table
from rollmux_env.report.fitting import fitted
from rollmux_env.report.suites import suite_table
from rollmux_env.report.tables import WIDTH, make_table
from tests.conftest import Command

POLICIES = (
    "solo",
    "colocated",
    "gavel",
    "rollmux,prune=false,quantile=0.95",
    "consolidate",
    "learned:default,moves=false",
    "optimal",
)
LONG = "my_package.my_module:MyVeryLongPolicyName,first=0.25,second=[1,2,3],third=false"


def lines_of(part: RenderableType, width: int = WIDTH) -> list[str]:
    """What is printed, after the checks that hold for everything: not too wide, and nothing cut off."""
    out = io.StringIO()
    Console(file=out, width=width, markup=False).print(fitted(part, width))
    assert "…" not in out.getvalue()
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def rows_of(policies: Iterable[str]) -> list[ComparisonRow]:
    many = Mean(1234567.891, 12345.678)
    ratio = Mean(12.345, 0.123)
    return [
        ComparisonRow(
            policy,
            many,
            ratio,
            ratio,
            ratio,
            Mean(0.987, 0.01),
            Mean(0.876, 0.01),
            ratio,
            ratio,
            many,
            many,
            dict.fromkeys(("rollout", "training"), 2048.0),
            0.987,
            decision_ms=12.34,
        )
        for policy in policies
    ]


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_a_table_of_names_alone_fits_too(width: int) -> None:
    """As `rollmux token list` prints one, also in a narrow terminal."""
    table = make_table("id", "user", "right", "priority", "made", left=5)
    cells = ("3f6c0a1b9d2e", "somebody@example.org", "operate", "any", "2026-11-29T14:00:00Z")
    table.add_row(*cells)
    text = "\n".join(lines_of(table, width))
    assert all(cell in text for cell in cells)
    single = make_table("id")
    single.add_row("x" * 200)
    assert "".join(lines_of(single, width)).count("x") == 200


@pytest.mark.parametrize("policies", [POLICIES, ("solo", LONG), ("solo", "x" * 200)])
def test_bench_of_many_policies_over_seeds(policies: tuple[str, ...]) -> None:
    text = "\n".join(lines_of(comparison_table("production", rows_of(policies), "solo")))
    for cell in ("1,234,568 ± 12,346", "12.35x ± 0.12", "12.35 ± 0.12", "98.7% (87.6%)", "2048 + 2048", "12.34 ms"):
        assert text.count(cell) >= len(policies), cell
    solid = re.sub(r"\s", "", text)
    assert all(policy in solid for policy in policies if len(policy) < WIDTH // 2)


@pytest.mark.parametrize("suite", SUITES.values(), ids=[*SUITES])
def test_suites(suite: Suite) -> None:
    wide = {column.heading: Mean(98765.432, 98.765) for column in suite.columns}
    rows = [SuiteRow(case.label, policy, wide) for case in suite.cases for policy in (*case.policies, POLICIES[5])]
    text = "\n".join(lines_of(suite_table(suite, rows, range(5), quick=False)))
    for column in suite.columns:
        cell = f"98,765.{'432'[: column.digits]}".rstrip(".") if column.digits < 3 else "98,765.432"
        assert text.count(cell) >= len(rows)


def test_the_suite_of_rollouts() -> None:
    figures = {column.heading: Mean(98765.432, 98.765) for column in COLUMNS}
    rows = [SuiteRow(case.label, policy, figures) for case in rollout.CASES for policy in case.policies]
    lines_of(suite_table(rollout.SUITE, rows, range(5), quick=False))


def test_what_fits_is_left_as_it_is() -> None:
    table = make_table("policy", "cost $")
    assert fitted(table, WIDTH).renderables == [table]  # type: ignore[union-attr]


def test_headings_take_more_lines_before_a_table_is_split() -> None:
    table = make_table("policy", *("a heading of many words",) * 5)
    table.add_row("solo", *"12345")
    lines = lines_of(table, 60)
    assert sum("solo" in line for line in lines) == 1


def test_rows_take_more_lines_before_a_table_of_one_section_is_split() -> None:
    table = make_table("policy", *(f"figure {k}" for k in range(9)))
    for policy in ("solo", "rollmux"):
        table.add_row(policy, *(f"{policy[0]}{k}-{'9' * 8}" for k in range(9)))
    lines = lines_of(table, 80)
    assert sum("solo" in line for line in lines) == sum("rollmux" in line for line in lines) == 1
    first = next(k for k, line in enumerate(lines) if "solo" in line)
    assert [word[:2] for line in lines[first : first + 3] for word in line.split() if word != "solo"] == [f"s{k}" for k in range(9)]
    heads = next(k for k, line in enumerate(lines) if "figure 0" in line)
    assert lines[heads].index("figure 1") + len("figure 1") == lines[heads + 1].index("figure 4") + len("figure 4"), (
        "one above the other"
    )


def test_a_part_leaves_out_sections_that_it_has_nothing_of() -> None:
    table = make_table("case", "policy", "x" * 60, "y" * 60, left=2)
    for case, x, y in (("near", "1", "2"), ("far", "", "3")):
        table.add_row(case, "hex", x, y)
        table.add_row("", "uniform", "", y, end_section=True)
    lines = lines_of(table, 90)
    assert [line.split() for line in lines if "hex" in line] == [["near", "hex", "1"], ["near", "hex", "2"], ["far", "hex", "3"]]
    assert sum("uniform" in line for line in lines) == 3


def test_only_suites_with_figures_of_a_paper_say_what_brackets_are() -> None:
    for suite in SUITES.values():
        rows = [SuiteRow(label, policy, {c.heading: Mean(1.0, None) for c in suite.columns}) for label, policy, _ in suite.paper]
        rows = rows or [SuiteRow("a", "solo", {c.heading: Mean(1.0, None) for c in suite.columns})]
        text = "\n".join(lines_of(suite_table(suite, rows, (0,), quick=False)))
        assert ("[the paper's figure]" in text) == bool(suite.paper)


cells = st.text("abcdefghij 0123456789", min_size=1, max_size=60).map(lambda text: " ".join(text.split()) or "-")


@given(st.integers(40, 130), st.lists(cells, min_size=2, max_size=12), st.data())
def test_no_cell_loses_a_character(width: int, headings: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(cells, min_size=len(headings), max_size=len(headings)), min_size=1, max_size=3))
    for table in (make_table(*headings), Table(*headings)):
        for row in rows:
            table.add_row(*row)
        given_letters = "".join("".join(row) for row in rows)
        printed = "".join(lines_of(table, width))
        for letter in "abcdefghij0123456789":
            assert printed.count(letter) >= given_letters.count(letter) + "".join(headings).count(letter)


def test_commands_in_a_pipe(command: Command) -> None:
    for arguments in (("plan", "examples/quickstart.yaml"), ("explain", "examples/quickstart.yaml", "--job", "code-7b")):
        status, out, _ = command(*arguments)
        assert status == 0
        assert max(map(len, (line.rstrip() for line in out.splitlines()))) <= WIDTH
