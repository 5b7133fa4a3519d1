"""Roll-over of a service's journal into a next part, when no job is present, and by size while jobs are present.

A service that has had no job for a while ends with `RunEnded(outcome="rolled over")`, and begins again as after any stop. Its start
calls `begin_next_part`, which writes the next part under another name, and renames it when it is on disk. A kill before that leaves
the earlier part as the newest one, and the next start writes the next part again: it follows from the earlier part alone.

A service with jobs does not end. Between two commits, it begins the next part with the facts that a recovery needs
(`runtime.journal.carry`), and continues to write there. Nothing else changes: no permit is taken back, and no job learns of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from time import time
from typing import Literal

from rollmux_env.cluster.events import Carried, CarriedLength, CarriedUsage
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.scheduler.facts import Drained
from rollmux_env.validation_errors import one_line
from runtime.journal.audit import outcomes
from runtime.journal.carry import carried_facts
from runtime.journal.facts import DrainPlanned, Fact, RunEnded, RunStarted, SchedulerInformed
from runtime.journal.parts import newest_part, part_after
from runtime.journal.read import JOURNAL, first_fact, is_begun, last_fact, read_facts
from runtime.journal.record import RunRecord
from runtime.journal.write import Journal, Row, name_in_errors, record_of, row_of, state_of, write_part

ROLLED_OVER: Literal["rolled over"] = "rolled over"
MOST_FACTS = 4000  # facts of a part, about 1 MB, from which a service that has no job begins the next one
MOST_FACTS_WITH_JOBS = 20_000  # facts of a part, about 5 MB, from which a service continues in the next one while jobs are present
QUIET_S = 300.0  # time without a job before that, in which owners learn that their jobs are over
_BEGINS_S = 30.0  # time in which a service answers again


def next_part(facts: Sequence[Fact]) -> tuple[Fact, ...] | None:
    """Return the first facts of the part that follows a part, or None if the part was not rolled over.

    It is also None if a job is present after all, or a node may be in use.

    Args:
        facts: Facts of the part.
    """
    if not facts or not _is_mark(facts[-1]):
        return None
    record = record_of(facts)
    state = state_of(record)
    if state.waiting or state.tables.order.size or "present" in outcomes(record)[0].values() or _suspects(record):
        return None
    start, at_s = record.started, record.last_s
    wall_s = record.wall_s(at_s) - at_s
    nodes, versions = tuple(record.nodes.values()), (record.relaunched[-1] if record.relaunched else start).versions
    begins: list[Fact] = [RunStarted(at_s, wall_s, start.policy, start.dispatch, record.cluster, nodes, versions, start.seed)]
    begins.append(_carried(record, state, at_s))
    if drained := record.drained_nodes:
        begins.append(SchedulerInformed(at_s, (Drained(frozenset(drained)),)))
    begins += [DrainPlanned(at_s, plan.node, plan.starts_s, plan.deadline_s) for plan in record.planned_drains.values()]
    return tuple(begins)


def _is_mark(fact: Fact | None) -> bool:
    return isinstance(fact, RunEnded) and fact.outcome == ROLLED_OVER


def begin_next_part(folder: Path, say: Callable[[str], None]) -> None:
    """Begin the next part of a journal if it was rolled over. No process writes the journal meanwhile.

    If the part cannot be written, for example because the disk is full, the journal continues in its newest part.

    Args:
        folder: Folder of the journal.
        say: Callback for a line about it.

    Raises:
        InputError: The newest part is damaged.
    """
    path = newest_part(folder)
    if not is_begun(path):
        return
    number, last = last_fact(path)
    if not _is_mark(last):
        return
    facts = read_facts(path)
    with name_in_errors(path):
        begins = next_part(facts)
    if begins is None:
        say(f"{one_line(str(path), 4096)}: a job is present or a node may be in use after all; the journal continues in it")
        return
    after = part_after(path)
    try:
        write_part(after, number + 1, [*map(row_of, begins)])
    except (OSError, sqlite3.Error) as error:
        name, problem = one_line(str(after), 4096), "may not last" if after.exists() else "cannot be written"
        say(f"{name}: {problem}: {error}; the journal continues in {newest_part(folder).name}")
        return
    say(f"no job was present: the journal continues in {after.name}")


def is_long(journal: Journal) -> bool:
    """Return whether a journal must continue in its next part although jobs are present.

    Where much is carried over, a part becomes longer, so that all parts together are at most a third longer than without that.
    """
    return journal.length >= max(MOST_FACTS_WITH_JOBS, 4 * journal.carried)


def rows_to_carry(known: Sequence[Fact]) -> dict[int, Row]:
    """Return the rows of those of some facts that would be carried over, by `id` of the fact; commits need not wait for this.

    Args:
        known: First facts of the newest part.

    Raises:
        InputError: They are not the facts of a run.
    """
    lasting = {*map(id, known)}  # merged facts are freed on return, and their ids used again
    return {id(fact): row_of(fact) for fact in carried_facts(known) if id(fact) in lasting}


def continue_in_next_part(journal: Journal, known: Sequence[Fact] = (), rows: Mapping[int, Row] | None = None) -> str | None:
    """Continue a journal in its next part while jobs are present. May be called in any thread, while nothing is written.

    Args:
        journal: The journal.
        known: First facts of its newest part, as far as they have been read before.
        rows: Rows of some of these facts, as `rows_to_carry` returns them.

    Returns:
        Why the journal continues in the part in which it was, one line, or None if it continues in the next one.

    Raises:
        InputError: As `Journal.begin_part`.
    """
    path, rows = journal.path, rows or {}
    try:
        begins = carried_facts([*known, *journal.facts(len(known))])
    except InputError as error:
        return str(error)
    try:
        journal.begin_part([rows.get(id(fact)) or row_of(fact) for fact in begins])
    except (OSError, sqlite3.Error) as error:
        return f"{one_line(str(part_after(path)), 4096)}: cannot be written: {error}; the journal continues in {path.name}"
    return None


def is_beginning(folder: Path) -> bool:
    """Return whether a journal was rolled over without jobs a moment ago, so that its service is about to answer again.

    A part that begins while jobs are present says when the first part of them began: its service has answered all the time.
    """
    path = newest_part(folder)
    if not is_begun(path):
        return False
    if _is_mark(last_fact(path)[1]):  # nothing is written to the file any more
        began_s = path.stat().st_mtime
    else:
        start = first_fact(path) if path.name != JOURNAL else None
        began_s = start.at_s + start.wall_s if isinstance(start, RunStarted) else -inf
    return time() - began_s <= _BEGINS_S


def _carried(record: RunRecord, state: State, at_s: float) -> Carried:
    """Return what remains known of the jobs of a part whose last state is given."""
    month = state.months[-1].name if state.months else record.first_month
    usage = (CarriedUsage(user, *used) for user, used in sorted(state.charges.settled(at_s).items()))
    return Carried(at_s, month, tuple(usage), tuple(_lengths(state)))


def _lengths(state: State) -> Iterator[CarriedLength]:
    """Yield the lengths of departed jobs that the state keeps, in order of departure as far as it knows it.

    They get ids that no job can have: a later job may have the name of one of these jobs, and its own length.
    """
    stays = state.stays
    classes = stays.lengths_of_class_h.items()
    every = {job_id: (name, length_h) for name, lengths_h in classes for job_id, length_h in lengths_h.items()}
    ordered = (*(job_id for job_id in every if job_id not in stays.lengths_h), *stays.lengths_h)
    for number, job_id in enumerate(ordered, 1):
        yield CarriedLength(f"#{number}", *every[job_id])


def _suspects(record: RunRecord) -> set[tuple[str, str]]:
    """Return the nodes that lost leases may still use, each with its lease."""
    suspected = {(fact.lease, node) for fact in record.suspected for node in fact.nodes}
    return suspected - {(fact.lease, node) for fact in record.freed for node in fact.nodes}
