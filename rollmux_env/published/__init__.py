"""What papers, projects and data sheets print, as they print it: a TOML file a source, and what reads it.

A file begins with its source. A table of many rows is a text in columns that two or more spaces divide: its first line has their
names, the first column names the row, and `-` stands where nothing is printed. The suites that compare with these
figures stand beside them (`rollmux_env.bench.suites.published`).
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

    Raises:
        InputError: it cannot be read, or is not TOML; one line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._values = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise self._error(f"is not TOML: {error}") from None

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """What is under a key.

        Raises:
            InputError: nothing is and there is no default, or it is of another type; one line with file, place and problem.
        """
        if key in self._values:
            return self.checked(self._values[key], kind, key)
        if default is None:
            raise self._error(f"{key}: is missing")
        return default

    def table(self, key: str, kind: type[T]) -> list[tuple[str, T]]:
        """The rows of a printed table, in order: the name of each, and its other cells.

        Args:
            kind: of the cells of a row: a dataclass or NamedTuple with a field for each column, or a plain tuple.

        Raises:
            InputError: as `value`, a column is no field, or a row has too few cells or too many; one line.
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
        """A value of the file as a `kind`.

        Args:
            at: where it is.

        Raises:
            InputError: it is none; one line with the file, the place and the problem.
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
    """The file of a source, by its name without the suffix."""
    return Source(FOLDER / f"{name}.toml")
