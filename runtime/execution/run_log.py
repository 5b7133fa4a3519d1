"""The clock of a run, its journal, and the lines that are said about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from runtime.execution.run_plan import RunPlan
from runtime.facts import Fact
from runtime.journal import JOURNAL, Journal

_DYING_S = 30.0  # how long the last writer of a journal that goes on may still take to end
_LINES = 10_000  # that are kept


class RunLog:
    """What is written down.

    Args:
        plan: of the run, whose folder the journal is in.

    Attributes:
        zero_s: the reading of this machine's clock at time 0.
        observe: is called with facts that have been written.

    Raises:
        InputError: the folder cannot be used; one line.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.journal = Journal(Path(plan.folder) / JOURNAL, plan.resume, wait_s=_DYING_S if plan.resume else 0.0)
        self.zero_s = monotonic()
        self.observe: Callable[[tuple[Fact, ...]], None] = lambda _: None
        self._lines: list[str] = []
        self._dropped = 0

    def now(self) -> float:
        """The time, seconds."""
        return monotonic() - self.zero_s

    def write(self, *facts: Fact) -> None:
        """Take facts; see `Journal.write`.

        Raises:
            InputError: the journal cannot be written; one line.
        """
        if facts:
            self.journal.write(*facts)
            self.observe(facts)

    def say(self, line: str) -> None:
        """Let the user know."""
        self._lines.append(f"{self.now():8.1f} s  {line}")
        if len(self._lines) > _LINES:
            self._dropped += _LINES // 2
            del self._lines[: _LINES // 2]

    def lines(self, behind: int) -> list[str]:
        """Lines behind the first so many, as far as they are still known."""
        return self._lines[max(0, behind - self._dropped) :]

    @property
    def line_count(self) -> int:
        """How many lines there have been."""
        return self._dropped + len(self._lines)
