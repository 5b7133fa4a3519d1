"""The clock of a run, its journal, and the lines that are said about it.

Where there is no room for the journal, facts wait until there is; whoever acts on them waits for that (`problem`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import monotonic

from runtime.execution.run_plan import RunPlan
from runtime.journal.facts import Fact
from runtime.journal.write import JOURNAL, Journal, Unwritable

_DYING_S = 30.0  # how long the last writer of a journal that goes on may still take to end
_LINES = 10_000  # that are kept


class RunLog:
    """What is written down.

    Args:
        plan: of the run, whose folder the journal is in. observe: is called with facts that have been written.

    Attributes:
        zero_s: the reading of this machine's clock at time 0.
        problem: why the journal cannot be written now; None where it can.
        line_count: how many lines have been said.

    Raises:
        InputError: the folder cannot be used; one line.
    """

    def __init__(self, plan: RunPlan, observe: Callable[[tuple[Fact, ...]], None] = lambda _: None) -> None:
        self.journal = Journal(Path(plan.folder) / JOURNAL, plan.resume, wait_s=_DYING_S if plan.resume else 0.0)
        self.zero_s = monotonic()
        self._observe = observe
        self.problem: str | None = None
        self.line_count = 0
        self._waiting: tuple[Fact, ...] = ()
        self._lines = deque[str](maxlen=_LINES)

    def now(self) -> float:
        """The time, seconds."""
        return monotonic() - self.zero_s

    def write(self, *facts: Fact) -> None:
        """Take facts; see `Journal.write`. If it cannot be written now, they wait for `write_again`, and `problem` says why.

        Raises:
            InputError: the journal cannot be written, and never will be; one line.
        """
        self._waiting += facts
        if self.problem is None:
            self.write_again()

    def flush(self) -> None:
        """Bring what was written to the disk, also what may wait for more; else `problem` says why; raises as `write`."""
        if self.problem is None:
            self._try(self.journal.flush)

    def write_again(self) -> None:
        """Write what waits, if it can be written now; raises as `write`."""
        if self._waiting or self.problem is not None:
            self._try(self._write_waiting)

    def _write_waiting(self) -> None:
        if self._waiting:
            self.take(*self._waiting)
            self._waiting = ()
        if self.problem is not None:
            self.journal.flush()

    def _try(self, write: Callable[[], None]) -> None:
        """Write to the journal, or say why that cannot be done."""
        try:
            write()
        except Unwritable as error:
            if self.problem is None:
                self.say(f"{error}: nothing is granted and no job is taken until it can be; it is tried again every second")
            self.problem = str(error)
            return
        if self.problem is not None:
            self.problem = None
            self.say("the journal can be written again: jobs go on")

    def take(self, *facts: Fact) -> None:
        """Take facts, or none of them.

        Raises:
            InputError: the journal cannot be written; one line.
        """
        self.journal.write(*facts)
        self._observe(facts)

    def say(self, line: str) -> None:
        """Let the user know."""
        self._lines.append(f"{self.now():8.1f} s  {line}")
        self.line_count += 1

    def lines(self, behind: int) -> list[str]:
        """Lines behind the first so many, as far as they are still known."""
        return [*islice(self._lines, max(0, behind - self.line_count + len(self._lines)), None)]
