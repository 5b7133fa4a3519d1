"""Damage of every kind, drawn from a generator of random numbers: to values, trees, text, bytes and tables."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e-320, 1e-9, 1e15, 1e300, 10**6, 10**18, -(10**30), 10**400, float("nan"),
    float("inf"), -float("inf"), "", "x", "1", "nan", "a\nb", "\x00", "\x1b[31m", "\ud800", "é" * 50, "x" * 10**5, "../a",
    "/dev/zero", "/dev/stdin", ".", "/", "{problem}", "%s", "tiny", "rollmux", [], [[]], [None], [1e300] * 50, {}, {"": None},
    {"x": {"y": {"z": []}}}, {"2": 1}, {"iteration": 1}, [{"iteration": 3}, {"iteration": 1}],
]  # fmt: skip
TEXTS = [
    "\n", "\t", ": ", "- ", "? ", "[", "]", "{", "}", "&a ", "*a", "<<: *a\n", "!!binary ", "|\n", ">\n", "'", '"', "#", "---\n",
    "\x00", "\x85", "\u2028", "\ufeff", "\\", '"\\x"', "@", "0x", "1e999", ".nan", "9" * 5000, "k" * 5000, "version: 1\n",
    "[" * 5000, "{a: " * 500, "- " * 500, "a: &a [*a, *a]\n", ",", "=", "-1", ",,", "\r", "1e308,1e308\n", '"' + "," * 3000,
    ".", "..", "../a",
]  # fmt: skip

PACKERS: list[Callable[[bytes], bytes]] = [gzip.compress, bz2.compress, lzma.compress]
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a tree."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def gently(data: Any, rng: random.Random) -> None:
    """Change a value of a tree to another one of its type, so that its reader does not stop at once."""
    values = [(container, key) for container, key in places(data) if not isinstance(container[key], dict)]
    if not values:
        return
    container, key = rng.choice(values)
    value = container[key]
    if isinstance(value, bool):
        container[key] = not value
    elif isinstance(value, int | float):
        factor = rng.choice([0, 0.1, 0.5, 0.9, 1.1, 2, 10, 1000, 10**6, -1])
        container[key] = type(value)(value * factor) if rng.random() < 0.7 else rng.choice([0, 1, 2, 3, 7, 100])
    elif isinstance(value, list):
        container[key] = rng.choice([value[1:], value * 2, value[::-1]])
    else:
        texts = [other[name] for other, name in values if isinstance(other[name], str)]
        container[key] = rng.choice([*texts, "a", "b", "rollout", "training", value])


def tree(data: Any, rng: random.Random) -> Any:
    """Return a copy of a tree with one or a few values changed, moved, removed or added."""
    data = copy.deepcopy(data)
    if rng.random() < 0.6:
        for _ in range(rng.choice([1, 2, 3])):
            gently(data, rng)
        return data
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        spots = places(data)
        if not spots:
            return copy.deepcopy(rng.choice(VALUES))
        container, key = rng.choice(spots)
        kind, junk = rng.randrange(5), copy.deepcopy(rng.choice(VALUES))
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[rng.choice(["colour", "a\nb", "x" * 5000, "id", "slo", "defaults", "0", "folder", "file"])] = junk
        elif kind == 2:
            other, name = rng.choice(spots)
            with suppress(LookupError):  # the source may have been removed just before
                container[key] = copy.deepcopy(other[name])
        elif kind == 3 and isinstance(container[key], int | float):
            with suppress(OverflowError):  # an integer may be too large for a float
                container[key] = container[key] * rng.choice([-1, 0, 1e-6, 1e3, 1e9])
        else:
            container[key] = junk
    return data


def text(value: str, rng: random.Random) -> str:
    """Return the text with something inserted, cut out or doubled."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, until = sorted(rng.randrange(len(value) + 1) for _ in range(2))
        until = min(until, at + rng.choice([1, 5, 200]))
        part = rng.choice([rng.choice(TEXTS), "", value[at:until] * 2])
        value = value[:at] + part + value[until:]
    return value


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some of them flipped, cut off, or overwritten with a constant block."""
    kind = rng.randrange(4)
    if kind == 0 or not data:
        return data[: rng.randrange(len(data) + 1)]
    changed = bytearray(data)
    if kind == 1:
        at = rng.randrange(len(changed))
        changed[at : at + 4096] = bytes([rng.choice([0, 0xFF, 0xA5])]) * 4096
    for _ in range(rng.choice([1, 3, 30])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def dumped(data: Any, path: Path) -> None:
    """Write a tree as JSON, which is nearly a subset of YAML."""
    path.write_text(json.dumps(data), errors="surrogatepass")


def file(path: Path, rng: random.Random) -> None:
    """Damage a file of any kind, or replace it with something else."""
    kind = rng.randrange(20)
    if kind == 0:
        path.unlink()
        other: Callable[[], object] = rng.choice(
            [path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), lambda: path.symlink_to(path.name)]
        )
        other()
    elif kind == 1:
        path.write_bytes(b"")
    elif kind == 2:
        path.chmod(0o600)
        os.truncate(path, 40 << 30)  # takes no space on the disk
    elif kind == 3:
        path.write_bytes(rng.choice(PACKERS)(path.read_bytes()))
    elif kind == 4:  # latin-1 gives each byte a character
        path.write_bytes(path.read_bytes().decode("latin-1").encode(rng.choice(ENCODINGS)))
    else:
        path.write_bytes(flipped(path.read_bytes(), rng))


def rows(path: Path, rng: random.Random) -> None:
    """Change facts of a journal: their kinds, numbers and bodies, and sometimes the table."""
    with closing(sqlite3.connect(path, isolation_level=None)) as journal:
        journal.execute("PRAGMA journal_mode=DELETE")
        for _ in range(rng.choice([1, 1, 1, 2, 6])):
            numbers = [number for (number,) in journal.execute("SELECT number FROM facts")] or [1]
            number, other, kind = rng.choice(numbers), rng.choice(numbers), rng.randrange(9)
            if kind == 0:
                journal.execute("DELETE FROM facts WHERE number = ?", (number,))
            elif kind == 1:  # without a gap
                journal.execute("DELETE FROM facts WHERE number = ?", (number,))
                journal.execute("UPDATE facts SET number = number - 1 WHERE number > ?", (number,))
            elif kind == 2:
                (other_kind,) = journal.execute("SELECT kind FROM facts WHERE number = ?", (other,)).fetchone() or ("Ended",)
                journal.execute("UPDATE facts SET kind = ? WHERE number = ?", (other_kind, number))
            elif kind == 3:
                swapped = "INSERT OR REPLACE INTO facts (number, kind, body) SELECT ?, kind, body FROM facts WHERE number = ?"
                journal.execute(swapped, (number, other))
            elif kind == 4:
                junk = rng.choice(["", "{", "[]", "null", "{}", b"\xff", 3, "[" * 10**5, "9" * 10**5])
                journal.execute("UPDATE facts SET body = ? WHERE number = ?", (junk, number))
            elif kind == 5 and rng.random() < 0.3:
                for statement in rng.choice([["DELETE FROM facts"], ["DROP TABLE facts"], [f"PRAGMA user_version={number}"]]):
                    journal.execute(statement)
                return
            else:
                row = journal.execute("SELECT body FROM facts WHERE number = ?", (number,)).fetchone()
                with suppress(ValueError, TypeError, RecursionError):
                    body = json.dumps(tree(json.loads(row[0]), rng))
                    journal.execute("UPDATE facts SET body = ? WHERE number = ?", (body, number))
