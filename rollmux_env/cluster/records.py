"""Rows of tables in one piece: NumPy copies records column by column, which takes twenty times as long.

For chosen rows, `table.take(rows)` does the same for `table[rows]`.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.kernel.tables import Records, copy_into


def copied(table: Records) -> Records:
    """A table of its own."""
    return _bytes(table).copy().view(table.dtype)


def joined(first: Records, second: Records) -> Records:
    """The rows of two tables of the same type, one behind the other."""
    return np.concatenate([_bytes(first), _bytes(second)]).view(first.dtype)


def begin_with(table: Records, rows: Records) -> None:
    """Write rows into the first ones of a table, which may be wider."""
    if table.dtype == rows.dtype:
        _bytes(table)[: len(rows)] = _bytes(rows)
    else:
        copy_into(table, rows)


def _bytes(table: Records) -> Records:
    return table.view(np.dtype((np.void, table.dtype.itemsize)))
