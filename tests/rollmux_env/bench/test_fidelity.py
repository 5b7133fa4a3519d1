"""The suite `fidelity`: every published figure is there, and its errors are those of its definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median

import pytest

from rollmux_env.bench.suites import tables
from rollmux_env.bench.suites.fidelity import CONSTANT, SECONDS, SUITE, TABLES, fidelity_rows, figures
from rollmux_env.bench.suites.tables import Table
from rollmux_env.fidelity.rl_job import bound_s, phases_s
from rollmux_env.timing.calibration import CALIBRATIONS, PHYSICAL, Calibration
from rollmux_env.timing.models import ALL_SHAPES

SMALL = tables.ROLLPACKER


@pytest.mark.parametrize(
    "table, lines, covered, rest",
    [(tables.VERL, 18, 61, 69), (tables.NEMO_RL, 50, 50, 2), (SMALL, 3, 3, 21), (tables.ROLLMUX, 48, 64, 12)],
)
def test_every_line_of_a_table_is_there_or_says_why_not(table: Table, lines: int, covered: int, rest: int) -> None:
    assert len({row.name for row in table.rows}) == len(table.rows) == lines
    assert sum(len(row.seconds) for row in table.rows) == covered
    assert sum(part.number for part in table.not_covered) == rest
    assert all(part.which and part.why for part in table.not_covered)
    assert all(0 < seconds < 1e4 for row in table.rows for seconds in row.seconds.values())


def test_a_colocated_step_is_about_the_sum_of_its_printed_phases() -> None:
    for row in tables.VERL.rows:
        if "colocated" in row.name:
            assert row.seconds["step"] == pytest.approx(sum(row.seconds.values()) - row.seconds["step"], rel=0.08)


def test_the_printed_gpus_are_those_of_the_jobs() -> None:
    for row in tables.NEMO_RL.rows:
        gpus = int(row.name.split(", ")[1].split()[0])
        both = row.job.rollout.count + row.job.training.count
        assert gpus == (both if row.job.overlapped else row.job.rollout.count)
    assert Counter(row.machine for row in tables.NEMO_RL.rows) == {"H100": 32, "GB200": 18}


def test_errors_are_of_seconds_and_constants_leave_their_row_out() -> None:
    compared = figures(SMALL)
    for figure, row in zip(compared, SMALL.rows, strict=True):
        own_s = figure.mean_s["physical"]
        assert own_s == phases_s(row.job)["gen"]
        assert figure.errors[PHYSICAL.name] == pytest.approx((own_s - figure.published_s) / figure.published_s)
        others = [other.published_s / other.mean_s["physical"] for other in compared if other is not figure]
        assert figure.constant == pytest.approx(median(others))
        assert figure.errors[CONSTANT] == pytest.approx(median(others) * own_s / figure.published_s - 1)
        for calibration in CALIBRATIONS.values():
            seconds = bound_s(row.job, calibration)["gen"]
            assert figure.beyond[calibration.name] == pytest.approx(seconds / figure.published_s - 1)
    wrong = SMALL.rows[0]._replace(seconds={"gen": 1e6})
    changed = figures(replace(SMALL, rows=(wrong, *SMALL.rows[1:])))
    assert changed[0].constant == compared[0].constant
    assert [figure.constant for figure in changed[1:]] != [figure.constant for figure in compared[1:]]


def test_a_machine_with_one_row_has_no_constant() -> None:
    (alone,) = figures(replace(SMALL, rows=SMALL.rows[:1]))
    assert alone.constant is None and CONSTANT not in alone.errors


def test_the_summary_is_of_the_rows_above_it() -> None:
    rows, compared = fidelity_rows((SMALL,)), figures(SMALL)
    assert [row.policy for row in rows[-4:]] == [
        "median |error| of 3 of 24",
        "largest |error| of 3 of 24",
        "bound over published, median",
        "figures above their bound",
    ]
    for calibration in CALIBRATIONS:
        sizes, beyond = ([100 * getattr(one, name)[calibration] for one in compared] for name in ("errors", "beyond"))
        expected = median(map(abs, sizes)), max(map(abs, sizes)), median(beyond), 100 * sum(one < 0 for one in beyond) / len(beyond)
        assert [row.figures[calibration].mean for row in rows[-4:]] == pytest.approx(expected)  # type: ignore[union-attr]


@pytest.mark.parametrize("calibration", CALIBRATIONS.values(), ids=CALIBRATIONS)
@pytest.mark.parametrize("table", TABLES, ids=[table.name for table in TABLES])
def test_the_largest_published_seconds_of_a_phase_are_below_the_bound(table: Table, calibration: Calibration) -> None:
    rows = [row for row in table.rows if ALL_SHAPES[row.job.model].experts == 1]  # mixtures wait for messages that nobody models
    for phase in {phase for row in rows for phase in row.seconds}:
        row = max((row for row in rows if phase in row.seconds), key=lambda row: row.seconds[phase])
        assert row.seconds[phase] <= bound_s(row.job_for(calibration), calibration)[phase], row.name


def test_the_whole_suite_shows_every_published_figure_and_is_the_same_each_time() -> None:
    rows = fidelity_rows(TABLES)
    shown = {(row.case, row.policy, SECONDS) for row in rows if row.figures[SECONDS] is not None}
    tabulated = {table.name for table in TABLES}
    assert shown == {key for key in SUITE.paper if key[0] in tabulated}
    assert len(shown) == sum(len(row.seconds) for table in TABLES for row in table.rows)
    again = fidelity_rows((replace(tables.VERL, rows=tables.VERL.rows[3:5]),))  # streamed
    seconds = {(row.case, row.policy, SECONDS): row.figures[SECONDS] for row in rows}
    alone = {(row.case, row.policy, SECONDS): row.figures[SECONDS] for row in again if row.figures[SECONDS] is not None}
    assert alone and alone.items() <= seconds.items()


def test_a_mean_never_passes_its_bound() -> None:
    for table in TABLES:
        for row in table.rows:
            for calibration in CALIBRATIONS.values():
                job = row.job_for(calibration)
                if job.stream is None:
                    mean_s, most_s = phases_s(job, calibration), bound_s(job, calibration)
                    assert all(mean_s[phase] <= most_s[phase] * (1 + 1e-9) for phase in mean_s)
