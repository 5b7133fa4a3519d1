"""Tables as LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.report.fitting import plain

_ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\u00b1": r"$\pm$",
    "\u2026": r"\dots{}",
}


def to_latex(part: RenderableType) -> str:
    """Convert output that `rollmux_env.report.tables` makes for a terminal to LaTeX.

    Headings and notes become comments, and tables become `tabular`.
    """
    if isinstance(part, Group):
        return "".join(to_latex(inner) for inner in part.renderables)
    if isinstance(part, Table):
        return _table(part)
    assert isinstance(part, Text), part
    return "".join(f"% {line}\n" for line in part.plain.splitlines())


def _table(table: Table) -> str:
    columns = "".join("r" if column.justify == "right" else "l" for column in table.columns)
    headings = " & ".join(_escape(column.header) for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rf"{headings} \\", r"\midrule"]
    cells = zip(*([*column.cells] for column in table.columns), strict=True)
    for row, own in zip(table.rows, cells, strict=True):
        lines.append(rf"{' & '.join(map(_escape, own))} \\")
        if row.end_section and row is not table.rows[-1]:
            lines.append(r"\midrule")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _escape(cell: RenderableType) -> str:
    text = "".join(_ESCAPED.get(character, character) for character in plain(cell))
    return f"{{}}{text}" if text[:1] in ("[", "*") else text  # else it would be an option of the command that ends the line before
