"""Fits tables to a width without losing anything: taller headings first, then a second table below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

LONG = 30
"""Characters of a cell, from which on it may take more than one line."""
_GAP, _EDGE = 3, 1  # characters beside a column's cells, and at the table's edge, at most


@dataclass(frozen=True)
class _Width:
    """Of a column: the least that it takes, with its heading on several lines, and what it takes at its best."""

    least: int
    best: int


def fitted(part: RenderableType, width: int) -> RenderableType:
    """The same, with every table in it at most `width` characters wide.

    A table that is too wide is split: its first columns, those that name a row, stand in each of its parts. A part leaves out
    the sections of the table that have nothing to show in it.
    """
    if isinstance(part, Group):
        return Group(*(fitted(inner, width) for inner in part.renderables))
    return Group(*_split(part, width)) if isinstance(part, Table) else part


def _split(table: Table, width: int) -> list[Table]:
    columns = table.columns
    widths = [_width_of(column) for column in columns]
    if _EDGE + sum(each.best + _GAP for each in widths) <= width:
        return [table]
    names = [k for k, column in enumerate(columns) if column.no_wrap] or [0]
    for k in names:  # a name that fills the table by itself takes several lines
        most = max(LONG, width // (2 * len(names)))
        widths[k] = _Width(min(widths[k].best, most), widths[k].best)
    named = _EDGE + sum(widths[k].least + _GAP for k in names)
    parts: list[list[int]] = [[]]
    for k in range(len(columns)):
        if k not in names:
            taken = named + sum(widths[other].least + _GAP for other in parts[-1])
            if parts[-1] and taken + widths[k].least + _GAP > width:
                parts.append([])
            parts[-1].append(k)
    return [_part(table, sorted((*names, *own)), _rows_with(table, own), widths, width) for own in parts]


def _rows_with(table: Table, own: Sequence[int]) -> list[int]:
    """Rows of the sections with anything in these columns; all rows where no section has."""
    rows: list[int] = []
    first = 0
    cells = [[_plain(cell) for cell in table.columns[k].cells] for k in own]
    for last, row in enumerate(table.rows):
        if row.end_section or last == len(table.rows) - 1:
            if any(any(column[first : last + 1]) for column in cells):
                rows += range(first, last + 1)
            first = last + 1
    return rows or [*range(len(table.rows))]


def _part(table: Table, shown: Sequence[int], rows: Sequence[int], widths: Sequence[_Width], width: int) -> Table:
    """Some columns and rows of a table; columns with long cells or headings take what is left of the width."""
    part = Table(box=table.box, pad_edge=table.pad_edge, title=table.title)
    columns = {k: widths[k].least for k in shown}
    left = width - _EDGE - sum(each + _GAP for each in columns.values())
    for k in shown:
        more = max(0, min(left, widths[k].best - columns[k]))
        columns[k] += more
        left -= more
    for k in shown:
        column = table.columns[k]
        part.add_column(
            column.header, justify=column.justify, style=column.style, width=min(columns[k], width - _GAP), overflow="fold"
        )
    cells = [[*table.columns[k].cells] for k in shown]
    for k in rows:
        part.add_row(*(column[k] for column in cells), style=table.rows[k].style, end_section=table.rows[k].end_section)
    return part


def _width_of(column: Column) -> _Width:
    """Short cells stay on one line; long ones, and headings, are broken between words."""
    cells = [_plain(cell) for cell in column.cells]
    heading = _plain(column.header)
    whole = max(map(cell_len, cells), default=0)
    words = max((cell_len(word) for text in cells for word in text.split()), default=0)
    least = whole if column.no_wrap else min(whole, max(LONG, words))
    return _Width(max(least, *(cell_len(word) for word in heading.split() or [""])), max(whole, cell_len(heading)))


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
