"""Figures of a run's iterations on their way to loggers of a user, which live in the process of the command."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rollmux_env.errors import InputError, PlanError
from rollmux_env.files import make_private, private_folder
from rollmux_env.report.loggers import FigureLogger, MakeLogger
from rollmux_env.scheduler.commands import Command
from runtime.journal.facts import Fact, IterationSlice, PhaseSlice
from runtime.report.scalars import iteration_figures, phase_figures

LOGGERS = "loggers"  # folder in a run's folder, with a folder for the logger of each job
_KEPT = 10_000  # last iterations that stay in memory


class IterationPoint(NamedTuple):
    """The figures of an iteration.

    Attributes:
        job_id: Id of the job.
        number: Number of the iteration, from 0.
        figures: Figures by name.
    """

    job_id: str
    number: int
    figures: dict[str, float]


class IterationPoints:
    """Collects the figures of iterations; see `runtime.coordinator.run_loop.RunObserver`."""

    def __init__(self) -> None:
        self._count = 0
        self._points = deque[IterationPoint](maxlen=_KEPT)
        self._phases: dict[tuple[str, int], dict[str, float]] = {}  # figures of phases whose iteration is not over

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Take facts that were written to the journal."""
        for entry in entries:
            if isinstance(entry, PhaseSlice) and (figures := phase_figures(entry)):
                self._phases.setdefault((entry.job_id, entry.iteration), {}).update(figures)
            elif isinstance(entry, IterationSlice):
                phases = self._phases.pop((entry.job_id, entry.number), {})
                self._points.append(IterationPoint(entry.job_id, entry.number, iteration_figures(entry) | phases))
                self._count += 1

    def on_command(self, command: Command) -> None:
        """Ignore a command."""

    def after(self, behind: int) -> tuple[int, list[IterationPoint]]:
        """Return the number of iterations so far, and those after the first `behind` ones, as far as they are in memory."""
        left = self._count - behind
        return self._count, [*self._points][-left:] if left > 0 else []


class JobLoggers:
    """The loggers of a run's jobs. One that raises an error gets no more figures, and its job continues.

    Args:
        make: Function that makes a logger from a folder.
        folder: Folder of the run.
        job_ids: Ids of the jobs.
        say: Callback for a line about a logger that raised an error.

    Raises:
        InputError: A logger cannot be made; one line.
    """

    def __init__(self, make: MakeLogger, folder: Path, job_ids: Iterable[str], say: Callable[[str], None]) -> None:
        self._say, self._folder = say, folder / LOGGERS
        self._loggers: dict[str, FigureLogger] = {}
        private_folder(self._folder)
        with ExitStack() as on_error:
            on_error.callback(self.close)
            for job_id in job_ids:
                private_folder(self._folder / job_id)
                try:
                    self._loggers[job_id] = make(self._folder / job_id)
                except PlanError as error:
                    raise InputError(str(error)) from error
            on_error.pop_all()

    def write(self, points: Sequence[IterationPoint]) -> None:
        """Write the figures of iterations, each to the logger of its job."""
        for job_id, number, figures in points:
            if job_id in self._loggers:
                try:
                    self._loggers[job_id].write(figures, dict.fromkeys(figures, ()), number)
                except PlanError as error:
                    del self._loggers[job_id]
                    self._say(f"{job_id}: {error}; it gets no more figures")

    def close(self) -> None:
        """Close all loggers, and make what they have written accessible only to the user."""
        for job_id, logger in self._loggers.items():
            try:
                logger.close()
            except PlanError as error:
                self._say(f"{job_id}: {error}")
        make_private(self._folder)
