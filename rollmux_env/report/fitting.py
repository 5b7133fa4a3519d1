"""Fits tables to a width without loss: first with taller headings, then with rows of several lines, then as several tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

LONG = 30
"""Number of characters from which on a cell may take more than one line."""
_GAP, _EDGE = 3, 1  # largest number of characters between columns, and at the table's edge


@dataclass(frozen=True)
class _Width:
    """The width of a column, in characters.

    Attributes:
        least: Smallest width, with the heading on several lines.
        best: Width at which nothing is broken.
    """

    least: int
    best: int


def fitted(part: RenderableType, width: int) -> RenderableType:
    """Return a part with every table in it at most `width` characters wide.

    The rows of a table that is too wide take two or three lines, and its headings as many. If that is not enough, or the table has
    several sections, it is split. Each part repeats the first columns, which name a row, and leaves out sections that are empty in
    it.

    Args:
        part: Tables and texts.
        width: Largest width, in characters.
    """
    if isinstance(part, Group):
        return Group(*(fitted(inner, width) for inner in part.renderables))
    return Group(*_split(part, width)) if isinstance(part, Table) else part


def _split(table: Table, width: int) -> list[Table]:
    columns = table.columns
    widths = [_width_of(column) for column in columns]
    if _EDGE + sum(each.best + _GAP for each in widths) <= width:
        return [table]
    names = [k for k, column in enumerate(columns) if column.no_wrap]
    if len(names) in (0, len(columns)):
        names = [0]  # the others have to give way
    is_too_wide = len(columns) > 1 and _EDGE + sum(each.least + _GAP for each in widths) > width
    if is_too_wide and (narrow := _fold_rows(table, names, widths, width)):
        return [narrow]
    for k in names:  # a name as wide as the table takes several lines
        most = max(LONG, width // (2 * len(names)))
        widths[k] = _Width(min(widths[k].best, most), widths[k].best)
    named = _EDGE + sum(widths[k].least + _GAP for k in names)
    others = [k for k in range(len(columns)) if k not in names]
    parts = _divide_columns(others, widths, width - named)
    return [_part(table, sorted((*names, *own)), _rows_with(table, own), widths, width) for own in parts]


def _divide_columns(columns: Sequence[int], widths: Sequence[_Width], width: int) -> list[list[int]]:
    """Return the columns in parts of at most a width, each with one column at least."""
    parts: list[list[int]] = [[]]
    for k in columns:
        taken = sum(widths[other].least + _GAP for other in parts[-1])
        if parts[-1] and taken + widths[k].least + _GAP > width:
            parts.append([])
        parts[-1].append(k)
    return parts


def _fold_rows(table: Table, names: Sequence[int], widths: Sequence[_Width], width: int) -> Table | None:
    """Return the table with rows of two or three lines, whichever is narrow enough first.

    The answer is None if neither is, or the table has sections or long cells.
    """
    others = [k for k in range(len(table.columns)) if k not in names]
    if any(row.end_section for row in table.rows) or any(widths[k].best > LONG for k in others):
        return None
    for lines in (2, 3):
        slots = -(-len(others) // lines)
        parts = [others[first : first + slots] for first in range(0, len(others), slots)]
        stacked = [[part[k] for part in parts if k < len(part)] for k in range(slots)]
        own = [max(widths[k].best for k in slot) for slot in stacked]
        if _EDGE + sum(widths[k].best + _GAP for k in names) + sum(each + _GAP for each in own) <= width:
            return _stack_slots(table, names, stacked)
    return None


def _stack_slots(table: Table, names: Sequence[int], slots: Sequence[Sequence[int]]) -> Table:
    """Return the table with the columns of each slot below each other, after the columns of names."""
    narrow = Table(box=table.box, pad_edge=table.pad_edge, title=table.title)
    for k in names:
        narrow.add_column(table.columns[k].header, justify=table.columns[k].justify, no_wrap=True)
    for slot in slots:
        heading = "\n".join(plain(table.columns[k].header) for k in slot)
        narrow.add_column(heading, justify=table.columns[slot[0]].justify, no_wrap=True)
    cells = [[*column.cells] for column in table.columns]
    for number, row in enumerate(table.rows):
        values = ("\n".join(plain(cells[k][number]) for k in slot) for slot in slots)
        narrow.add_row(*(cells[k][number] for k in names), *values, style=row.style)
    return narrow


def _rows_with(table: Table, own: Sequence[int]) -> list[int]:
    """Return the rows of the sections that are not empty in some columns, or all rows if every section is."""
    rows: list[int] = []
    first = 0
    cells = [[plain(cell) for cell in table.columns[k].cells] for k in own]
    for last, row in enumerate(table.rows):
        if row.end_section or last == len(table.rows) - 1:
            if any(any(column[first : last + 1]) for column in cells):
                rows += range(first, last + 1)
            first = last + 1
    return rows or [*range(len(table.rows))]


def _part(table: Table, shown: Sequence[int], rows: Sequence[int], widths: Sequence[_Width], width: int) -> Table:
    """Return some columns and rows of a table. Columns with long cells or headings divide the remaining width."""
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
    """Return the width of a column. Short cells stay on one line; long ones and headings are broken between words."""
    cells = [plain(cell) for cell in column.cells]
    heading = plain(column.header)
    whole = max(map(cell_len, cells), default=0)
    words = max((cell_len(word) for text in cells for word in text.split()), default=0)
    least = whole if column.no_wrap else min(whole, max(LONG, words))
    return _Width(max(least, *(cell_len(word) for word in heading.split() or [""])), max(whole, cell_len(heading)))


def plain(cell: RenderableType) -> str:
    """Return the text of a cell or a heading."""
    return cell.plain if isinstance(cell, Text) else str(cell)
