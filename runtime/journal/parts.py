"""The files of a journal. Facts are written to the newest part; the parts before it were rolled over and never change again.

The first part is `journal.sqlite`, the next ones are `journal-2.sqlite`, `journal-3.sqlite` and so on. No part is ever renamed: a
reader that still has one open would let SQLite confuse it with its successor. The numbers of facts continue from part to part, and
each part is a complete journal of a run. A part that begins while jobs are present repeats facts of the part before it; these have
the last numbers of that part.
"""

from __future__ import annotations

import re
from pathlib import Path

from runtime.journal.facts import Fact
from runtime.journal.read import JOURNAL, entries_after, read_facts

_PART = re.compile(r"journal(?:-([1-9]\d{0,8}))?\.sqlite")


def part_number(name: str) -> int | None:
    """Return the number of the part with a file name, from 1, or None if it is not one of a journal."""
    match = _PART.fullmatch(name)
    return None if match is None else int(match[1] or 1)


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part of the journal in a folder."""
    return folder / (JOURNAL if number == 1 else f"journal-{number}.sqlite")


def part_after(path: Path) -> Path:
    """Return the path of the part that follows a part."""
    return part_path(path.parent, (part_number(path.name) or 1) + 1)


def part_numbers(folder: Path) -> list[int]:
    """Return the numbers of the parts in a folder, oldest first. Old parts may have been moved away."""
    return sorted(number for path in folder.glob("journal*.sqlite") if (number := part_number(path.name)) is not None)


def part_paths(folder: Path) -> list[Path]:
    """Return the paths of the parts in a folder, oldest first."""
    return [part_path(folder, number) for number in part_numbers(folder)]


def newest_part(folder: Path) -> Path:
    """Return the path of the part to which facts are written, or of a first part that does not exist yet."""
    return next(reversed(part_paths(folder)), folder / JOURNAL)


def read_parts(folder: Path) -> dict[int, list[Fact]]:
    """Read the facts of each part in a folder by its number, oldest part first.

    Raises:
        InputError: There is no journal, or a part is damaged.
    """
    return {number: read_facts(part_path(folder, number)) for number in part_numbers(folder) or [1]}


def entries_of_parts(folder: Path, number: int, most: int) -> list[tuple[int, str, str]]:
    """Return number, kind and JSON of the facts after a number, oldest first, of all parts in a folder.

    The newest part may be written at the same time.

    Raises:
        InputError: There is no journal, or a part cannot be read.
    """
    entries: list[tuple[int, str, str]] = []
    for path in reversed(part_paths(folder) or [folder / JOURNAL]):
        entries = [*entries_after(path, number, most), *entries]
        if entries and entries[0][0] == number + 1:
            break
    return entries[:most]
