"""Check of the write-ahead log of a journal that was not closed, for commits that SQLite would silently drop.

SQLite uses a write-ahead log up to the first frame with a wrong checksum and ignores the rest. This is correct for a commit that a
kill has cut off. If the log is damaged before its last commit, however, there is an intact frame behind the damage. It can be
recognised because each checksum includes that of the frame before. The format is described at
https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import NamedTuple

_MOST = 64 << 20  # bytes of a log that are checked; usually a log has at most 4 MB
_PAGE = 4096  # bytes of a page, SQLite's default, with which journals are created
_HEADER = Struct(">IIIIIIII")  # magic number, version, bytes of a page, checkpoints, salts, checksums
_FRAME = Struct(">IIIIII")  # number of its page, pages of the file if it ends a commit, salts, checksums
_LITTLE = Struct("<II")  # two words that a checksum is computed over
_BIG_ENDIAN, _BIG = 0x377F0683, Struct(">II")  # magic number of a log with big-endian words
_Sums = tuple[int, int]


class _Frame(NamedTuple):
    ends_commit: bool
    salts: _Sums
    sums: _Sums
    summed: bytes  # bytes that its checksum is computed over


def log_problem(path: Path) -> str | None:
    """Describe the damage of the log beside a journal, or return None if it is intact or does not exist.

    The journal may be written at the same time. It must be called before SQLite opens the journal, because SQLite may remove a log
    when it closes one. For the last two commits it is impossible to tell whether a kill has cut them off.
    """
    data = _read(path)
    while (problem := _problem(data)) is not None:
        before, data = data, _read(path)
        if data == before:  # not a write in progress
            break
    return problem


def _read(path: Path) -> bytes:
    log = path.with_name(f"{path.name}-wal")
    if not log.is_file():
        return b""
    with log.open("rb") as file:
        return file.read(_MOST)


def _problem(data: bytes) -> str | None:
    size = _FRAME.size + _PAGE
    frames = [_frame(data[at : at + size]) for at in range(_HEADER.size, len(data) - size + 1, size)]
    if not frames:
        return None
    magic, *_, salt, other_salt, first_sum, second_sum = _HEADER.unpack_from(data)
    words = _BIG if magic == _BIG_ENDIAN else _LITTLE
    salts, begins = (salt, other_salt), (first_sum, second_sum)
    if _added(words, (0, 0), data[: _HEADER.size - 8]) != begins:
        salts, begins = frames[0].salts, (-1, -1)  # the header is damaged, so SQLite ignores the whole log
    before = [begins, *(frame.sums for frame in frames)]
    whole = [
        frame.salts == salts and _added(words, sums, frame.summed) == frame.sums
        for frame, sums in zip(frames, before, strict=False)
    ]
    first = whole.index(False) if False in whole else len(frames)
    if any(frames[number].ends_commit and whole[number + 1] for number in range(first, len(frames) - 1)):
        return f"its log is damaged at frame {first + 1} of {len(frames)}, and later commits are behind it"
    return None


def _frame(data: bytes) -> _Frame:
    _, pages, *salts, first_sum, second_sum = _FRAME.unpack_from(data)
    return _Frame(pages > 0, (salts[0], salts[1]), (first_sum, second_sum), data[:8] + data[_FRAME.size :])


def _added(words: Struct, sums: _Sums, data: bytes) -> _Sums:
    """Continue the checksums of the bytes before with those of `data`."""
    first, second = sums
    for one, other in words.iter_unpack(data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
