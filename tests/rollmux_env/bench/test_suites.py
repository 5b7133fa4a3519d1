"""The suites as data: what they say of the paper is shown, and what they run can be run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from rollmux_env.bench.columns import COST, SLO_KEPT, SLO_OBSERVED, SLOWDOWN
from rollmux_env.bench.harness import OwnReplay, run_tasks
from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.streams import sampled, workload
from rollmux_env.bench.suite import Suite, SuiteCase, SuiteRow, best_cases, shortened, suite_rows, suite_tasks
from rollmux_env.bench.suites import SUITES
from rollmux_env.bench.suites.published import make_published_suite
from rollmux_env.errors import InputError
from rollmux_env.published import Source
from rollmux_env.report.latex import to_latex
from rollmux_env.report.suites import suite_table


@pytest.fixture(params=[name for name, suite in SUITES.items() if suite.cases])
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
        assert not any(isinstance(make_policy(name), OwnReplay) for name in case.observed)
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


def test_what_an_event_replay_observes_stands_beside_what_steady_periods_say() -> None:
    """`rollmux` keeps every SLO of steady periods; jobs that wait for a meta-iteration do not all keep theirs."""
    case = SuiteCase("case", partial(workload, "production", jobs=30), ("rollmux", "optimal"), observed=("rollmux",))
    suite = Suite("suite", "title", "source", (case,), (COST, SLO_KEPT, SLO_OBSERVED))
    tasks = suite_tasks(suite, (0,), True, make_dispatch)
    assert [(task.spec, task.dispatch is not None) for _, task in tasks] == [
        ("rollmux", False),
        ("optimal", False),
        ("rollmux", True),
    ]
    results = dict(run_tasks(make_policy, [task for _, task in tasks]))
    first, second = suite_rows(suite, [(owner, results[k]) for k, (owner, _) in enumerate(tasks)])
    metrics = [results[k].outcome.metrics for k in range(3)]
    figures = [[mean and mean.mean for mean in row.figures.values()] for row in (first, second)]
    assert metrics[2].slo_attainment_observed is not None and metrics[0].cost_usd != metrics[2].cost_usd
    assert figures[0] == [metrics[0].cost_usd / 1000, 100.0, 100 * metrics[2].slo_attainment_observed]
    assert figures[1] == [metrics[1].cost_usd / 1000, 100.0, None]


def test_the_slowdown_is_against_the_same_job_alone_under_the_same_sampling() -> None:
    """Alone, phases that take less than their worst case speed nothing up."""
    case = SuiteCase("case", partial(sampled, "production", jobs=4), ("solo",), dispatch="round-robin")
    suite = Suite("suite", "title", "source", (case,), (SLOWDOWN,))
    ((owner, task),) = suite_tasks(suite, (0,), True, make_dispatch)
    ((_, result),) = run_tasks(make_policy, [task])
    (row,) = suite_rows(suite, [(owner, result)])
    slowdown = row.figures["slowdown"]
    assert slowdown is not None and slowdown.mean == pytest.approx(1.0)
    assert max(result.outcome.metrics.slowdown.values()) < 0.99


@pytest.mark.parametrize(
    "lines, problem",
    [
        ('columns = ["saved"]', "suite: must be one of "),
        ('stream = ["wokload", "mixed"]\npolicies = ["solo"]\ncases = [{ label = "one" }]', "did you mean workload?"),
        ('stream = ["workload", "mixed"]\ncases = [{ labels = "one" }]', "one.cases[0].labels: is not a key of this file format"),
        ('paper = { case = { saving = { solo = "x" } } }', "one.paper.case.saving.solo"),
    ],
)
def test_a_suite_that_is_none_gives_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, problem: str
) -> None:
    (tmp_path / "file.toml").write_text(f'[one]\ntitle = "t"\nsource = "s"\n{lines}\n')
    monkeypatch.setattr("rollmux_env.bench.suites.published.source", lambda name: Source(tmp_path / f"{name}.toml"))
    with pytest.raises(InputError) as error:
        make_published_suite("file", "one")
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_a_suite_of_a_file_may_be_relative_to_another_policy() -> None:
    column = next(column for column in SUITES["learned"].columns if column.heading == "saving per work, rollmux,prune=false = 1")
    assert (column.against, column.digits) == (("rollmux,prune=false",), 3)


def test_a_shorter_stream_is_not_beside_figures_that_grow_and_ratios_below_1_are_explained() -> None:
    suite = SUITES["production"]
    headings = {heading for _, _, heading in suite.paper}
    assert headings - {heading for _, _, heading in shortened(suite).paper} == headings & {
        "thousand $", "peak rollout GPUs", "peak training GPUs"
    } != set()  # fmt: skip
    figures = dict.fromkeys((column.heading for column in suite.columns), Mean(1.0, None))
    row = SuiteRow("equal work", "consolidate", {**figures, "$/work-h / optimal": Mean(0.99, None)})
    text = to_latex(suite_table(suite, [row], [0], True))
    assert "$/work-h / optimal below 1: it breaks SLOs, or the least at each event" in text and "cost / optimal below" not in text
