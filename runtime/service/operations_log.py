"""The log of operations on a service: a file of JSON lines in its folder, readable by its owner alone.

The journal says what happened to jobs and nodes. This log says which user asked for it, and what was refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from rollmux_env.files import private_opener
from rollmux_env.validation_errors import one_line

OPERATIONS = "operations.jsonl"
LARGEST = 8 << 20  # bytes of a file; a full file replaces the older one
_OLDER = ".1"
_LONGEST = 500  # characters of a value


class OperationsLog:
    """Writer of the log of operations.

    Args:
        folder: Folder of the service.
        largest: Largest size of the file, in bytes. There are at most two files.
    """

    def __init__(self, folder: Path, largest: int = LARGEST) -> None:
        self._path = folder / OPERATIONS
        self._largest = largest

    def write(self, user: str, operation: str, subject: str, outcome: str) -> None:
        """Append an operation that was answered. If the disk is full, the line is lost, and the operation is not affected.

        Args:
            user: Name of the token's user, or "" for the owner of the service.
            operation: Name of the operation, such as `submit` or `drain`.
            subject: Job, node or user that the operation concerns.
            outcome: `done`, or the reason of a refusal.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"time": now, "user": user, "operation": operation, "subject": subject, "outcome": outcome}
        line = json.dumps({key: one_line(value, _LONGEST) for key, value in entry.items()}) + "\n"
        with contextlib.suppress(OSError):
            while not self._append(line.encode()):
                pass

    def _append(self, line: bytes) -> bool:
        """Append a line, and return whether that was possible: not if another process has just begun a new file."""
        with open(self._path, "ab", buffering=0, opener=private_opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # `rollmux token` writes too
            status = os.fstat(file.fileno())
            if not self._is_present(status):
                return False
            if status.st_size + len(line) <= self._largest or not status.st_size:
                file.write(line)
                return True
            self._path.replace(self._path.with_name(OPERATIONS + _OLDER))
            return False

    def _is_present(self, status: os.stat_result) -> bool:
        """Return whether an open file is still the log's file, and not the older one."""
        try:
            return os.path.samestat(status, self._path.stat())
        except FileNotFoundError:  # renamed, and the new file does not exist yet
            return False
