"""Check of the files of a journal: how many facts are intact, and whether its parts follow from each other.

A7  each part of a journal begins with what the part before it leaves: accounts, quotas, and drains of nodes; if jobs were present,
    with all that a recovery reads of the part before it
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from policies.registry import observed_state
from rollmux_env.cluster.events import Event
from rollmux_env.cluster.recorded import IMPOSSIBLE, apply_recorded
from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, copy_data
from rollmux_env.validation_errors import one_line
from runtime.journal.audit import Audit, JobOutcome, audit
from runtime.journal.carry import RULES, carried_facts, count_carried, select_events
from runtime.journal.facts import Fact, PartBegun, RunStarted, SharingBound
from runtime.journal.kinds import kind_of
from runtime.journal.log import log_problem
from runtime.journal.parts import newest_part, part_paths, read_parts
from runtime.journal.read import DamagedJournal, check_there, facts_of, first_number, opened, structure_problem
from runtime.journal.rollover import next_part
from runtime.journal.write import LOCK
from runtime.own_folder import spare_folder


def audit_parts(parts: Mapping[int, Sequence[Fact]]) -> Audit:
    """Audit all parts of a journal, each one alone and in how it begins.

    Args:
        parts: Facts of each part by its number, oldest part first.

    Raises:
        InputError: A part has not the facts of a run.
    """
    audits, jobs, problems = {number: audit(facts) for number, facts in parts.items()}, dict[str, JobOutcome](), list[str]()
    earlier = jobs
    for number, one in audits.items():
        if count_carried(parts[number]):  # it knows the jobs of the part before it
            jobs = dict(earlier)
        earlier = dict(jobs)
        jobs |= {f"{job_id} (part {number})" if job_id in jobs else job_id: outcome for job_id, outcome in one.jobs.items()}
        problems += [f"part {number}: {problem}" if len(parts) > 1 else problem for problem in one.problems]
    for (number, before), (next_number, after) in pairwise(parts.items()):
        if problem := _beginning_problem(before, after, bool(audits[number].problems)):
            problems.append(f"A7: part {next_number} {problem}")
    iterations, repeated = sum(one.iterations for one in audits.values()), sum(one.repeated for one in audits.values())
    restarts, relaunches = sum(one.restarts for one in audits.values()), sum(one.relaunches for one in audits.values())
    return Audit(jobs, iterations, repeated, restarts, relaunches, tuple(problems))


def _beginning_problem(before: Sequence[Fact], after: Sequence[Fact], is_known: bool) -> str | None:
    """Return why a part cannot follow the part before it, or None if it does.

    Args:
        before: Facts of the part before it.
        after: Facts of the part.
        is_known: Whether the audit of the part before it has found a problem, which explains that nothing can follow from it.
    """
    count = count_carried(after)
    try:
        expected = carried_facts(before) if count else next_part(before)
    except InputError as error:
        return None if is_known else f"cannot be compared with the part before it: {error}"
    if expected is None:
        return "follows a part that was not rolled over, or in which a job was present"
    begun = after[count - 1] if count else None
    if isinstance(begun, PartBegun) and begun.rules != RULES:  # another version selected what it needed, and all events
        follows = _events(expected) == _events(after[:count])
    else:
        follows = expected == tuple(after[: len(expected)])
    return None if follows else "does not begin with what the part before it leaves"


def _events(facts: Sequence[Fact]) -> list[Fact]:
    return [fact for _, fact in select_events(facts)]


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Replace an error about inconsistent facts of a journal by the first problem that an audit of the journal finds.

    Raises:
        InputError: The audit finds a problem. Without one, the original error is raised.
    """
    try:
        yield
    except InputError:
        raise
    except IMPOSSIBLE as error:
        problems = audit_parts(read_parts(folder)).problems
        if not problems:
            raise
        name = one_line(str(newest_part(folder)), 4096)
        raise InputError(f"{name}: its facts do not go together ({one_line(str(error))}): {one_line(problems[0])}") from None


@dataclass(frozen=True)
class JournalCheck:
    """Result of a check of a journal file.

    Attributes:
        facts: All facts before the first damaged one.
        last_number: Number of the last of them, or 0 if there is none.
        problem: The damage after them, or None if the journal is intact.
    """

    facts: tuple[Fact, ...]
    last_number: int
    problem: str | None

    @property
    def last(self) -> str:
        """Number, kind and time of the last intact fact."""
        if not self.facts:
            return "none"
        fact = self.facts[-1]
        at_s = "" if isinstance(fact, SharingBound) else f" at {fact.at_s:.3f} s"
        return f"{self.last_number}, {kind_of(fact)}{at_s}"


def check_journal(folder: Path) -> JournalCheck:
    """Check the journal of a run or service that has ended, fact by fact.

    Raises:
        InputError: There is no journal, it is in use, or the file is no journal at all.
    """
    facts, last_number = list[Fact](), 0
    paths = part_paths(folder) or [newest_part(folder)]
    for path in paths:
        whole, first, problem = _check_part(path)
        facts += whole[count_carried(whole) if facts else 0 :]
        last_number = first + len(whole) - 1 if whole else last_number
        if problem is not None:
            return JournalCheck(tuple(facts), last_number, f"{path.name}: {problem}" if len(paths) > 1 else problem)
    return JournalCheck(tuple(facts), last_number, None)


def _check_part(path: Path) -> tuple[Sequence[Fact], int, str | None]:
    """Return the facts of a part before the first damaged one, the number of its first fact, and the damage or None."""
    name = one_line(str(path), 4096)
    facts: list[Fact] = []
    with _copied(path) as copy:
        problem = log_problem(copy)
        with opened(copy) as database:
            try:
                for fact in facts_of(database, name):
                    facts.append(fact)  # noqa: PERF402 - keeps the facts before a damaged one
                problem = problem or structure_problem(database)
            except DamagedJournal as damage:
                problem = f"fact {damage.number} {damage.problem}"
            first = first_number(database) if facts else 1
    possible, why = _possible(facts)
    if why is not None:
        problem = f"fact {first + possible} ({kind_of(facts[possible])}) cannot have happened after those before it: {why}"
    return facts[:possible], first, problem


def _possible(facts: Sequence[Fact]) -> tuple[int, str | None]:
    """Return how many of the first facts are consistent, and why the next one is not."""
    if not facts:
        return 0, None
    if not isinstance(facts[0], RunStarted):
        return 0, "it is not the start of a run"
    state = observed_state(facts[0].policy, facts[0].cluster)
    for number, fact in enumerate(facts[1:], 1):
        if isinstance(fact, RunStarted):
            return number, "the run has begun already"
        if isinstance(fact, Event):
            try:
                apply_recorded(state, fact)
            except IMPOSSIBLE as error:
                return number, one_line(str(error))
    return len(facts), None


@contextlib.contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Provide a copy of a journal that no process writes.

    Raises:
        InputError: There is no journal, a process writes it, or there is no space for a copy.
    """
    name = one_line(str(path), 4096)
    log = path.with_name(f"{path.name}-wal")
    check_there(path)
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
    """Hold a lock so that no process starts to write the journal.

    Raises:
        InputError: A process already writes it.
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
