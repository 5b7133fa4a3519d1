"""Published figures of papers, projects and data sheets, as printed: one TOML file per source, and their reader.

A file begins with its source. A table with many rows is a text whose columns are separated by two or more spaces: its first line
has the names of the columns, the first column names the row, and `-` means that nothing is printed. The files also describe the
suites that compare with these figures (`rollmux_env.bench.suites.published`).
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_text
from rollmux_env.validation_errors import format_error, not_one_of, problems

T = TypeVar("T")
FOLDER = Path(__file__).parent


class Source:
    """A file of figures.

    Args:
        path: Path of the TOML file.

    Raises:
        InputError: If it cannot be read, or is not TOML.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._values = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise self._error(f"is not TOML: {error}") from None

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of a key.

        Args:
            key: Key of the file.
            kind: Type of the value.
            default: Value if the key is missing, or None if it is required.

        Raises:
            InputError: If a required key is missing, or the value has another type. The message names file, place and problem.
        """
        if key in self._values:
            return self.checked(self._values[key], kind, key)
        if default is None:
            raise self._error(f"{key}: is missing")
        return default

    def table(self, key: str, kind: type[T]) -> list[tuple[str, T]]:
        """Return the rows of a printed table, in order: the name of each, and its other cells.

        Args:
            key: Key of the table.
            kind: Type of a row's cells: a dataclass or NamedTuple with a field for each column, or a plain tuple.

        Raises:
            InputError: As in `value`, or if a column is no field, or a row has too few or too many cells.
        """
        (_, *columns), *rows = (re.split(r"\s{2,}", line.strip()) for line in self.value(key, str).strip().splitlines())
        fields = getattr(kind, "__match_args__", columns)
        for column in columns:
            if column not in fields:
                raise self._error(f"{key}: {column}: {not_one_of(column, fields)}")
        named = []
        for name, *cells in rows:
            if len(cells) != len(columns):
                raise self._error(f"{key}: {name}: has {len(cells)} cells beside its name, not {len(columns)}")
            values = [None if cell == "-" else cell for cell in cells]
            row = values if fields is columns else dict(zip(columns, values, strict=True))
            named.append((name, self.checked(row, kind, key, name)))
        return named

    def checked(self, value: Any, kind: type[T], *at: str | int) -> T:
        """Return a value of the file as a `kind`.

        Args:
            value: Value of the file.
            kind: Type of the result.
            at: Place of the value, for error messages.

        Raises:
            InputError: If it has another type. The message names file, place and problem.
        """
        hashed: Any = kind
        try:
            valid: T = _adapter(hashed).validate_python(value)
        except ValidationError as error:
            raise self._error(format_error(problems(error)[0], None, *at)) from None
        return valid

    def _error(self, problem: str) -> InputError:
        return InputError(f"{self._path}: {problem}")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def source(name: str) -> Source:
    """Return the file of a source, by its name without the suffix."""
    return Source(FOLDER / f"{name}.toml")
