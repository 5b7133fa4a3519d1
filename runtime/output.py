"""What the processes of jobs print: a file of each process in the job's folder, bounded, and read back by `rollmux logs`.

Other files of a run's folder that grow with its iterations are bounded likewise (`append_bounded`).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.files import private_folder, private_opener, write_whole

LOGS = "logs"  # folder of a run's or a service's, with one of each job
SERVICE_LOG = "service"  # name of the file in which a service tells of a job that it has not started
LARGEST = 8 << 20  # bytes of a file; a larger one loses its older half to the file before it, and that one what it held
_OLDER = ".1"
_LOOKS_S = 0.3
_MOST_AT_ONCE = 1 << 20  # bytes that are read of a file


class Part(NamedTuple):
    """A part of what a process of a job has printed, the offset of what follows, and all processes that have printed."""

    data: bytes
    next_offset: int
    processes: list[str]


class _Log(io.FileIO):
    """A file to print to: what finds no room on the disk is lost, and nobody's work with it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data))


def capture(folder: str, name: str) -> None:
    """Let what this process prints from now on, C++ included, be appended to a file, if there can be one."""
    try:
        private_folder(Path(folder))
        file = os.open(Path(folder) / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # no log is worth a job
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(_Log(number, "w", closefd=False)), errors="replace", line_buffering=True)
        for number in (1, 2)
    )


def open_log(folder: Path, name: str) -> IO[bytes]:
    """The log of a process, to be appended to; for its owner alone.

    Raises:
        OSError: it cannot be written.
    """
    private_folder(folder)
    return open(folder / f"{name}.log", "ab", opener=private_opener)


def trim(folders: Iterable[Path], largest: int = LARGEST) -> None:
    """Keep the files of jobs in bounds. What is printed in the instant between copying and cutting is lost, and where there is no
    room for a copy all of the file.
    """
    for path in (path for folder in folders for path in folder.glob("*.log")):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            if path.stat().st_size > largest:
                with contextlib.suppress(OSError), open(path.with_name(path.name + _OLDER), "wb", opener=private_opener) as older:
                    older.write(_newer_half(path, largest))
                os.truncate(path, 0)


def append_bounded(path: Path, lines: str, largest: int) -> None:
    """Append lines, if there is room on the disk: nothing here is worth a job.

    Args:
        lines: whole ones. largest: bytes of the file; a larger one loses its older half.
    """
    with contextlib.suppress(OSError, InputError):
        if not path.exists():
            private_folder(path.parent)
        with open(path, "a", opener=private_opener) as file:
            file.write(lines)
            file.flush()
            size = file.tell()
        if size > largest:
            write_whole(path, _newer_half(path, largest), private=True)


def _newer_half(path: Path, largest: int) -> bytes:
    """The whole lines among the last bytes of a file that has more than so many."""
    with path.open("rb") as file:
        file.seek(-largest // 2, os.SEEK_END)
        return file.read(largest // 2).partition(b"\n")[2]


def log_files(folder: Path, ending: str = ".log") -> dict[str, Path]:
    """The files of a job's processes, by their names; what is no regular file is none."""
    return {path.name.removesuffix(ending): path for path in sorted(folder.glob(f"*{ending}")) if path.is_file()}


def lines(folder: Path, older: bool = False) -> Iterator[str]:
    """What a job's processes have printed, process by process, every line after the name of its process.

    Args:
        older: alone what the files have lost to those before them.
    """
    for process, path in log_files(folder, f".log{_OLDER}" if older else ".log").items():
        for part in (path,) if older else (path.with_name(path.name + _OLDER), path):
            if part.is_file():
                with part.open(errors="replace") as file:
                    for line in file:
                        yield f"{process} | {line.removesuffix(chr(10))}"


def read_log(folder: Path, process: str | None, offset: int = 0) -> Part:
    """A part of what a process of a job has printed: whole lines, where there are any.

    Args:
        process: None: it is asked for the names alone. offset: bytes of what was read before; a file that has fewer was cut since,
            and is read from its beginning.
    """
    files = log_files(folder)
    if process not in files:
        return Part(b"", 0, [*files])
    with files[process].open("rb") as file:
        begins = offset if offset <= file.seek(0, os.SEEK_END) else 0
        file.seek(begins)
        data = file.read(_MOST_AT_ONCE)
    if len(data) == _MOST_AT_ONCE and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    return Part(data, begins + len(data), [*files])


def follow_lines(
    read: Callable[[str | None, int], Part], ended: Callable[[], bool], pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """What a job's processes print, every line after the name of its process, until the job has ended.

    Args:
        read: as `read_log` does. pause: waits so many seconds between looks.
    """
    offsets, rests, last = dict[str, int](), dict[str, bytes](), False
    while True:
        last, more = last or ended(), False
        for process in (*offsets,) or (None,):
            part = read(process, offsets.get(process or "", 0))
            offsets = dict.fromkeys(part.processes, 0) | offsets
            if process is not None:
                offsets[process] = part.next_offset
                *whole, rests[process] = (rests.get(process, b"") + part.data).split(b"\n")
                yield from (f"{process} | {line.decode(errors='replace')}" for line in whole)
            more |= bool(part.data) or len(offsets) > len(rests)
        if last and not more:
            yield from (f"{process} | {line.decode(errors='replace')}" for process, line in rests.items() if line)
            return
        if not more:
            pause(_LOOKS_S)
