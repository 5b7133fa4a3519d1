"""Checkpoints are whole or not there, the last ones stay, and damage is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.checkpoints import (
    MANIFEST,
    Rest,
    begin_checkpoint,
    drop,
    drop_above,
    find_damage,
    newest,
    numbers,
    place_of,
    write_hashed,
)
from runtime.jobside.checkpointing import keep_randomness, random_states, restore_randomness


def fill(text: str) -> Callable[[Path], None]:
    def filling(folder: Path) -> None:
        (folder / "below").mkdir()
        (folder / "state").write_text(text)
        (folder / "below" / "more").write_bytes(b"\0" * 3000)

    return filling


def write_checkpoint(folder: Path, iterations: int, filling: Callable[[Path], None]) -> int:
    return begin_checkpoint(folder, iterations, filling)()


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    assert newest(folder, 9) == (0, None, ())
    for iterations in range(1, 5):
        assert write_checkpoint(folder, iterations, fill(f"{iterations}")) == 3001
    assert numbers(folder) == [1, 2, 3, 4]
    drop(folder, 2)
    assert numbers(folder) == [3, 4]
    assert newest(folder, 9) == (4, place_of(folder, 4), ())
    assert newest(folder, 3) == (3, place_of(folder, 3), ())  # one that the journal does not know yet is passed over
    drop_above(folder, 3)
    assert numbers(folder) == [3]
    write_checkpoint(folder, 3, fill("again"))
    assert (place_of(folder, 3) / "state").read_text() == "again"


def test_only_what_the_journal_knows_is_gone_on_from(tmp_path: Path) -> None:
    for iterations in (3, 6):
        write_checkpoint(tmp_path, iterations, fill("x"))
    assert newest(tmp_path, 9, {3}).iterations == 3 and newest(tmp_path, 9, {3, 6}).iterations == 6
    assert newest(tmp_path, 9, set()).folder is None


def test_what_is_hashed_while_it_is_written_is_not_read_again(tmp_path: Path) -> None:
    pieces: list[bytes | memoryview] = [b"weights" * 1000, memoryview(b"\1\2"), b""]
    digests: dict[str, tuple[int, str]] = {}

    def filling(folder: Path) -> Rest:
        def rest() -> dict[str, tuple[int, str]]:
            digests["state"] = write_hashed(folder / "state", pieces)
            return digests

        return rest

    assert begin_checkpoint(tmp_path, 1, filling)() == 7002
    content = (place_of(tmp_path, 1) / "state").read_bytes()
    assert content == b"".join(pieces) and digests["state"] == (7002, hashlib.sha256(content).hexdigest())
    assert find_damage(place_of(tmp_path, 1)) is None

    def wrong(folder: Path) -> Rest:
        (folder / "state").write_bytes(b"other")
        return lambda: {"state": (5, digests["state"][1])}

    begin_checkpoint(tmp_path, 2, wrong)()
    assert find_damage(place_of(tmp_path, 2)) == f"{place_of(tmp_path, 2)}: state is damaged"
    with pytest.raises(OSError, match="state: what was written of it is not there"):
        begin_checkpoint(tmp_path, 3, lambda folder: lambda: {"state": (5, "")})()
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("kind", ["changed", "cut", "gone", "no manifest", "no JSON", "other format", "half a manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, kind: str) -> None:
    for iterations in (1, 2):
        write_checkpoint(tmp_path, iterations, fill("state"))
    last = place_of(tmp_path, 2)
    match kind:
        case "changed":
            (last / "state").write_text("stale")
        case "cut":
            (last / "below" / "more").write_bytes(b"\0" * 2999)
        case "gone":
            (last / "state").unlink()
        case "no manifest":
            (last / MANIFEST).unlink()
        case "no JSON":
            (last / MANIFEST).write_bytes(b"\xff{")
        case "other format":
            (last / MANIFEST).write_text(json.dumps({"format": 7, "files": {}}))
        case _:
            (last / MANIFEST).write_text(json.dumps({"format": 1, "files": {"state": 3}}))
    found = newest(tmp_path, 2)
    assert found.iterations == 1 and find_damage(place_of(tmp_path, 1)) is None
    (problem,) = found.problems
    assert "000002" in problem and "\n" not in problem


def test_a_full_disk_leaves_the_ones_before_and_nothing_else(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, fill("1"))

    def full(folder: Path) -> None:
        (folder / "state").write_text("half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, 2, full)
    assert [path.name for path in tmp_path.iterdir()] == ["000001"] and find_damage(tmp_path / "000001") is None


def test_what_a_kill_has_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, fill("1"))
    (tmp_path / ".unfinished-7").mkdir()
    (tmp_path / ".unfinished-7" / "below").mkdir()
    assert numbers(tmp_path) == [1]
    write_checkpoint(tmp_path, 2, fill("2"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "000002"]


def test_what_is_behind_a_link_is_not_removed(tmp_path: Path) -> None:
    folder, theirs = tmp_path / "job", tmp_path / "theirs"
    for place in (folder, theirs):
        for iterations in range(1, 5):
            write_checkpoint(place, iterations, fill("x"))
    (folder / "000005").symlink_to(theirs)
    (tmp_path / "link").symlink_to(theirs)
    assert numbers(folder) == [1, 2, 3, 4]
    drop_above(folder, 2)
    drop_above(tmp_path / "link", 0)
    drop(tmp_path / "link", 1)
    assert numbers(folder) == [1, 2] and numbers(theirs) == [1, 2, 3, 4] and (folder / "000005").is_symlink()


def test_random_generators_go_on_from_where_they_were(tmp_path: Path) -> None:
    import random

    import numpy as np
    import torch

    keep_randomness(tmp_path, random_states())
    drawn = random.gauss(0, 1), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
    restore_randomness(tmp_path)
    assert (random.gauss(0, 1), np.random.rand(), float(torch.rand(()))) == drawn  # noqa: NPY002
