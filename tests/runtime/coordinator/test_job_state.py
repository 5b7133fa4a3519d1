"""The life of a job follows its table, and each record of a job is written where its methods are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from rollmux_env.errors import InvariantError
from runtime.coordinator import job_records, permits
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_state import TRANSITIONS, JobLife, JobState

RUNTIME = Path(__file__).parents[3] / "runtime"
RECORDS = {field.name for field in fields(JobHandle) if field.name not in ("spec", "changed")}
CLASSES = [
    job_records.JobProcesses,
    job_records.IterationCounts,
    job_records.JobEnding,
    job_records.JobPlacement,
    job_records.ProfilePass,
]
CLASSES += [job_records.ResidentState, job_records.JobCheckpoints, job_records.RolloutProgress, permits.Permits]
MUTATING = {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "set", "set_result", "setdefault"}
HANDLES = {"handle", "other", "one", "successor"}
USES = re.compile(rf"\b({'|'.join(HANDLES)})\.({'|'.join(RECORDS)})\b")  # in a text without them nothing is written


def names_of(node: ast.expr) -> list[str]:
    """The names of `a.b[c].d`, from the left."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.value
    return [*names, node.id if isinstance(node, ast.Name) else ""][::-1]


def written(tree: ast.AST) -> Iterator[list[str]]:
    """What is assigned to, deleted, or changed by a method of a container."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
            names = names_of(node.func.value)
            yield names if names[-1] not in RECORDS else []  # a record's own method is where it is written
        yield from (names_of(target) for target in targets if isinstance(target, ast.Attribute | ast.Subscript))


def writers(text: str) -> set[str]:
    """Records of jobs that a module writes."""
    pairs = (pair for names in written(ast.parse(text)) for pair in pairwise(names))
    return {part for before, part in pairs if before in HANDLES and part in RECORDS}


def test_each_record_of_a_job_is_written_by_its_own_methods_alone() -> None:
    texts = {path: path.read_text() for path in RUNTIME.rglob("*.py")}
    assert {path: found for path, text in texts.items() if USES.search(text) and (found := writers(text))} == {}


def test_a_write_would_be_noticed() -> None:
    lines = ("lease.handle.permits.holds[phase] = 1", "handle.place.group, x = 1, 2", "del handle.rollout_progress.parts")
    text = "\n".join((*lines, "other.checkpoints.recorded.add(3)", "handle.checkpoints.add(4)", "handle.ending.cleared.set()"))
    assert writers(text) == {"permits", "place", "rollout_progress", "checkpoints", "ending"}


def test_a_job_has_no_other_records() -> None:
    assert {cls for cls in vars(job_records).values() if is_dataclass(cls) and cls.__module__ == job_records.__name__} <= {*CLASSES}
    assert RECORDS - {"job", "life"} == {
        *("checkpoints", "counts", "ending", "permits", "place", "processes", "profile", "resident_state", "rollout_progress")
    }


def test_a_life_follows_the_table() -> None:
    life = JobLife()
    seen = [life.state]
    for event in ("lent", "left", "arrived", "rests", "placed", "moves", "rested", "placed", "ends", "placed", "gone", "placed"):
        life.follow(event)
        seen.append(life.state)
    assert [state.value for state in seen] == [
        *("arriving", "profiling", "waiting", "waiting", "resting", "resting", "resting"),
        *("moving", "placed", "ending", "ending", "gone", "gone"),
    ]
    assert {state for row in TRANSITIONS.values() for state in row.values()} | {JobState.ARRIVING} == {*JobState}


def test_what_cannot_happen_in_a_state_is_a_defect() -> None:
    life = JobLife()
    with pytest.raises(InvariantError, match="a job that is arriving cannot be 'placed'"):
        life.follow("placed")
    assert life.state is JobState.ARRIVING
