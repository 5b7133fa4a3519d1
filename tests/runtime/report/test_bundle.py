"""A file for a bug report: it can be looked into elsewhere, and tells no secrets."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from pathlib import Path

import pytest

from runtime.journal.write import JOURNAL, read_facts
from runtime.report.bundle import MACHINE, without_secrets
from tests.conftest import Command

KILLED = Path(__file__).parents[2] / "fixtures" / "killed-service"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "service"
    shutil.copytree(KILLED, home)
    (home / "logs" / "a").mkdir(parents=True, exist_ok=True)
    lines = [f"step {k}" for k in range(500)] + ["export HF_TOKEN=hf_abcdefghijklmnopqrst", "GET http://ann:pw1234@proxy:80/"]
    (home / "logs" / "a" / "controller.log").write_text("\n".join(lines))
    (home / "tokens.json").write_text('["nothing of this may leave"]')
    return home


def test_a_bundle_is_read_as_the_folder_is(command: Command, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "service.zip"
    assert command("bundle", str(folder), "--out", str(file))[0] == 0
    assert command("journal", "replay", str(file)) == command("journal", "replay", str(folder))
    assert command("journal", "audit", str(file)) == command("journal", "audit", str(folder))
    assert command("journal", "check", str(file))[1] == command("journal", "check", str(folder))[1]
    assert file.stat().st_mode & 0o077 == 0
    status, _, err = command("bundle", str(folder), "--out", str(file))
    assert status == 2 and "is there already" in err and err.count("\n") == 1


def test_a_bundle_has_versions_and_the_last_lines_and_no_secrets(command: Command, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "service.zip"
    assert command("bundle", str(folder), "--out", str(file))[0] == 0
    with zipfile.ZipFile(file) as bundle:
        assert {"numpy", "pydantic"} <= json.loads(bundle.read(MACHINE))["versions"].keys()
        log = bundle.read("logs/a/controller.log").decode()
        every = b"".join(bundle.read(name) for name in bundle.namelist())
        assert not [name for name in bundle.namelist() if "token" in name]
    assert log.startswith("step 302\n") and log.endswith("export HF_TOKEN=***\nGET http://***@proxy:80/\n")
    assert b"abcdefghij" not in every and b"pw1234" not in every and b"nothing of this" not in every


def test_what_is_written_meanwhile_is_in_the_copy_and_a_damaged_journal_is_copied_as_it_is(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole.zip", tmp_path / "cut.zip"
    writer = sqlite3.connect(folder / JOURNAL)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute("UPDATE facts SET body = body")
    writer.commit()
    assert command("bundle", str(folder), "--out", str(whole))[0] == 0
    writer.close()
    facts = len(read_facts(folder / JOURNAL))
    assert f"{facts} facts are whole" in command("journal", "check", str(whole))[1]
    data = (folder / JOURNAL).read_bytes()
    (folder / JOURNAL).write_bytes(data[:4096] + b"\0" * 4096 + data[8192:])
    assert command("bundle", str(folder), "--out", str(cut))[0] == 0
    assert command("journal", "check", str(cut))[0] != 0


def test_what_is_no_bundle_is_refused_in_one_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "other.zip"
    file.write_bytes(b"PK nothing")
    for what in ("replay", "audit", "check"):
        status, out, err = command("journal", what, str(file))
        assert (status, out) == (2, "") and err.count("\n") == 1 and "is no folder, and no file of `rollmux bundle`" in err
    status, _, err = command("bundle", str(tmp_path), "--out", str(tmp_path / "new.zip"))
    assert status == 2 and "there is no journal of a run here" in err and not (tmp_path / "new.zip").exists()


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("token rollmux_0123456789abcdefXYZ used", "token *** used"),
        ('{"api_key": "k-123", "user": "ann"}', '{"api_key": "***", "user": "ann"}'),
        ("iteration 3: 4096 tokens, 12.5 tokens/s", "iteration 3: 4096 tokens, 12.5 tokens/s"),
        ("loss=0.5 tokens=4096", "loss=0.5 tokens=4096"),
    ],
)
def test_secrets_are_known_by_form_and_by_name(line: str, hidden: str) -> None:
    assert without_secrets(line) == hidden
