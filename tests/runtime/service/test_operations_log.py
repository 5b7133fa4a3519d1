"""Who did what to a service is written down, within bounds, for the service's owner alone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runtime.service.operations_log import OPERATIONS, OperationsLog
from tests.conftest import Command


def test_an_operation_is_a_line_of_json(tmp_path: Path) -> None:
    log = OperationsLog(tmp_path)
    log.write("ann", "submit", "job-1", "done")
    log.write("", "drain", "rollout-0", "not possible:\nit is\x1b[31m drained")
    first, second = map(json.loads, (tmp_path / OPERATIONS).read_text().splitlines())
    assert {key: value for key, value in first.items() if key != "time"} == {
        "user": "ann",
        "operation": "submit",
        "subject": "job-1",
        "outcome": "done",
    }
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["outcome"] == "not possible:\\nit is\\x1b[31m drained"
    assert (tmp_path / OPERATIONS).stat().st_mode & 0o777 == 0o600


def test_a_full_file_becomes_the_one_before_it(tmp_path: Path) -> None:
    log = OperationsLog(tmp_path, largest=1000)
    for number in range(100):
        log.write("ann", "cancel", f"job-{number}", "done")
    older, newer = (tmp_path / (OPERATIONS + ".1")).read_text(), (tmp_path / OPERATIONS).read_text()
    assert 0 < len(newer) <= 1000 and 0 < len(older) <= 1000
    numbers = [int(json.loads(line)["subject"].removeprefix("job-")) for line in (older + newer).splitlines()]
    assert numbers == [*range(numbers[0], 100)]


def test_nothing_is_lost_between_writers_when_a_new_file_begins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:  # 80 lines of about 110 bytes: one change of files
        [*pool.map(lambda k: OperationsLog(tmp_path, largest=6000).write("ann", "cancel", str(k), "done"), range(80))]
    both = (tmp_path / (OPERATIONS + ".1")).read_text() + (tmp_path / OPERATIONS).read_text()
    assert sorted(int(json.loads(line)["subject"]) for line in both.splitlines()) == [*range(80)]


def test_a_line_is_not_lost_while_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer has put the full file aside, and not begun the new one."""
    log, path = OperationsLog(tmp_path), tmp_path / OPERATIONS
    log.write("ann", "cancel", "a", "done")

    def others_turn(*arguments: Any) -> None:
        monkeypatch.undo()
        path.rename(path.with_name(OPERATIONS + ".1"))

    monkeypatch.setattr("runtime.service.operations_log.fcntl.flock", others_turn)
    log.write("ann", "cancel", "b", "done")
    assert json.loads(path.read_text())["subject"] == "b"


def test_a_folder_that_cannot_be_written_loses_the_line_alone(tmp_path: Path) -> None:
    OperationsLog(tmp_path / "missing").write("ann", "submit", "job", "done")


def test_making_and_revoking_tokens_is_written_down(command: Command, tmp_path: Path) -> None:
    at = ("--at", str(tmp_path))
    _, bearer, _ = command("token", "make", "ann", "--right", "look", *at)
    token_id = json.loads((tmp_path / "tokens.json").read_text())[0]["id"]
    command("token", "revoke", token_id, *at)
    text = (tmp_path / OPERATIONS).read_text()
    assert [(entry["operation"], entry["subject"]) for entry in map(json.loads, text.splitlines())] == [
        ("make token", "ann"),
        ("revoke token", "ann"),
    ]
    assert bearer.strip() not in text
