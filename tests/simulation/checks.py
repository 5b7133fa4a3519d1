"""What must be true of every world, whatever has gone wrong in it."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from runtime.journal.carry import count_carried
from runtime.journal.check import audit_parts
from runtime.journal.facts import Fact, LeaseEnded, NodesFreed, NodesSuspected, OwnerAttached, PhaseGranted, PhaseSlice, SyncSlice
from runtime.journal.replay import joined, replay_journal
from runtime.journal.write import Row, record_of
from tests.runtime.journal.recovered import recovered
from tests.simulation.network import Answered


@dataclass
class Turn:
    """A phase as its owner has had it, in times of the world: when it asked, had it, or had to leave, gave it back, was told so."""

    lease: str
    job: str
    phase: str
    iteration: int
    asked_s: float
    had_s: float | None = None
    left_s: float = math.inf
    gives_s: float | None = None
    given_s: float | None = None


class Durable:
    """What is synced, and so may be answered; each answer is looked at when the service sends it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.count = 0
        self.last: dict[tuple[Any, ...], int] = {}  # number of the last fact of a kind about something
        self.jobs: dict[str, str] = {}  # of leases
        self.failures: set[tuple[str, str]] = set()  # kinds of notices, and their jobs
        self.suspects: set[tuple[str, str]] = set()  # nodes and the leases that may still use them

    def add(self, row: Row) -> None:
        """A fact is synced."""
        self.count += 1
        kind = row[0]
        if kind in _TOLD:
            self.failures.add((_TOLD[kind], json.loads(row[1])["job_id"]))
        if kind not in _WATCHED:
            return
        body = json.loads(row[1])
        if kind == "Submitted":
            key: tuple[Any, ...] = (kind, body["spec"]["id"])
        elif kind == "Granted":
            key = (kind, body["lease"], body["phase"], _number(body["phase"], body["iteration"]), body["extra"])
        elif kind == "PhaseSlice":
            key = ("over", body["job_id"], body["phase"], _number(body["phase"], body["iteration"]), body["extra"])
        elif kind == "SyncSlice":
            key = ("over", body["job_id"], "sync", body["iteration"], False)
        else:
            key = (kind, body["lease"])
            self.jobs[body["lease"]] = body["job_id"]
            if kind in ("Suspected", "Freed"):
                held = {(node, body["lease"]) for node in body["nodes"]}
                self.suspects = self.suspects | held if kind == "Suspected" else self.suspects - held
        self.last[key] = self.count

    def answered(self, one: Answered) -> None:
        """The service answers: what it says is synced, and it does not say that it has failed."""
        if one.status == 500:
            self.problems.append(f"{one.method} {one.path}: {one.refusal}")
        if (one.status >= 300 and one.status != 409) or (missing := self._missing(one)) is None:
            return
        self.problems.append(f"answered before it was synced: {one.method} {one.path} {one.asked}: {missing}")

    def told(self, kind: str, job: str | None) -> None:
        """A notice is told: the fact behind it is synced."""
        if kind in _TOLD.values() and (kind, job) not in self.failures:
            self.problems.append(f"{job}: told that it is {kind} before it was synced")

    def _missing(self, one: Answered) -> str | None:
        parts = one.path.strip("/").split("/")
        if one.method == "POST" and parts == ["v1", "jobs"] and one.status != 200 and "is stopping" not in one.refusal:
            return None if ("Submitted", one.asked["id"]) in self.last else "the job"
        if one.status == 409:
            return None
        if parts[-1] == "attach":
            if "lease" in one.asked:
                return None if ("TakenBack", one.asked["lease"]) in self.last else "what is taken back"
            return None if "lease" not in one.answer or ("Attached", one.answer["lease"]) in self.last else "the lease"
        if parts[1] != "leases":
            return None
        lease = parts[2]
        ended = ("LeaseEnded", lease) in self.last
        if one.method == "DELETE":
            return None if ended else "the end of the lease"
        if parts[3] not in ("acquire", "release"):
            return None
        about = (one.asked.get("phase"), one.asked.get("iteration"), one.asked.get("extra", False))
        if parts[3] == "acquire" and one.answer.get("granted"):
            if ended:
                return "the lease has ended"
            return None if ("Granted", lease, *about) in self.last else "the permit"
        if parts[3] == "release" and not ended:
            granted, over = self.last.get(("Granted", lease, *about), 0), self.last.get(("over", self.jobs[lease], *about), 0)
            return None if over > granted else "the end of the phase"
        return None


_TOLD = {"Failed": "failed", "OverBudget": "over_budget", "Suspected": "lost"}  # kinds of facts, and of their notices
_WATCHED = {"Submitted", "Attached", "Granted", "PhaseSlice", "SyncSlice", "LeaseEnded", "Suspected", "Freed", "TakenBack"}


def _number(phase: str, iteration: int) -> int | None:
    """Of a phase; an `init` has none."""
    return None if phase == "init" else iteration


def _phase_of(part: PhaseSlice | SyncSlice) -> str:
    return part.phase if isinstance(part, PhaseSlice) else "sync"


def _held(nodes: Collection[str], phase: str) -> Collection[str]:
    """Nodes of a place that a phase has: those of its pool, or all, of a sync for example, and where one node does both."""
    return [node for node in nodes if node.startswith(phase)] or nodes


def linear_problems(facts: list[Fact], synced_s: list[float], turns: list[Turn]) -> list[str]:
    """What acquires and releases do not have in common with an owner table in which each happens at once.

    The journal is the order in which they are held to have happened, each when it was synced. In that order no node has two owners;
    and each is between the moment at which an owner asked and that at which it was told.
    """
    problems: list[str] = []
    table: dict[str, str] = {}
    leases = {fact.lease: fact for fact in facts if isinstance(fact, OwnerAttached)}
    granted: dict[tuple[str, str, int | None], list[float]] = {}
    over: dict[tuple[str, str, int | None], list[float]] = {}
    lost: dict[str, float] = {}
    suspects = {(fact.lease, node) for fact in facts if isinstance(fact, NodesSuspected) for node in fact.nodes}
    for fact, at_s in zip(facts, synced_s, strict=True):
        match fact:
            case PhaseGranted():
                granted.setdefault((fact.lease, fact.phase, _number(fact.phase, fact.iteration)), []).append(at_s)
                if fact.lease in lost:
                    problems.append(f"{fact.job_id}: its lease got the {fact.phase} of {fact.iteration} after its end")
                for node in _held(leases[fact.lease].nodes, fact.phase):
                    if table.get(node, fact.lease) != fact.lease:
                        problems.append(f"{node} is granted to {fact.job_id} and in the hands of {leases[table[node]].job_id}")
                    table[node] = fact.lease
            case PhaseSlice() | SyncSlice():
                phase = _phase_of(fact)
                over.setdefault((fact.job_id, phase, _number(phase, fact.iteration)), []).append(at_s)
                for node in fact.nodes if fact.asked_s is not None else ():
                    if node in table and leases[table[node]].job_id == fact.job_id:
                        del table[node]
            case LeaseEnded():
                lost[fact.lease] = at_s
                for node in [node for node, lease in table.items() if lease == fact.lease and (lease, node) not in suspects]:
                    del table[node]
            case NodesFreed():
                for node in fact.nodes:
                    if table.get(node) == fact.lease:
                        del table[node]
    for turn in turns:
        name = f"{turn.job}: the {turn.phase} of {turn.iteration}"
        number = _number(turn.phase, turn.iteration)
        points = granted.get((turn.lease, turn.phase, number), [])
        if turn.had_s is not None and not any(turn.asked_s <= at_s <= turn.had_s for at_s in points):
            problems.append(f"{name} was had at {turn.had_s:.3f}, asked for at {turn.asked_s:.3f}, and granted at {points}")
        points = [*over.get((turn.job, turn.phase, number), []), lost.get(turn.lease, math.inf)]
        if turn.given_s is not None and turn.gives_s is not None and not any(at_s <= turn.given_s for at_s in points):
            problems.append(f"{name} was given back until {turn.given_s:.3f}, and was over at {points}")
    return problems


def journal_problems(parts: list[list[Fact]], jobs: dict[str, int]) -> list[str]:
    """What the audit finds, and the scheduler that is told all again; and jobs that are not done, though their owners ended well.

    Args:
        parts: Facts of each part of the journal.
        jobs: the iterations that each owner does.
    """
    found, chains = audit_parts(dict(enumerate(parts, 1))), joined(parts)
    records = [record_of(facts) for facts in chains]
    problems = [*found.problems]
    problems += [line for facts in chains for line in replay_journal(facts).lines if not line.startswith("permits ")]
    problems += continued_problems(parts)
    for job, outcome in found.jobs.items():
        numbers = [done.number for record in records for done in record.iterations_of(job)]
        if numbers != [*range(len(numbers))]:
            problems.append(f"{job}: iterations {numbers}")
        if outcome in ("present", "failed") or (outcome == "done" and len(numbers) < jobs[job]):
            problems.append(f"{job}: is {outcome} after {len(numbers)} of {jobs[job]} iterations")
    return problems


def continued_problems(parts: list[list[Fact]]) -> list[str]:
    """What a recovery would know from a part that began while jobs were present, and not from one journal without parts."""
    problems: list[str] = []
    for number, facts in enumerate(parts, 1):
        if count_carried(facts):
            known, whole = recovered(facts), recovered(joined(parts[:number])[-1])
            problems += [f"part {number}: a recovery knows other {name}" for name in known if known[name] != whole[name]]
    return problems


def waiting_problems(turns: list[Turn], period_s: float) -> list[str]:
    """Waits for a permit that took longer than a period in which each job has each of its phases once."""
    waits = ((turn, (turn.left_s if turn.had_s is None else turn.had_s) - turn.asked_s) for turn in turns)
    return [
        f"{one.job}: the {one.phase} of {one.iteration} took {wait_s:.1f} s of {period_s:.1f}"
        for one, wait_s in waits
        if wait_s > period_s
    ]
