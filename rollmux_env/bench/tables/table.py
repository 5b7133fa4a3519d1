"""The form of a published table: rows of figures, the jobs that they are of, and what the model cannot express."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.published import source
from rollmux_env.timing.calibration import ROLLMUX, Calibration
from rollmux_env.timing.rl_job import RlJob


class Row(NamedTuple):
    """One line of a table.

    Attributes:
        name: that tells it from the others. machine: what its seconds were measured on. seconds: by phase, as printed. job: that
            they are of. fitted: how RollMux's calibration was told of it, where that differs.
    """

    name: str
    machine: str
    seconds: Mapping[str, float]
    job: RlJob
    fitted: RlJob | None = None

    def job_for(self, calibration: Calibration) -> RlJob:
        """The job, as a calibration is told of it."""
        return self.fitted or self.job if calibration is ROLLMUX else self.job


class NotCovered(NamedTuple):
    """Figures that the model does not express: their number, which they are, and why."""

    number: int
    which: str
    why: str


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        name: for the suite. source: repository or paper, file and commit. rows: what the model predicts. not_covered: the rest.
        assumed: what the source leaves open.
    """

    name: str
    source: str
    rows: tuple[Row, ...]
    not_covered: tuple[NotCovered, ...]
    assumed: tuple[str, ...]


def published_table(file: str, rows: Iterable[Row]) -> Table:
    """A table whose name, source and assumptions are those of a source's file."""
    texts = source(file)
    return Table(
        texts.value("name", str),
        texts.value("source", str),
        (*rows,),
        texts.value("not_covered", tuple[NotCovered, ...]),
        texts.value("assumed", tuple[str, ...], ()),
    )
