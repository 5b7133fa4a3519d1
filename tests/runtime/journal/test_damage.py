"""A damaged journal is one line with the number of the fact, for every command; a copy of what is whole can be gone on with."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.locks import take_lock
from runtime.journal import read
from runtime.journal.check import check_journal
from runtime.journal.log import log_problem
from runtime.journal.read import entries_after
from runtime.journal.write import JOURNAL, LOCK, Journal, is_begun, read_facts
from tests.conftest import Command
from tests.fixtures import FIXTURES
from tests.runtime.journal.test_write import FACTS

COMMANDS = ("run --resume", "serve", "status --at", "compare", "journal replay", "journal audit")
JOBS = [{"id": name, "iterations": 3} for name in "ab"]
Damage = Callable[[Path], None]


def sql(*statements: str) -> Damage:
    """Damage by hand."""

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            for statement in statements:
                database.execute(statement)

    return change


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    """A page in the middle is full of something else."""
    data = bytearray(path.read_bytes())
    at = len(data) // 4096 // 2 * 4096
    data[at : at + 4096] = b"\xa5" * 4096
    path.write_bytes(data)


def overwritten(path: Path) -> None:
    path.write_bytes(b"x" * 9000)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "bad JSON": (sql("UPDATE facts SET body = '{' WHERE number = 7"), r"fact 7 \(\w+\) is damaged: Invalid JSON"),
    "unknown kind": (sql("UPDATE facts SET kind = 'Invented' WHERE number = 7"), "fact 7 is of a kind that this RollMux does not"),
    "no fact of its kind": (sql("UPDATE facts SET body = '{}' WHERE number = 7"), r"fact 7 \(\w+\) is damaged: Field required"),
    "no text": (sql("UPDATE facts SET body = x'ff00' WHERE number = 7"), r"fact 7 \(\w+\) is damaged: "),
    "a number": (sql("UPDATE facts SET body = 3 WHERE number = 7"), r"fact 7 \(\w+\) is damaged: "),
    "no kind": (sql("UPDATE facts SET kind = x'ff' WHERE number = 7"), "fact 7 is of a kind that"),
    "a fact too few": (sql("DELETE FROM facts WHERE number = 7"), "fact 7 is missing"),
    "truncated": (truncated, r"fact \d+ (cannot be read|is missing)"),
    "a page": (flipped, r"fact \d+ (cannot be read|and what follows may be damaged): "),
    "no database": (overwritten, "is no journal: file is not a database"),
    "a view that goes on for ever": (
        sql(
            "DROP TABLE facts",
            "CREATE VIEW facts AS WITH RECURSIVE n(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM n) "
            "SELECT number, 'Ticked' AS kind, '{\"at_s\": 0}' AS body FROM n",
        ),
        "its facts are no table of RollMux",
    ),
    "impossible": (
        sql("""UPDATE facts SET kind = 'Departed', body = '{"at_s": 0, "job_id": "nobody"}' WHERE number = 7"""),
        "cannot have happened",
    ),
    "impossible placement": (
        sql("UPDATE facts SET body = json_set(body, '$.placement.new_rollout_nodes', 1000000) WHERE kind = 'Admitted'"),
        "cannot have happened: P2: job a asks for 1 rollout nodes",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that has ended."""
    home = tmp_path / "run"
    home.mkdir()
    shutil.copy(FIXTURES / "finished-run" / JOURNAL, home)
    return home


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_journal_is_one_line_for_every_command(command: Command, folder: Path, kind: str) -> None:
    damage, said = DAMAGES[kind]
    damage(folder / JOURNAL)
    for line in COMMANDS[:-1] if kind.startswith("impossible") else COMMANDS:  # an audit says what is impossible, and goes on
        status, out, err = command(*line.split(), str(folder))
        assert (status, out, err.count("\n")) == (2, "", 1), (line, err)
        assert re.search(said, err), (line, err)


def digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [kind for kind in DAMAGES if not kind.startswith(("no database", "a view"))])
def test_a_check_says_what_is_whole_and_changes_nothing(command: Command, folder: Path, kind: str) -> None:
    whole = read_facts(folder / JOURNAL)
    DAMAGES[kind][0](folder / JOURNAL)
    before = digests(folder)
    found = check_journal(folder)
    assert found.problem is not None and found.facts == tuple(whole[: len(found.facts)])
    status, out, err = command("journal", "check", str(folder))
    assert (status, err) == (1, "") and out.startswith(f"{len(found.facts)} facts are whole; the last is {found.last}\n")
    assert digests(folder) == before


def test_a_journal_that_is_whole_is_said_to_be(command: Command, folder: Path) -> None:
    facts = read_facts(folder / JOURNAL)
    status, out, err = command("journal", "check", str(folder))
    assert (status, err) == (0, "")
    assert out == f"{len(facts)} facts are whole; the last is {len(facts)}, Ended at {facts[-1].at_s:.3f} s\n"  # type: ignore[union-attr]


def test_a_journal_that_is_written_is_not_checked(folder: Path) -> None:
    with take_lock(folder / LOCK), pytest.raises(InputError, match="a run is under way in this folder"):
        check_journal(folder)


def test_what_is_still_in_the_log_of_a_killed_run_is_checked_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal.write(*FACTS[:3])
    (tmp_path / "killed").mkdir()
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        shutil.copy(tmp_path / name, tmp_path / "killed" / name)
    journal.close()
    before = digests(tmp_path / "killed")
    assert check_journal(tmp_path / "killed").facts == tuple(FACTS[:3])
    assert digests(tmp_path / "killed") == before


@pytest.mark.parametrize("left", ["checkpoints/a/000003/checkpoint.json", "logs/a/controller.log", f"{JOURNAL}-wal"])
@pytest.mark.parametrize("journal", ["empty", "half-made", "missing"])
def test_an_empty_journal_beside_what_a_run_left_is_no_new_run(command: Command, tmp_path: Path, left: str, journal: str) -> None:
    path = tmp_path / JOURNAL
    if journal == "empty":
        path.touch()
    elif journal == "half-made":
        if left.endswith("-wal"):
            return  # one that SQLite knows to be another database's
        sql("CREATE TABLE facts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)")(path)
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text("{}")
    before = digests(tmp_path)
    for _ in range(2):
        with pytest.raises(InputError, match=f"journal.sqlite: is (empty|missing), and there is {left} of a run that had one$"):
            is_begun(path)
        with pytest.raises(InputError, match="of a run that had one"):
            Journal(path)
        status, out, err = command("serve", str(tmp_path))
        assert (status, out, err.count("\n")) == (2, "", 1) and "of a run that had one" in err
    assert digests(tmp_path) == before


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The journal that a run has closed."""
    path = tmp_path / JOURNAL
    journal = Journal(path)
    journal.write(*FACTS)
    journal.close()
    return path


def texts_of(path: Path) -> set[int]:
    """Where in the file of a journal the kinds and bodies of its facts are."""
    with closing(sqlite3.connect(path)) as database:
        texts = [f"{kind}{body}".encode() for kind, body in database.execute("SELECT kind, body FROM facts")]
    data = path.read_bytes()
    return {at for text in texts for at in range(data.index(text), data.index(text) + len(text))}


@pytest.mark.parametrize("step", [47, pytest.param(1, marks=pytest.mark.long)])
def test_a_byte_that_is_another_one_is_one_line_wherever_it_says_something(step: int, whole: Path) -> None:
    """What is not refused says nothing: all facts are there as they were written."""
    facts, texts, data = read_facts(whole), texts_of(whole), whole.read_bytes()
    refused = 0
    for at in range(0, len(data), step):
        for mask in (0x01, 0x80, 0xFF):
            whole.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            try:
                assert read_facts(whole) == facts and at not in texts, at
            except InputError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > len(texts) // step


@pytest.mark.parametrize("size", [512, 4096])
def test_a_part_of_the_file_that_is_another_one_is_one_line_wherever_it_says_something(size: int, whole: Path) -> None:
    facts, texts, data = read_facts(whole), texts_of(whole), whole.read_bytes()
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    for number, part in enumerate(parts):
        for other in {bytes(size), parts[number - 1]} - {part}:
            whole.write_bytes(b"".join([*parts[:number], other, *parts[number + 1 :]]))
            try:
                assert read_facts(whole) == facts and texts.isdisjoint(range(number * size, (number + 1) * size)), number
            except InputError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE facts SET body = replace(body, '3.1', '3.2') WHERE body LIKE '%3.1%'",
        "UPDATE facts SET checksum = checksum + 1 WHERE number = 3",
        "UPDATE facts SET kind = 'Resumed' WHERE number = 2",
        "UPDATE facts SET body = x'00' WHERE number = 2",
    ],
)
def test_a_fact_that_says_something_else_is_named(whole: Path, statement: str) -> None:
    sql(statement)(whole)
    with pytest.raises(InputError, match=r"fact \d+ \(\w+\) is damaged: its checksum is another one; `rollmux journal check`"):
        read_facts(whole)
    with pytest.raises(InputError, match="its checksum is another one"):
        entries_after(whole, 0, 100)


def test_facts_that_have_changed_places_are_refused(whole: Path) -> None:
    sql(*(f"UPDATE facts SET number = {to} WHERE number = {at}" for at, to in ((4, -1), (5, 4), (-1, 5))))(whole)
    with pytest.raises(InputError, match=r"fact 4 \(\w+\) is damaged: its checksum is another one"):
        read_facts(whole)


def test_a_journal_without_checksums_has_them_when_it_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / JOURNAL
    facts, before = read_facts(path), entries_after(path, 0, 1000)

    def full(*_: object) -> int:
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(read, "checksum", full)
        with pytest.raises(InputError, match="cannot be written"):
            Journal(path, resume=True)
    assert read_facts(path) == facts and "checksum" not in schema_of(path)  # whole, or not at all
    Journal(path, resume=True).close()
    assert read_facts(path) == facts and "checksum" in schema_of(path) and entries_after(path, 0, 1000) == before
    journal = Journal(path, resume=True)
    journal.write(FACTS[2])
    journal.close()
    assert read_facts(path) == [*facts, FACTS[2]]
    sql("UPDATE facts SET body = body || ' ' WHERE number = 7")(path)
    with pytest.raises(InputError, match=r"fact 7 \(\w+\) is damaged: its checksum is another one"):
        read_facts(path)


def schema_of(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return str(database.execute("SELECT group_concat(sql) FROM sqlite_master").fetchone()[0])


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The journal of a run that was killed: what it has committed is in the log beside it."""
    journal, home = Journal(tmp_path / JOURNAL), tmp_path / "killed"
    for fact in FACTS:
        journal.put(fact)
        journal.commit()
    home.mkdir()
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        shutil.copy(tmp_path / name, home / name)
    journal.close()
    return home / JOURNAL


@pytest.mark.parametrize("step", [2003, pytest.param(7, marks=pytest.mark.long)])
def test_a_byte_of_the_log_that_is_another_one_loses_no_fact_in_silence(step: int, killed: Path) -> None:
    """But for the last two commits, which a kill may have cut off."""
    log = killed.with_name(f"{JOURNAL}-wal")
    data, main, frame = log.read_bytes(), killed.read_bytes(), 24 + 4096
    for at in range(0, len(data), step):
        killed.write_bytes(main)
        log.write_bytes(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :])
        problem = log_problem(killed)
        assert problem is None or re.search(rf"damaged at frame {max((at - 32) // frame, 0) + 1} of ", problem)
        if problem is None:
            facts = read_facts(killed)
            assert facts == FACTS[: len(facts)] and len(facts) >= len(FACTS) - 2
        else:
            with pytest.raises(InputError, match="later commits are behind it; `rollmux journal check` says what is whole"):
                read_facts(killed)


def test_a_damaged_log_stops_whoever_would_end_it(command: Command, killed: Path) -> None:
    log = killed.with_name(f"{JOURNAL}-wal")
    data = bytearray(log.read_bytes())
    data[5 * 4120] ^= 1
    log.write_bytes(data)
    before = digests(killed.parent)
    for line in ("run --resume", "serve", "status --at", "journal audit"):
        status, out, err = command(*line.split(), str(killed.parent))
        assert (status, out, err.count("\n")) == (2, "", 1) and "its log is damaged at frame 5 of " in err
    bundle = killed.parent.with_suffix(".zip")
    assert command("bundle", str(killed.parent), "--out", str(bundle))[0] == 0
    for place in (killed.parent, bundle):
        status, out, _ = command("journal", "check", str(place))
        assert status == 1 and "its log is damaged at frame 5 of " in out and not out.startswith("0 facts")
    before.update({name: digest for name, digest in digests(killed.parent).items() if name.endswith(".lock")})
    assert digests(killed.parent) == before


def test_a_commit_that_a_kill_has_cut_off_is_no_damage(killed: Path) -> None:
    log = killed.with_name(f"{JOURNAL}-wal")
    data, main = log.read_bytes(), killed.read_bytes()
    for end in range(len(data) // 2, len(data), 1031):
        killed.write_bytes(main)
        log.write_bytes(data[:end])
        facts = read_facts(killed)
        assert 0 < len(facts) < len(FACTS) and facts == FACTS[: len(facts)]
