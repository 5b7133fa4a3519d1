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
from rollmux_env.timing.calibration import CALIBRATIONS, PHYSICAL, ROLLMUX, Calibration
from rollmux_env.timing.rl_job import bound_s, phases_s

SECONDS, CONSTANT = "seconds", "with a constant"


def mean_of(calibration: Calibration) -> str:
    """Heading of the errors of means."""
    return f"{calibration.name}: mean"


def bound_of(calibration: Calibration) -> str:
    """Heading of the distances of bounds."""
    return f"{calibration.name}: bound"


SHARES = (mean_of(PHYSICAL), CONSTANT, bound_of(PHYSICAL), mean_of(ROLLMUX), bound_of(ROLLMUX))
COLUMNS = (
    Column(SECONDS, lambda own, _: 0.0, digits=1, style=""),
    *(Column(heading, lambda own, _: 0.0, digits=1, style="%") for heading in SHARES),
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
        """Shares of what is published, by heading; without one that there is not."""
        seconds = {mean_of(each): self.mean_s[name] for name, each in CALIBRATIONS.items()}
        seconds |= {bound_of(each): self.bound_s[name] for name, each in CALIBRATIONS.items()}
        if self.constant is not None:
            seconds[CONSTANT] = self.constant * self.mean_s[PHYSICAL.name]
        return {heading: value / self.published_s - 1 for heading, value in seconds.items()}


def figures(table: Table) -> list[Figure]:
    """Every figure of a table's rows, in order."""
    means = [{name: phases_s(row.told(each), each) for name, each in CALIBRATIONS.items()} for row in table.rows]
    bounds = [{name: bound_s(row.told(each), each) for name, each in CALIBRATIONS.items()} for row in table.rows]
    compared = []
    for k, row in enumerate(table.rows):
        others = [
            seconds / means[i][PHYSICAL.name][phase]
            for i, other in enumerate(table.rows)
            if i != k and other.machine == row.machine
            for phase, seconds in other.seconds.items()
        ]
        for phase, seconds in row.seconds.items():
            own = [{name: by_phase[phase] for name, by_phase in each[k].items()} for each in (means, bounds)]
            compared.append(Figure(row, phase, seconds, *own, float(np.median(others)) if others else None))
    return compared


def fidelity_rows(tables: Sequence[Table]) -> list[SuiteRow]:
    """Every figure of every table, and after each table the median and the largest of its errors."""
    rows: list[SuiteRow] = []
    for table in tables:
        compared = figures(table)
        rows += [_row(table.name, each.name, each.errors, each.mean_s[PHYSICAL.name]) for each in compared]
        count = f"{len(compared)} of {len(compared) + sum(part.number for part in table.not_covered)}"
        for name, reduce in ((f"median |error| of {count}", np.median), (f"largest |error| of {count}", np.max)):
            sizes = {each: [abs(one.errors[each]) for one in compared if each in one.errors] for each in SHARES}
            rows.append(_row(f"{table.name}, all", name, {each: float(reduce(size)) for each, size in sizes.items() if size}))
    return rows


def _row(case: str, name: str, errors: dict[str, float], seconds: float | None = None) -> SuiteRow:
    cells = {SECONDS: seconds} | {each: 100 * errors[each] if each in errors else None for each in SHARES}
    return SuiteRow(case, name, {each: None if cell is None else mean_interval([cell]) for each, cell in cells.items()})
