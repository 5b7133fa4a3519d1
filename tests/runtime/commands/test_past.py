"""Commands that ask about a service which does not run: its journal answers, without Ray."""

from __future__ import annotations

import json
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from runtime.journal.write import JOURNAL, read_run
from runtime.output import LOGS
from runtime.service.address import HTTP
from tests.conftest import Command
from tests.runtime.pretend import carry_out, plan_of

JOBS = [{"id": "a", "iterations": 3}, {"id": "b", "iterations": 3}, {"id": "late", "iterations": 3, "arrival_s": 1000.0}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a service that was stopped after four iterations."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "service"
    home.mkdir()
    assert carry_out(plan_of(home, JOBS), stops_after=4) == "stopped"
    (home / HTTP).write_text("{}")  # it has listened
    return home


def test_the_status_of_a_stopped_service_is_that_of_its_journal(command: Command, folder: Path) -> None:
    status, out, err = command("status", "--at", str(folder), "--format", "json")
    assert (status, err) == (0, "")
    report, record = json.loads(out), read_run(folder)
    counts = {job["id"]: job["iteration"] for job in report["jobs"]}
    assert counts == {name: sum(done.job_id == name for done in record.iterations) for name in ("a", "b", "late")}
    states = {job["id"]: job["state"] for job in report["jobs"]}
    assert states["late"] == "waiting" and all(states[name] == ("done" if counts[name] == 3 else "stopped") for name in "ab")
    assert sum(report["states"].values()) == 3
    assert report["ended"] == "stopped" and record.ended is not None
    assert datetime.fromisoformat(report["ended_at"]).timestamp() == pytest.approx(record.wall_s(record.last_s), abs=1)
    for arguments in ((), ("--watch",)):
        status, out, err = command("status", "--at", str(folder), *arguments)
        assert (status, err) == (0, "")
        out = " ".join(out.split())  # lines are as wide as tables
        assert f"stopped at {report['ended_at']}" in out and f"`rollmux serve {folder}` continues it" in out and "0 of 3" in out


def test_a_run_is_continued_by_run_and_not_by_serve(command: Command, folder: Path) -> None:
    (folder / HTTP).unlink()
    assert f"`rollmux run --resume {folder}` continues it" in " ".join(command("status", "--at", str(folder))[1].split())
    assert f"no service runs there; `rollmux run --resume {folder}` continues it" in command("cancel", "a", "--at", str(folder))[2]


def test_a_service_is_no_run_and_a_run_is_no_service(command: Command, folder: Path) -> None:
    for arguments in (("run", "--resume"), ("compare",)):
        status, out, err = command(*arguments, str(folder))
        assert (status, out) == (2, "") and err.count("\n") == 1
        assert f"{folder}: holds a service, and no run; `rollmux serve {folder}` continues it" in err
    (folder / HTTP).unlink()
    status, out, err = command("serve", str(folder), "--no-ray")
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert f"{folder}: holds a run, and no service; `rollmux run --resume {folder}` continues it" in err


def test_what_is_wrong_with_the_journal_of_a_bundle_is_said_of_the_bundle(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.zip"
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr(JOURNAL, b"nothing")
    status, out, err = command("journal", "audit", str(file))
    assert (status, out) == (2, "") and err.startswith(f"rollmux: {file}/{JOURNAL}: ") and err.count("\n") == 1


def test_what_a_stopped_service_cannot_do_is_said_with_what_to_do(command: Command, folder: Path) -> None:
    status, out, err = command("cancel", "a", "--at", str(folder))
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert f"no service runs there; `rollmux serve {folder}` continues it" in err


def test_logs_are_read_from_files_also_when_they_are_followed(command: Command, folder: Path) -> None:
    (folder / LOGS / "talks").mkdir(parents=True)
    (folder / LOGS / "talks" / "controller.log").write_text("iteration 1 of 3\n")
    for arguments in ((), ("--follow",)):
        assert command("logs", "talks", "--at", str(folder), *arguments) == (0, "controller | iteration 1 of 3\n", "")
    assert "did you mean talks?" in command("logs", "talk", "--at", str(folder))[2]


def test_a_journal_that_is_none_is_one_line(command: Command, folder: Path) -> None:
    (folder / JOURNAL).write_text("nothing")
    status, out, err = command("status", "--at", str(folder))
    assert (status, out) == (2, "") and "is no journal" in err and err.count("\n") == 1
