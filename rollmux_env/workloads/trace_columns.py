"""Columns of a trace's CSV file: which ones a row is read from, by names that `--set columns=` gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.fields import MAX_NODES_OF_A_JOB, USER_PATTERN
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import describe, one_line

KEYS = ("arrival", "duration", "start", "end", "cluster", "user", "gpus")
_NAMES: Mapping[str, tuple[str, ...]] = {"arrival": ("timestamp",), "duration": ("duration",), "cluster": ("cluster", "vc")}
_ITEM = re.compile(r"""\s*["']?(\w+)["']?\s*:\s*["']?([^"',{}]+?)["']?\s*""")
_NO_END = ("", "nan", "none", "null", "\\n")  # what traces write as the end of a job that never ran
_MAX_GPUS = 8 * MAX_NODES_OF_A_JOB  # on nodes of 8
_MAX_NAMED = 8  # largest number of columns that a message names
MAX_TIMESTAMP_S = 1e12  # largest timestamp; beyond it, rounding would hide differences


class TraceRow(NamedTuple):
    """A row of a trace.

    Attributes:
        submitted_s: Submission, in seconds.
        duration_s: Duration in seconds, 0 if the job never ran.
        user: Name of the user, or an empty text.
        gpus: Number of GPUs, or None where the file does not say it.
    """

    submitted_s: float
    duration_s: float
    user: str = ""
    gpus: int | None = None


def parse_columns(text: str | None) -> dict[str, str]:
    """Parse a map such as `{arrival: submit_time, user: user}` into the name of a column by key.

    Raises:
        InputError: The text has another form, or a key is unknown or given twice.
    """
    if text is None:
        return {}
    names: dict[str, str] = {}
    for item in text.strip().removeprefix("{").removesuffix("}").split(","):
        parts = _ITEM.fullmatch(item)
        if parts is None:
            raise InputError(f"columns: must be a map such as {{arrival: submit_time, user: user}}, not {describe(text)}")
        key, column = parts.groups()
        if key not in KEYS:
            raise InputError(f"columns: there is no key {key}; it has {', '.join(KEYS)}{did_you_mean(key, KEYS)}")
        if key in names:
            raise InputError(f"columns: {key} is given twice")
        names[key] = column
    if "end" in names and "duration" in names:
        raise InputError("columns: give duration, or end and where it is known start")
    return names


class TraceColumns:
    """Positions of the columns of a file.

    Args:
        name: Name of the file, for error messages.
        header: Names of the columns.
        names: Names that the user gives, by key.
        needs_cluster: Whether the virtual cluster is read.

    Raises:
        InputError: A column is missing.
    """

    def __init__(self, name: str, header: Sequence[str], names: Mapping[str, str], needs_cluster: bool) -> None:
        self.header = header
        wanted = {"arrival", "end" if "end" in names else "duration", *names} - {"cluster"}
        self._positions: dict[str, int] = {}
        for key in [*sorted(wanted), *(["cluster"] if needs_cluster else [])]:
            columns = (names[key],) if key in names else _NAMES[key]
            position = next((header.index(column) for column in columns if column in header), None)
            if position is None:
                raise InputError(f"{name}: line 1: the column {' or '.join(columns)} is missing; {_remedy(key, header)}")
            self._positions[key] = position

    def check(self, where: str, row: Sequence[str]) -> None:
        """Refuse a row that ends before a column that is read."""
        for position in self._positions.values():
            if position >= len(row):
                raise InputError(f"{where}: {self.header[position]}: is missing")

    def cluster(self, row: Sequence[str]) -> str | None:
        """Return the virtual cluster of a row, or None if it is not read."""
        return row[self._positions["cluster"]].strip() if "cluster" in self._positions else None

    def read(self, where: str, row: Sequence[str]) -> TraceRow:
        """Return the values of a row.

        Args:
            where: File and line, for error messages.
            row: Texts of the row.

        Raises:
            InputError: A text is no time, number or name.
        """

        def labelled(key: str) -> tuple[str, str]:
            position = self._positions[key]
            return f"{where}: {self.header[position]}", row[position].strip()

        submitted_s = _timestamp(*labelled("arrival"))
        if "end" in self._positions:
            label, text = labelled("end")
            began_s = submitted_s
            if "start" in self._positions and labelled("start")[1].lower() not in _NO_END:
                began_s = _timestamp(*labelled("start"))
            duration_s = 0.0 if text.lower() in _NO_END else _timestamp(label, text) - began_s
            duration_s = max(0.0, duration_s)
        else:
            duration_s = _duration(*labelled("duration"))
        user = labelled("user")[1] if "user" in self._positions else ""
        if user and not re.fullmatch(USER_PATTERN, user):
            raise InputError(f"{labelled('user')[0]}: cannot be the name of a user: {describe(user)}")
        gpus = _gpus(*labelled("gpus")) if "gpus" in self._positions else None
        return TraceRow(submitted_s, duration_s, user, gpus)


def _remedy(key: str, header: Sequence[str]) -> str:
    """Return what to do about a column that a header does not have."""
    separator = next((separator for separator in (";", "\t", "|") if len(header) == 1 and separator in header[0]), None)
    if separator is not None:
        return f"columns are separated by commas, not by {separator!r}"
    names = [one_line(name, 20) for name in header if name]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"it has {', '.join(names[:_MAX_NAMED]) or 'none'}{more}; --set columns='{{{key}: NAME}}' names another"


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _gpus(where: str, text: str) -> int:
    gpus = 0.0 if text.lower() in _NO_END else _seconds(text)
    if gpus is None or not 0 <= gpus <= _MAX_GPUS:
        raise InputError(f"{where}: must be a number of GPUs, not {describe(text)}")
    return math.ceil(gpus)


def _duration(where: str, text: str) -> float:
    duration_s = _seconds(text)
    if duration_s is None or not 0 <= duration_s <= 1e9:
        raise InputError(f"{where}: must be a number of seconds from 0 to 1e9, not {describe(text)}")
    return duration_s


def _timestamp(where: str, text: str) -> float:
    submitted_s = _seconds(text)
    if submitted_s is None:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InputError(
                f"{where}: must be a time such as 2017-12-01 18:39:32 (ISO 8601), or seconds, not {describe(text)}"
            ) from None
        try:
            submitted_s = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            submitted_s = math.nan
    if not -MAX_TIMESTAMP_S <= submitted_s <= MAX_TIMESTAMP_S:
        raise InputError(f"{where}: must be a finite time, not {describe(text)}")
    return submitted_s
