"""The suites as data: what they say of the paper is shown, and what they run can be run."""

from __future__ import annotations

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.suite import Suite, SuiteRow, best_cases
from rollmux_env.bench.suites import SUITES


@pytest.fixture(params=list(SUITES))
def suite(request: pytest.FixtureRequest) -> Suite:
    return SUITES[request.param]


def test_every_figure_of_the_paper_has_its_cell(suite: Suite) -> None:
    cells = {(case.label, policy, column.heading) for case in suite.cases for policy in case.policies for column in suite.columns}
    assert set(suite.paper) <= cells
    assert suite.differences or not suite.paper, "figures beside each other need a word on why they differ"


def test_labels_and_headings_tell_rows_and_columns_apart(suite: Suite) -> None:
    for names in ([case.label for case in suite.cases], [column.heading for column in suite.columns]):
        assert len(set(names)) == len(names)
    assert set(suite.frontier or ()) <= {column.heading for column in suite.columns}


def test_every_ratio_has_its_denominator_in_some_case(suite: Suite) -> None:
    for column in suite.columns:
        assert not column.against or any(set(column.against) & set(case.policies) for case in suite.cases)


def test_every_policy_and_dispatch_policy_can_be_made(suite: Suite) -> None:
    for case in suite.cases:
        for name in case.policies:
            make_policy(name)
        if case.dispatch is not None:
            make_dispatch(case.dispatch)


def test_the_best_case_of_a_policy_is_one_in_which_something_dies() -> None:
    suite = SUITES["failures"]
    cases = [case.label for case in suite.cases[:3]]
    figures = {"solo": (5.0, 9.0, 7.0), "rollmux": (5.0, 6.0, 8.0)}
    rows = [
        SuiteRow(case, policy, {suite.least: Mean(values[k], None)})
        for k, case in enumerate(cases)
        for policy, values in figures.items()
    ]
    assert {policy: row.case for policy, row in best_cases(suite, rows).items()} == {"solo": cases[2], "rollmux": cases[1]}


def test_quick_streams_are_no_longer_and_a_seed_gives_one_stream(suite: Suite) -> None:
    case = suite.cases[0]
    quick = case.stream(0, True)
    assert len(quick.jobs) <= len(case.stream(0, False).jobs)
    assert quick == case.stream(0, True)
