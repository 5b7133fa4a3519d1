"""Published phase seconds beside the phase-time model: the error of every figure, by calibration, and one constant a machine.

The constant of a row is the median of published over predicted, over all figures of the other rows of its table that were
measured on the same machine: the row itself is left out, so that no figure corrects itself. A bound has all responses at the cap,
as `worst_case_s` of a scenario file has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.bench.suite import Column, SuiteRow
from rollmux_env.bench.tables.table import Row, Table
from rollmux_env.timing.calibration import CALIBRATIONS, PHYSICAL, ROLLMUX
from rollmux_env.timing.rl_job import bound_s, phases_s

SECONDS, CONSTANT = "seconds", "with a constant"


COLUMNS = (
    Column(SECONDS, lambda own, _: 0.0, digits=1, style=""),
    *(Column(heading, lambda own, _: 0.0, digits=1, style="%") for heading in (PHYSICAL.name, CONSTANT, ROLLMUX.name)),
)


@dataclass(frozen=True)
class Figure:
    """One published figure beside the model's, in seconds.

    Attributes:
        row: that it is of. phase: its key there. published_s: as printed. mean_s, bound_s: the model's, by calibration.
        constant: what the mean of `PHYSICAL` is multiplied by, from the other rows; None where the machine has no other.
    """

    row: Row
    phase: str
    published_s: float
    mean_s: dict[str, float]
    bound_s: dict[str, float]
    constant: float | None

    @property
    def name(self) -> str:
        """Of the figure in its table."""
        return f"{self.row.name}: {self.phase}"

    @property
    def errors(self) -> dict[str, float]:
        """Of means, as shares of what is published, by heading; without one that there is not."""
        corrected = {} if self.constant is None else {CONSTANT: self.constant * self.mean_s[PHYSICAL.name]}
        return {heading: seconds / self.published_s - 1 for heading, seconds in (self.mean_s | corrected).items()}

    @property
    def beyond(self) -> dict[str, float]:
        """How far bounds are above what is published, as shares of it, by calibration; below 0 where they are none."""
        return {name: seconds / self.published_s - 1 for name, seconds in self.bound_s.items()}


def figures(table: Table) -> list[Figure]:
    """Every figure of a table's rows, in order."""
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
            compared.append(Figure(row, phase, seconds, mean_s, most_s, constant))
    return compared


def fidelity_rows(tables: Sequence[Table]) -> list[SuiteRow]:
    """Every figure of every table; and of each table the median and the largest error, how far bounds are above what is published,
    and how many figures are above their bound."""
    rows: list[SuiteRow] = []
    for table in tables:
        compared = figures(table)
        rows += [_row(table.name, each.name, each.errors, each.mean_s[PHYSICAL.name]) for each in compared]
        count = f"{len(compared)} of {len(compared) + sum(part.number for part in table.not_covered)}"
        errors, beyond = _columns([each.errors for each in compared]), _columns([each.beyond for each in compared])
        for name, columns, reduce in (
            (f"median |error| of {count}", errors, _median_size),
            (f"largest |error| of {count}", errors, _largest_size),
            ("bound over published, median", beyond, _median),
            ("figures above their bound", beyond, _below_0),
        ):
            rows.append(_row(f"{table.name}, all", name, {heading: reduce(column) for heading, column in columns.items()}))
    return rows


def _median_size(shares: list[float]) -> float:
    return float(np.median(np.abs(shares)))


def _largest_size(shares: list[float]) -> float:
    return float(np.max(np.abs(shares)))


def _median(shares: list[float]) -> float:
    return float(np.median(shares))


def _below_0(shares: list[float]) -> float:
    return float(np.mean(np.less(shares, 0)))


def _columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Values by heading, of the rows that have it."""
    headings = dict.fromkeys(heading for row in rows for heading in row)
    return {heading: [row[heading] for row in rows if heading in row] for heading in headings}


def _row(case: str, name: str, shares: dict[str, float], seconds: float | None = None) -> SuiteRow:
    cells = {column.heading: 100 * shares[column.heading] if column.heading in shares else None for column in COLUMNS}
    cells[SECONDS] = seconds
    return SuiteRow(case, name, {heading: None if cell is None else mean_interval([cell]) for heading, cell in cells.items()})
