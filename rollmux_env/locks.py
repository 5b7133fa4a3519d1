"""Locks of the operating system, which end with the process that holds them: a folder has one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rollmux_env.errors import InputError
from rollmux_env.files import private_opener
from rollmux_env.validation_errors import one_line

_LOCK = ".rollmux.lock"  # name of the lock's file in a folder that has a writer
GLANCE_S = 1.0  # far longer than `is_locked` holds a lock, also on a busy machine
_HOLDER = 40  # characters of a lock's file that are read


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder's only writer.

    A killed process leaves the lock's file, which then locks nothing.

    Raises:
        InputError: If another process holds the lock, or the folder cannot be written.
    """
    path = folder / _LOCK
    lock = take_lock(path)
    while not _is_file(lock, path):  # the previous holder removed the file after it was opened
        lock.close()
        lock = take_lock(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        lock.close()


def _is_file(lock: IO[str], path: Path) -> bool:
    """Return whether a lock is of the file that is at the path now."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
    except OSError:
        return False


def is_locked(path: Path, purpose: str) -> bool:
    """Return whether a process holds a lock that `take_lock` takes, for a purpose."""
    with contextlib.suppress(OSError), open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(_HOLDER).split()
            return not holder or holder[1:] == [purpose]  # it has been taken just now, or for the purpose
    return False


def take_lock(path: Path, wait_s: float = 0.0, purpose: str = "run") -> IO[str]:
    """Take an exclusive lock, held until the returned file is closed or this process ends.

    Args:
        path: Path of the lock's file, which is created and never removed.
        wait_s: Time to wait for another process that holds the lock, in seconds, such as `GLANCE_S` for one that looks at it.
        purpose: Word that the lock's file has beside the number of this process.

    Raises:
        InputError: If another process holds the lock, or the file cannot be created.
    """
    until_s = time.monotonic() + wait_s
    name = one_line(str(path.parent), 4096)
    try:
        file = open(path, "a+", opener=private_opener)  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror or error}") from None
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            if time.monotonic() > until_s:
                file.seek(0)
                holder = file.read(_HOLDER).split()[:1] or ["unknown"]
                file.close()
                raise InputError(f"{name}: a run is under way in this folder (process {holder[0]})") from None
            time.sleep(0.1)
    try:
        file.truncate(0)
        file.write(f"{os.getpid()} {purpose}\n")
        file.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            file.close()
        raise InputError(f"{name}: cannot be written: {error.strerror or error}") from None
    return file
