"""`fidelity`: the phase-time model compared with published phase seconds: the error of every figure, by calibration.

A further column multiplies the prediction by one constant per machine. The constant of a row is the median of published over
predicted, over all figures of the other rows of its table that were measured on the same machine. The row itself is left out, so
that no figure corrects itself. A bound has all responses at the cap, like `worst_case_s` of a scenario file. For recorded runs the
phases are given, and the schedule is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmux_env.bench.suite import Column, Makers, Suite, SuiteRow, make_measured_row
from rollmux_env.bench.suites import tables
from rollmux_env.bench.suites.overlapped import FILES, WAYS, compare_steps
from rollmux_env.bench.suites.recorded import ORDERS, RUNS, compare_runs, measured
from rollmux_env.bench.suites.tables import PublishedRow, Table
from rollmux_env.fidelity.rl_job import bound_s, phases_s
from rollmux_env.published import source
from rollmux_env.timing.calibration import CALIBRATIONS, PHYSICAL, ROLLMUX

SECONDS, CONSTANT, SCHEDULE, GAIN = "seconds", "with a constant", "schedule", "gain"
COLUMNS = (
    Column(SECONDS, digits=1, style=""),
    Column(GAIN, digits=2),
    Column(SCHEDULE, digits=1, style="%"),
    *(Column(heading, digits=1, style="%") for heading in (PHYSICAL.name, CONSTANT, ROLLMUX.name)),
)


@dataclass(frozen=True)
class FigureComparison:
    """One published figure and the model's, in seconds.

    Attributes:
        row: Row of the figure.
        phase: Phase of the figure, a key of the row's seconds.
        published_s: Printed seconds.
        mean_s: Predicted mean seconds, by calibration.
        bound_s: Predicted bound in seconds, by calibration.
        constant: Factor for the mean of `PHYSICAL` from the other rows, or None if no other row was measured on the machine.
    """

    row: PublishedRow
    phase: str
    published_s: float
    mean_s: dict[str, float]
    bound_s: dict[str, float]
    constant: float | None

    @property
    def name(self) -> str:
        """Name of the figure in its table."""
        return f"{self.row.name}: {self.phase}"

    @property
    def errors(self) -> dict[str, float]:
        """Errors of the means, as shares of the published figure, by heading."""
        corrected = {} if self.constant is None else {CONSTANT: self.constant * self.mean_s[PHYSICAL.name]}
        return {heading: seconds / self.published_s - 1 for heading, seconds in (self.mean_s | corrected).items()}

    @property
    def beyond(self) -> dict[str, float]:
        """Differences of the bounds and the published figure, as shares of the latter, by calibration.

        A negative value means that the bound is violated.
        """
        return {name: seconds / self.published_s - 1 for name, seconds in self.bound_s.items()}


def figures(table: Table) -> list[FigureComparison]:
    """Return every figure of a table's rows, in order."""
    means = [{name: phases_s(row.job_for(each), each) for name, each in CALIBRATIONS.items()} for row in table.rows]
    bounds = [{name: bound_s(row.job_for(each), each) for name, each in CALIBRATIONS.items()} for row in table.rows]
    compared = []
    for k, row in enumerate(table.rows):
        others = [
            seconds / means[i][PHYSICAL.name][phase]
            for i, other in enumerate(table.rows)
            if i != k and other.machine == row.machine
            for phase, seconds in other.seconds.items()
        ]
        constant = float(np.median(others)) if others else None
        for phase, seconds in row.seconds.items():
            mean_s, most_s = ({name: by_phase[phase] for name, by_phase in each[k].items()} for each in (means, bounds))
            compared.append(FigureComparison(row, phase, seconds, mean_s, most_s, constant))
    return compared


def measure(seeds: Sequence[int], quick: bool, makers: Makers) -> list[SuiteRow]:
    """Return all rows of the suite."""
    return fidelity_rows(TABLES) + list_recorded_rows(makers)


def fidelity_rows(tables: Sequence[Table]) -> list[SuiteRow]:
    """Return the rows of some tables.

    A table has a row for each figure, and four for all figures together: the median and the largest error, how far bounds are above
    the published figures, and the share of figures above their bound.
    """
    rows: list[SuiteRow] = []
    for table in tables:
        compared = figures(table)
        rows += [_row(table.name, each.name, each.errors, each.mean_s[PHYSICAL.name]) for each in compared]
        count = f"{len(compared)} of {len(compared) + sum(part.number for part in table.not_covered)}"
        errors, beyond = _columns([each.errors for each in compared]), _columns([each.beyond for each in compared])
        summaries: dict[str, tuple[dict[str, list[float]], Callable[[list[float]], Any]]] = {
            f"median |error| of {count}": (errors, lambda shares: np.median(np.abs(shares))),
            f"largest |error| of {count}": (errors, lambda shares: np.max(np.abs(shares))),
            "bound over published, median": (beyond, np.median),
            "figures above their bound": (beyond, lambda shares: np.mean(np.less(shares, 0))),
        }
        for name, (columns, reduce) in summaries.items():
            rows.append(_row(f"{table.name}, all", name, {heading: float(reduce(column)) for heading, column in columns.items()}))
    return rows


def list_recorded_rows(makers: Makers) -> list[SuiteRow]:
    """Return every figure of the recorded runs, with the error of the prediction."""
    headings = [column.heading for column in COLUMNS]
    return [
        make_measured_row(
            each.run,
            each.name,
            headings,
            {GAIN if each.is_gain else SECONDS: [each.predicted], SCHEDULE: [100 * (each.predicted / each.measured - 1)]},
        )
        for each in (*compare_runs(makers), *compare_steps(makers))
    ]


def _columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Return the values by heading, from the rows that have them."""
    headings = dict.fromkeys(heading for row in rows for heading in row)
    return {heading: [row[heading] for row in rows if heading in row] for heading in headings}


def _row(case: str, name: str, shares: dict[str, float], seconds: float | None = None) -> SuiteRow:
    values = {heading: [100 * share] for heading, share in shares.items()} | ({} if seconds is None else {SECONDS: [seconds]})
    return make_measured_row(case, name, (column.heading for column in COLUMNS), values)


TABLES = (tables.VERL, tables.NEMO_RL, tables.ROLLPACKER, tables.ROLLMUX)


def _read_recorded_figures() -> dict[tuple[str, str, str], float]:
    """Return the measured figures of the recorded runs."""
    figures: dict[tuple[str, str, str], float] = {}
    for run in RUNS:
        real = measured(run)
        for order in ORDERS:
            figures |= {(run.name, f"{order}: period of {job}", SECONDS): seconds for job, seconds in real.period_s.items()}
            figures[run.name, f"{order}: whole run", SECONDS] = real.whole_s
            if run.gain is not None:
                figures[run.name, f"{order}: gain", GAIN] = run.gain
    for case, (_, shared_s) in source("rollmux").table("micro_iterations", tuple[float, float]):
        figures[f"Weave, Table 4, {case}", "round-robin: period", SECONDS] = shared_s
    for way in WAYS:
        figures[way.source, f"{way.name}: step", SECONDS] = way.steps.step_s
        if way.apart:
            figures[way.source, f"{way.name}: gain", GAIN] = way.gain
    return figures


SUITE = Suite(
    name="fidelity",
    title="Phase-time model beside every published figure, as it is and times one constant a machine; recorded runs, replayed",
    source=", ".join(table.name for table in TABLES) + ", llm-d, Weave, vime",
    cases=(),
    columns=COLUMNS,
    paper={
        (table.name, f"{row.name}: {phase}", SECONDS): seconds
        for table in TABLES
        for row in table.rows
        for phase, seconds in row.seconds.items()
    }
    | _read_recorded_figures(),
    differences=(
        *(f"{table.name} is from {table.source}." for table in TABLES),
        *(f"{table.name}, not covered: {part.number} {part.which} ({part.why})." for table in TABLES for part in table.not_covered),
        *(f"{table.name}: {line}" for table in TABLES for line in table.assumed),
        f"Recorded runs are from {source('llm_d').value('source', str)}, and from Weave's Table 4 (phases derived from "
        "an iteration alone). While new weights are sent a job holds both locks, so these seconds are in both its phases.",
        *(f"Steps of {source(each).value('name', str)}, are from {source(each).value('source', str)}." for each in FILES),
        "Such a replay is given the means of stages: what varies from step to step, or is in no stage, is not in it.",
        "fifo is the order in which the locks of llm-d are given; round-robin is what RollMux plans.",
        "An error that others print of their own simulator, on their own clusters: under 5.35% (Charon, arXiv 2605.17164 v1).",
    ),
    seeds=0,
    measure=measure,
    compares="no policies",
)
