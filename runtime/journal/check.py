"""How much of a journal is whole. The file is neither changed nor opened by SQLite: a copy is."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from policies.registry import observed_state
from rollmux_env.cluster.events import Event
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, copy_data
from rollmux_env.validation_errors import one_line
from runtime.journal.facts import Bound, Fact, Started
from runtime.journal.read import JOURNAL, DamagedJournal, facts_of, opened, structure_problem
from runtime.journal.write import IMPOSSIBLE, LOCK
from runtime.own_folder import spare_folder


@dataclass(frozen=True)
class Check:
    """What is whole.

    Attributes:
        facts: all before the first that is not. problem: what is wrong behind them; None where nothing is. One line.
    """

    facts: tuple[Fact, ...]
    problem: str | None

    @property
    def last(self) -> str:
        """The last whole fact: number, kind and time."""
        if not self.facts:
            return "none"
        fact = self.facts[-1]
        at_s = "" if isinstance(fact, Bound) else f" at {fact.at_s:.3f} s"
        return f"{len(self.facts)}, {type(fact).__name__}{at_s}"


def check_journal(folder: Path) -> Check:
    """Look at the journal of a run or a service that has ended, fact by fact.

    Raises:
        InputError: there is none, it is in use, or it is no journal at all; one line.
    """
    path = folder / JOURNAL
    name = one_line(str(path), 4096)
    facts: list[Fact] = []
    problem = None
    with _copied(path) as copy, opened(copy) as database:
        try:
            for fact in facts_of(database, name):
                facts.append(fact)  # noqa: PERF402 - what was read stays known
            problem = structure_problem(database)
        except DamagedJournal as damage:
            problem = f"fact {damage.number} {damage.problem}"
    possible, why = _possible(facts)
    if why is not None:
        problem = f"fact {possible + 1} ({type(facts[possible]).__name__}) cannot have happened after those before it: {why}"
    return Check(tuple(facts[:possible]), problem)


def _possible(facts: Sequence[Fact]) -> tuple[int, str | None]:
    """How many facts, from the first on, may have happened one after the other, and what is wrong with the next one."""
    if not facts:
        return 0, None
    if not isinstance(facts[0], Started):
        return 0, "it is not the start of a run"
    state = observed_state(facts[0].policy, facts[0].cluster)
    for number, fact in enumerate(facts[1:], 1):
        if isinstance(fact, Started):
            return number, "the run has begun already"
        if isinstance(fact, Event):
            try:
                apply_recorded(state, fact)
            except IMPOSSIBLE as error:
                return number, one_line(str(error))
    return len(facts), None


@contextlib.contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """A copy of a journal that nobody writes, for as long as it is needed.

    Raises:
        InputError: there is none, somebody writes it, or there is no room for a copy; one line.
    """
    name = one_line(str(path), 4096)
    log = path.with_name(f"{path.name}-wal")
    if not path.exists() and not path.is_symlink():
        raise InputError(f"{name}: there is no journal of a run here")
    with _unused(path.with_name(LOCK)), spare_folder() as spare:
        try:
            for file in (path, log) if log.is_file() else (path,):
                check_regular(file)
                copy_data(file, spare / file.name)
        except OSError as error:
            raise InputError(f"{name}: cannot be copied to {spare}: {error.strerror or error}") from None
        yield spare / path.name


@contextlib.contextmanager
def _unused(lock: Path) -> Iterator[None]:
    """Nobody begins to write a journal meanwhile.

    Raises:
        InputError: somebody does already; one line.
    """
    if not lock.is_file():
        yield
        return
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{one_line(str(lock.parent), 4096)}: a run is under way in this folder") from None
        yield
