"""The clock of a run, its journal, and the lines that are said about it.

Facts are taken at once, and committed in a thread: whoever tells somebody of them waits until they are on the disk (`durable`).
Where there is no room for the journal, facts wait until there is, and so does whoever acts on them (`problem`).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic

from rollmux_env.errors import InputError
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.job_log import tell_of
from runtime.journal.commits import Commits
from runtime.journal.facts import Fact
from runtime.journal.write import JOURNAL, Journal, Unwritable

_DYING_S = 30.0  # how long the last writer of a journal that goes on may still take to end
_LINES = 10_000  # that are kept


class RunLog:
    """What is written down.

    Args:
        plan: of the run, whose folder the journal is in. observe: is called with facts that are written down.

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
        self._folder = plan.folder
        self._observe = observe
        self.problem: str | None = None
        self.line_count = 0
        self._commits: Commits | None = None
        self._is_patient = True
        self._lines = deque[str](maxlen=_LINES)

    def begin(self, written: Callable[[bool], None], broken: Callable[[BaseException], None]) -> None:
        """Commit in a thread from now on. Until then, while a run begins, each `write` makes its own commit.

        Args:
            written: is called after a commit; whether the journal could not be written before it. broken: is called where it never
                will be.
        """
        self._written, self._broken = written, broken
        self._commits = Commits(self.journal, self._ended)

    def now(self) -> float:
        """The time, seconds."""
        return monotonic() - self.zero_s

    def write(self, *facts: Fact) -> None:
        """Take facts. They are on the disk when `durable` returns; if the journal cannot be written now, they wait.

        Raises:
            InputError: the journal cannot be written, and never will be; while the run begins; one line.
        """
        self._observe(facts)
        if self._commits is not None:
            self.journal.put(*facts)
            if self.journal.is_due:
                self.commit()
            return
        try:
            self.journal.write(*facts)
        except Unwritable as error:
            self.problem = str(error)

    def commit(self) -> None:
        """Bring what was written to the disk soon, also what may wait for more; where there was no room, `write_again` does."""
        if self.problem is None and self._commits is not None:
            self._commits.soon()

    def write_again(self) -> None:
        """Try again what could not be written."""
        if self.problem is not None and self._commits is not None:
            self._commits.soon()

    async def durable(self) -> None:
        """Wait until all that was written down is on the disk.

        Raises:
            Unwritable: it cannot be, and nobody waits until it can (`hurry`); one line.
        """
        if self._commits is None:
            return
        if self.problem is not None and not self._is_patient:
            raise Unwritable(self.problem)
        await self._commits.durable()

    def hurry(self) -> None:
        """The run ends: nobody waits any more for a journal that cannot be written."""
        self._is_patient = False
        if self.problem is not None and self._commits is not None:
            self._commits.give_up(Unwritable(self.problem))

    async def end(self) -> None:
        """Write what is left, if that can be done, and nothing more; else `problem` says why."""
        if self._commits is None:
            return
        try:
            await self._commits.close()
        except InputError as error:
            self.problem = str(error)
        else:
            self.problem = None

    async def close(self) -> None:
        """Close the journal."""
        await self.end()
        with contextlib.suppress(InputError):  # of a disk without room: that has been said
            self.journal.close()

    def tell_of(self, job_id: str, text: str) -> None:
        """Add a line to what is told of an attached job; see `runtime.jobside.job_log.tell_of`."""
        if self._commits is None:
            tell_of(self._folder, job_id, text)
        else:
            self._commits.aside(partial(tell_of, self._folder, job_id, text))

    def _ended(self, error: BaseException | None) -> None:
        """A commit has ended."""
        had_problem = self.problem is not None
        if isinstance(error, Unwritable):
            if not had_problem:
                self.say(f"{error}: nothing is granted and no job is taken until it can be; it is tried again every second")
            self.problem = str(error)
            if not self._is_patient:
                self.hurry()
        elif error is not None:
            self._broken(error)
            if self._commits is not None:
                self._commits.give_up(error)  # the run is over; nobody may wait for what will never be written
        else:
            self.problem = None
            if had_problem:
                self.say("the journal can be written again: jobs go on")
            self._written(had_problem)

    def say(self, line: str) -> None:
        """Let the user know."""
        self._lines.append(f"{self.now():8.1f} s  {line}")
        self.line_count += 1

    def lines(self, behind: int) -> list[str]:
        """Lines behind the first so many, as far as they are still known."""
        return [*islice(self._lines, max(0, behind - self.line_count + len(self._lines)), None)]
