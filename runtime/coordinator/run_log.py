"""The clock of a run, its journal, and the lines about it for the user.

Facts are taken at once and committed in a thread: before anything outside is informed of them, `durable` waits until they are on
disk. If there is no room for the journal, facts wait until there is, and so does everything that depends on them (`problem`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic

from rollmux_env.errors import InputError
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.job_log import append_job_log
from runtime.journal.commits import Commits
from runtime.journal.facts import Fact
from runtime.journal.parts import newest_part
from runtime.journal.rollover import continue_in_next_part, rows_to_carry
from runtime.journal.write import Journal, Unwritable

_DYING_S = 30.0  # longest wait for the end of the journal's previous writer
_LINES = 10_000  # last lines that stay in memory


class RunLog:
    """The clock, the journal and the lines of a run.

    Args:
        plan: Plan of the run, with the folder of the journal.
        observe: Callback for facts that are written.

    Attributes:
        journal: The journal.
        zero_s: Reading of this machine's clock at time 0, in seconds.
        problem: Reason why the journal cannot be written now, or None.
        line_count: Number of lines so far.

    Raises:
        InputError: If the folder cannot be used; one line.
    """

    def __init__(self, plan: RunPlan, observe: Callable[[tuple[Fact, ...]], None] = lambda _: None) -> None:
        self.journal = Journal(newest_part(Path(plan.folder)), plan.resume, wait_s=_DYING_S if plan.resume else 0.0)
        self.zero_s = monotonic()
        self._folder = plan.folder
        self._observe = observe
        self.problem: str | None = None
        self.line_count = 0
        self._commits: Commits | None = None
        self._is_patient = True
        self._lines = deque[str](maxlen=_LINES)

    def begin(self, written: Callable[[bool], None], broken: Callable[[BaseException], None]) -> None:
        """Commit in a thread from now on. Before, while a run begins, each `write` makes its own commit.

        Args:
            written: Callback after a commit, with whether the journal could not be written before.
            broken: Callback for an error after which the journal can never be written.
        """
        self._written, self._broken = written, broken
        self._commits = Commits(self.journal, self._ended)

    def now(self) -> float:
        """Return the present time of the run, in seconds."""
        return monotonic() - self.zero_s

    def write(self, *facts: Fact) -> None:
        """Take facts. They are on disk when `durable` returns. If the journal cannot be written now, they wait.

        Args:
            *facts: The facts, in order.

        Raises:
            InputError: If the journal cannot be written while the run begins: decisions that are not carried out would let it
                decide wrongly about leases; one line.
        """
        self._observe(facts)
        if self._commits is not None:
            self.journal.put(*facts)
            if self.journal.is_due:
                self.commit()
            return
        if self.problem is not None:
            raise Unwritable(self.problem)
        try:
            self.journal.write(*facts)
        except InputError as error:
            self.problem = str(error)
            raise

    def commit(self) -> None:
        """Commit soon what was written, including facts that may wait for a common commit.

        After a failure, `write_again` commits.
        """
        if self.problem is None and self._commits is not None:
            self._commits.schedule()

    def write_again(self) -> None:
        """Try again to write what could not be written."""
        if self.problem is not None and self._commits is not None:
            self._commits.schedule()

    async def durable(self) -> None:
        """Wait until everything that was written is on disk, so that others may be informed.

        Raises:
            Unwritable: If the journal cannot be written, after `stop_waiting`; one line.
        """
        if self._commits is None:
            return
        if self.problem is not None and not self._is_patient:
            raise Unwritable(self.problem)
        await self._commits.durable()

    def stop_waiting(self) -> None:
        """Stop waiting for a journal that cannot be written, because the run ends."""
        self._is_patient = False
        if self.problem is not None and self._commits is not None:
            self._commits.give_up(Unwritable(self.problem))

    async def end(self) -> None:
        """Write what is left and end the commits; if that fails, set `problem`."""
        if self._commits is None:
            return
        try:
            await self._commits.close()
        except InputError as error:
            self.problem = str(error)
        else:
            self.problem = None

    async def close(self) -> None:
        """Close the journal. A run that has not begun leaves it with what is on the disk."""
        if self._commits is None:
            self.journal.discard()
        try:
            await self.end()
        finally:
            with contextlib.suppress(InputError):  # the disk is full, which has been reported
                self.journal.close()

    async def begin_next_part(self) -> str | None:
        """Continue the journal in its next part, and return what `runtime.journal.rollover.continue_in_next_part` returns.

        Most facts are read before, so that commits wait for a short time only.
        """
        assert self._commits is not None
        try:
            known = await asyncio.to_thread(self.journal.facts)
            rows = await asyncio.to_thread(rows_to_carry, known)
            known += await asyncio.to_thread(self.journal.facts, len(known))
        except InputError as error:  # the journal is damaged, or not that of a run
            return str(error)
        return await self._commits.run_between(partial(continue_in_next_part, self.journal, known, rows))

    def write_job_log(self, job_id: str, text: str) -> None:
        """Append a line to the log of an attached job; see `runtime.jobside.job_log.append_job_log`."""
        if self._commits is None:
            append_job_log(self._folder, job_id, text)
        else:
            self._commits.run_after_commit(partial(append_job_log, self._folder, job_id, text))

    def _ended(self, error: BaseException | None) -> None:
        """Handle the end of a commit."""
        had_problem = self.problem is not None
        if isinstance(error, Unwritable):
            if not had_problem:
                self.say(f"{error}: nothing is granted and no job is taken until it can be; it is tried again every second")
            self.problem = str(error)
            if not self._is_patient:
                self.stop_waiting()
        elif error is not None:
            self._broken(error)
            if self._commits is not None:
                self._commits.give_up(error)  # the run is over; a wait for these facts would never end
        else:
            self.problem = None
            if had_problem:
                self.say("the journal can be written again: jobs go on")
            self._written(had_problem)

    def say(self, line: str) -> None:
        """Add a line for the user."""
        self._lines.append(f"{self.now():8.1f} s  {line}")
        self.line_count += 1

    def lines(self, behind: int) -> list[str]:
        """Return the lines after the first `behind` ones, as far as they are in memory."""
        return [*islice(self._lines, max(0, behind - self.line_count + len(self._lines)), None)]
