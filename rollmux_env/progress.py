"""Lines on standard error: the progress of long tasks, and deviations between a file and what was read from it."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from types import TracebackType

from rollmux_env.validation_errors import one_line

_TERMINAL_S = (3.0, 0.5)  # seconds before the first line and between lines; on a terminal each line replaces the previous one
_FILE_S = (10.0, 60.0)
_printed: set[str] = set()


def say_read(path: Path | str, note: str) -> None:
    """Write to standard error how a file was read, once per process.

    Args:
        path: Path of the file or folder.
        note: Description of what the reader rounded, left out or made up, with counts.
    """
    line = f"read {one_line(str(path), 4096)}: {note}"
    if line not in _printed:
        _printed.add(line)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class ProgressLines:
    """Lines on standard error that report the progress of a long task. A short task prints none.

    Args:
        what: Start of the lines: the task.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        first_s, self._every_s = _TERMINAL_S if self._terminal else _FILE_S
        self._next_s = monotonic() + first_s
        self._printed = False

    def report(self, how_far: str) -> None:
        """Print the progress if enough time has passed."""
        now_s = monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        self._printed = True
        line = f"{self._what}: {how_far}"
        sys.stderr.write(f"\r{line}\033[K" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._printed and self._terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
