"""Published phase seconds beside the phase-time model: the error of every figure, and what one constant a machine takes off.

The constant of a row is the median of published over predicted, over all figures of the other rows of its table that were
measured on the same machine: the row itself is left out, so that no figure corrects itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.bench.suite import Column, SuiteRow
from rollmux_env.bench.tables.table import Row, Table
from rollmux_env.timing.hardware import FITTED, GPUS, achieved
from rollmux_env.timing.rl_job import RlJob, phases_s
from rollmux_env.timing.roofline import PASSES, Responses, replica_timing, rollout_s, training_timing

SECONDS, ERROR, CONSTANT, SCENARIO = "seconds", "error", "with a constant", "scenario model"
COLUMNS = (
    Column(SECONDS, lambda own, _: 0.0, digits=1, style=""),
    Column(ERROR, lambda own, _: 0.0, digits=1, style="%"),
    Column(CONSTANT, lambda own, _: 0.0, digits=1, style="%"),
    Column(SCENARIO, lambda own, _: 0.0, digits=1, style="%"),
)


@dataclass(frozen=True)
class Figure:
    """One published figure beside the model's, in seconds.

    Attributes:
        row: that it is of. phase: its key there. scenario_s: by the model that scenario files use; None where it has no such job.
        constant: what the model's is multiplied by, from the other rows; None where the machine has no other.
    """

    row: Row
    phase: str
    published_s: float
    model_s: float
    scenario_s: float | None
    constant: float | None

    @property
    def name(self) -> str:
        """Of the figure in its table."""
        return f"{self.row.name}: {self.phase}"

    @property
    def error(self) -> float:
        """Of the model, as a share of what is published."""
        return self.model_s / self.published_s - 1

    @property
    def corrected_error(self) -> float | None:
        """Of the model times the constant."""
        return None if self.constant is None else self.constant * self.model_s / self.published_s - 1

    @property
    def scenario_error(self) -> float | None:
        """Of the model that scenario files use."""
        return None if self.scenario_s is None else self.scenario_s / self.published_s - 1


def figures(table: Table) -> list[Figure]:
    """Every figure of a table's rows, in order."""
    predicted = [phases_s(row.job) for row in table.rows]
    ratios = [
        [seconds / own[phase] for phase, seconds in row.seconds.items()] for row, own in zip(table.rows, predicted, strict=True)
    ]
    compared = []
    for k, (row, own) in enumerate(zip(table.rows, predicted, strict=True)):
        others = [ratio for i, other in enumerate(table.rows) if i != k and other.machine == row.machine for ratio in ratios[i]]
        constant = float(np.median(others)) if others else None
        scenario = scenario_s(row.scenario or row.job)
        compared += [
            Figure(row, phase, seconds, own[phase], scenario.get(phase), constant) for phase, seconds in row.seconds.items()
        ]
    return compared


def scenario_s(job: RlJob) -> dict[str, float]:
    """Seconds by phase by the model that scenario files use, with factors fitted to RollMux's phases and padded training.

    It knows neither mixtures nor FP8 nor streams: of a stream, rollout and training overlap.
    """
    shape, batch = job.shape, job.batch
    if shape.experts > 1 or job.rollout.number_bytes != 2:
        return {}
    hardware = achieved(job.training.gpu, GPUS[job.training.gpu], FITTED)
    training = training_timing(shape, hardware, job.training.count)
    whole_s = training.seconds(batch.count, batch.prompt_tokens + batch.lengths.cap)
    pass_s = (whole_s - training.update_s) / PASSES * 2
    by_phase = {name: pass_s for name in job.scored} | {"update": 3 * pass_s + training.update_s}
    replica = replica_timing(shape, achieved(job.rollout.gpu, GPUS[job.rollout.gpu], FITTED), job.rollout.parallel)
    responses = Responses(batch.count, batch.prompt_tokens, 1)
    gen_s = rollout_s(replica, job.rollout.copies, responses, batch.tokens()) + (batch.turns - 1) * batch.environment_s
    training_s = sum(by_phase.values())
    if job.stream is not None:
        return {"gen": max(0.0, gen_s - training_s), **by_phase, "training": training_s, "step": max(gen_s, training_s)}
    step_s = max(gen_s, training_s) if job.overlapped else gen_s + training_s
    return {"gen": gen_s, **by_phase, "training": training_s, "step": step_s}


def fidelity_rows(tables: Sequence[Table]) -> list[SuiteRow]:
    """Every figure of every table, and after each table the median and the largest of its errors."""
    rows: list[SuiteRow] = []
    for table in tables:
        compared = figures(table)
        rows += [
            _row(table.name, figure.name, (figure.model_s, figure.error, figure.corrected_error, figure.scenario_error))
            for figure in compared
        ]
        rows += _summary(table, compared)
    return rows


def _summary(table: Table, compared: Sequence[Figure]) -> Iterator[SuiteRow]:
    errors = (
        [figure.error for figure in compared],
        [figure.corrected_error for figure in compared],
        [figure.scenario_error for figure in compared],
    )
    sizes = [np.abs([error for error in column if error is not None]) for column in errors]
    count = f"{len(compared)} of {len(compared) + sum(part.number for part in table.not_covered)}"
    for name, reduce in ((f"median |error| of {count}", np.median), (f"largest |error| of {count}", np.max)):
        yield _row(f"{table.name}, all", name, (None, *(float(reduce(column)) if len(column) else None for column in sizes)))


def _row(case: str, name: str, values: Sequence[float | None]) -> SuiteRow:
    seconds, *shares = values
    cells = [seconds, *(None if share is None else 100 * share for share in shares)]
    compared = {
        column.heading: None if cell is None else mean_interval([cell]) for column, cell in zip(COLUMNS, cells, strict=True)
    }
    return SuiteRow(case, name, compared)
