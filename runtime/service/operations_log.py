"""Who did what to a service: a file of JSON lines in its folder, for its owner alone.

The journal says what happened to jobs and nodes; this says who asked for it, and what was refused.
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
LARGEST = 8 << 20  # bytes of a file; a full one becomes the file before it, and that one goes
_OLDER = ".1"
_LONGEST = 500  # characters of a value


class OperationsLog:
    """Writes operations as they are answered.

    Args:
        folder: of the service. largest: bytes of the file, of which there are at most two.
    """

    def __init__(self, folder: Path, largest: int = LARGEST) -> None:
        self._path = folder / OPERATIONS
        self._largest = largest

    def write(self, user: str, operation: str, subject: str, outcome: str) -> None:
        """Add a line. A full disk loses it, and nobody's work with it.

        Args:
            user: who asked, as the token says; `""` for the owner of the service. operation: as `submit` or `drain`.
            subject: what it was asked of: a job, a node, a user. outcome: `done`, or why not.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"time": now, "user": user, "operation": operation, "subject": subject, "outcome": outcome}
        line = json.dumps({key: one_line(value, _LONGEST) for key, value in entry.items()}) + "\n"
        with contextlib.suppress(OSError):
            while not self._append(line.encode()):
                pass

    def _append(self, line: bytes) -> bool:
        """Add a line, unless another process has just begun a new file."""
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
        """Whether it is the file that is written to."""
        try:
            return os.path.samestat(status, self._path.stat())
        except FileNotFoundError:  # put aside, and the new one has not begun
            return False
