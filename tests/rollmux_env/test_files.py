"""Files are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.files import (
    check_regular,
    copy_data,
    make_private,
    private_folder,
    read_file,
    read_json,
    read_text,
    text_lines,
    write_whole,
)


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "Größe\n")
    assert path.read_bytes() == "Größe\n".encode()
    write_whole(str(path), b"\0\1")
    assert path.read_bytes() == b"\0\1"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_kept_and_new_files_follow_the_umask(tmp_path: Path) -> None:
    path, plain = tmp_path / "a", tmp_path / "b"
    write_whole(path, "")
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode
    path.chmod(0o640)
    write_whole(path, "x")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_keeps_pointing_where_it_does(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_device_stays_a_device() -> None:
    write_whole(os.devnull, "gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("name", ["", "none/a", "file/a", "a\0b", "none\n/a", "x" * 300])
def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError) as caught:
        write_whole(tmp_path / name, "text")
    assert str(caught.value).startswith(f"{tmp_path}")
    assert str(caught.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"a: cannot be written: No space left on device$"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def not_regular(folder: Path) -> dict[str, Path]:
    """What must not be opened as a file, by what an error calls it."""
    os.mkfifo(folder / "pipe")
    (folder / "to-pipe").symlink_to("pipe")
    (folder / "to-zero").symlink_to("/dev/zero")
    return {"a folder": folder, "a pipe": folder / "to-pipe", "a device": folder / "to-zero"}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    readers: list[Callable[[Path], object]] = [read_file, read_text, read_json, check_regular]
    readers.append(lambda path: [*text_lines(path)])
    for what, path in not_regular(tmp_path).items():
        for read in readers:
            with pytest.raises(InputError, match=f"^{path}: is {what}, not a regular file$"):
                read(path)
    for name, said in (("none", "No such file or directory"), ("a\0b", "embedded null byte")):
        with pytest.raises(InputError, match=said):
            read_file(tmp_path / name)


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    assert read_text(path) == "one\r\ntwo" and [*text_lines(path)] == ["one\r\n", "two"]
    assert read_file(path, 11) == path.read_bytes()
    with pytest.raises(InputError, match=r"a: is larger than 0 MB$"):
        read_file(path, 10)
    (tmp_path / "link").symlink_to(path)
    assert read_file(tmp_path / "link") == path.read_bytes()


def test_what_is_no_text_and_no_json_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for data, said in ((b"\xff\n", "not a text file"), (b"{", "is not JSON"), (b"[" * 100_000, "nested too deeply")):
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"^{path}: .*{said}") as caught:
            read_text(path) if data[0] == 255 else read_json(path)
        assert str(caught.value).isprintable()
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(InputError, match="not a text file"):
        list(text_lines(path))


def test_private_is_for_the_owner_alone(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b")
    write_whole(tmp_path / "a" / "b" / "c", "text", private=True)
    tmp_path.chmod(0o755)
    private_folder(tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path, *tmp_path.rglob("*"))}
    assert modes == {tmp_path.name: 0o755, "a": 0o700, "b": 0o700, "c": 0o600}
    (tmp_path / "a" / "b" / "d").write_text("by somebody who knows nothing of this")
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    make_private(tmp_path / "a")
    assert (tmp_path / "a" / "b" / "d").stat().st_mode & 0o777 == 0o600 and tmp_path.stat().st_mode & 0o777 == 0o755


def test_the_holes_of_a_file_take_no_room_in_its_copy(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(40 << 30)
    copy_data(source, copy)
    assert copy.stat().st_size == 40 << 30 and copy.stat().st_blocks * 512 < 1 << 20
    with copy.open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek((1 << 30) - 1)
        assert file.read(8) == b"\0middle\0"
    source.write_bytes(b"")
    copy_data(source, tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""
