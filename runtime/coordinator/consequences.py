"""The consequences of an event in a run, which transitions return and `RunLoop.apply` carries out."""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.scheduler import facts
from runtime.coordinator.job_handle import JobHandle
from runtime.journal.facts import Fact


class Errand(NamedTuple):
    """A task for `JobLifecycle`: start a job's processes if it has none, or end them.

    Attributes:
        handle: The job.
        ends: Whether to end the processes.
    """

    handle: JobHandle
    ends: bool


class Consequences(NamedTuple):
    """The consequences of an event.

    Attributes:
        reports: Facts for the scheduler.
        entries: Journal entries, before those that follow from the reports.
        lines: Lines for the user.
        errands: Tasks for `JobLifecycle`, after the scheduler's commands.
    """

    reports: tuple[facts.Fact, ...] = ()
    entries: tuple[Fact, ...] = ()
    lines: tuple[str, ...] = ()
    errands: tuple[Errand, ...] = ()

    def then(self, other: Consequences) -> Consequences:
        """Return these consequences followed by others, as one."""
        reports, entries = self.reports + other.reports, self.entries + other.entries
        return Consequences(reports, entries, self.lines + other.lines, self.errands + other.errands)
