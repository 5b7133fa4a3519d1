"""The log of a journal that was not closed: what SQLite would leave out of it in silence, though it was there.

SQLite takes a write-ahead log up to the first frame whose checksum is another one, and leaves out the rest: so ends the commit that
a kill has cut off. Where that commit is not the last one a frame behind it is whole: each is summed up over the one before.
The format is that of https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import NamedTuple

_MOST = 64 << 20  # bytes of a log that are looked at; usually it has 4 MB at most
_PAGE = 4096  # bytes: that of SQLite's own choice, in which journals are made
_HEADER = Struct(">IIIIIIII")  # what it is, version, bytes of a page, checkpoints, salts, checksums
_FRAME = Struct(">IIIIII")  # number of its page, pages of the file if it ends a commit, salts, checksums
_LITTLE = Struct("<II")  # two words of what is summed up
_BIG_ENDIAN, _BIG = 0x377F0683, Struct(">II")  # or, in a log that begins so
_Sums = tuple[int, int]


class _Frame(NamedTuple):
    ends_commit: bool
    salts: _Sums
    sums: _Sums
    summed: bytes  # what its checksum is of


def log_problem(path: Path) -> str | None:
    """What is wrong with the log beside a journal, which may be written meanwhile; None where nothing is, or where there is none.

    To be asked before SQLite opens the journal: it may end a log when it closes one. Of the last two commits nobody can tell
    whether a kill has cut them off.
    """
    data = _read(path)
    while (problem := _problem(data)) is not None:
        before, data = data, _read(path)
        if data == before:  # it was not caught in the middle of a write
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
        salts, begins = frames[0].salts, (-1, -1)  # SQLite takes nothing of it
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
    """Checksums that go on with those of what was before."""
    first, second = sums
    for one, other in words.iter_unpack(data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
