"""Figures of a run's iterations and phases by name, for TensorBoard and for loggers of users."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.journal.facts import IterationSlice, PhaseSlice
from runtime.journal.record import RunRecord


def iteration_figures(iteration: IterationSlice) -> dict[str, float]:
    """Return the metrics that a job reported in an iteration, and the iteration's seconds."""
    values = {f"job/{name}": value for name, value in iteration.metrics.items()}
    return values | {"seconds/iteration": iteration.end_s - iteration.start_s}


def phase_figures(part: PhaseSlice) -> dict[str, float]:
    """Return the seconds of a phase, or nothing if it failed or belongs to no iteration."""
    counts = part.ok and not part.profile and part.phase != "init"
    return {f"seconds/{part.phase}": part.end_s - part.start_s} if counts else {}


def scalars(record: RunRecord, job_id: str) -> Sequence[tuple[str, float, int, float]]:
    """Return a job's TensorBoard points as (tag, value, iteration, seconds since the run began)."""
    iterations = [(iteration_figures(one), one.number, one.end_s) for one in record.iterations if one.job_id == job_id]
    phases = [(phase_figures(one), one.iteration, one.end_s) for one in record.phases if one.job_id == job_id]
    return [(tag, value, step, at_s) for values, step, at_s in (*iterations, *phases) for tag, value in values.items()]
