"""Pages that are one HTML file: the project's style is inserted, and they connect only to the server they come from."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.report.fitting import plain

STYLE = "style.css"
_STYLE_HERE, _POLICY_HERE = "/* style.css */", "<!-- policy -->"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)


def one_file(template: str) -> str:
    """Return a page from its template, which has the two marks `/* style.css */` and `<!-- policy -->`.

    The content security policy allows only the page's own scripts, by their hashes, so that inserted text cannot become a script.
    It allows connections only to the page's own server.

    Args:
        template: Text of the template.
    """
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in _SCRIPT.findall(template))
    scripts = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    rules = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'"
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{rules}; form-action \'none\'">'
    style = files("rollmux_env.report").joinpath(STYLE).read_text(encoding="utf-8")
    return template.replace(_POLICY_HERE, policy, 1).replace(_STYLE_HERE, style, 1)


def to_html(part: RenderableType) -> str:
    """Return a part that `rollmux_env.report.tables` makes for a terminal as HTML: headings, notes, and sortable tables."""
    if isinstance(part, Group):
        return "".join(to_html(inner) for inner in part.renderables)
    if isinstance(part, Table):
        return _table(part)
    assert isinstance(part, Text), part
    tag = "h2" if "bold" in str(part.style) else "p"
    return f"<{tag}{_class('dim' if 'dim' in str(part.style) else '')}>{escape(part.plain)}</{tag}>"


def _table(table: Table) -> str:
    numeric = ["n" if column.justify == "right" else "" for column in table.columns]
    headings = [plain(column.header) for column in table.columns]
    styles = [_STYLES.get(str(row.style).rpartition(" ")[2], "") for row in table.rows]
    head = "".join(
        f'<th role="columnheader" scope="col"{_class(kind)}><button type="button">{escape(name)}</button></th>'
        for name, kind in zip(headings, numeric, strict=True)
    )
    body = "".join(_row(row, headings, numeric, style) for row, style in zip(_rows_of(table), styles, strict=True))
    open_tag = '<div class="scroll cards"><table role="table" class="sortable">'
    return f'{open_tag}<thead><tr role="row">{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _rows_of(table: Table) -> list[list[str]]:
    """Return the texts of each row. A terminal shows names once per section, but rows that can be sorted need them all."""
    rows = [list(row) for row in zip(*([plain(cell) for cell in column.cells] for column in table.columns), strict=True)]
    names = max(1, sum(column.no_wrap for column in table.columns))
    for (above, row), before in zip(pairwise(rows), table.rows, strict=False):
        if not row[0] and not before.end_section:
            row[:names] = [row[k] or above[k] for k in range(names)]
    return rows


_STYLES = {"red": "bad", "green": "good", "dim": "dim"}


def _row(cells: Sequence[str], headings: Sequence[str], numeric: Sequence[str], style: str) -> str:
    inner = "".join(
        f'<td role="cell"{_class(kind)} data-label="{escape(label)}">{_span(cell)}</td>'
        for cell, label, kind in zip(cells, headings, numeric, strict=True)
    )
    return f'<tr role="row"{_class(style)}>{inner}</tr>'


def _span(cell: str) -> str:
    return f'<span class="name">{escape(cell)}</span>' if cell else ""


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
