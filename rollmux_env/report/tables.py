"""Parts of tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.bench.intervals import Mean
from rollmux_env.report.fitting import fitted

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
"""Function of a row that returns the text of its cell, by heading."""
WIDTH = 120
"""Number of columns if standard output is no terminal."""
_WIDE = 1e9  # larger numbers would widen their column beyond the terminal


def show(*parts: RenderableType) -> None:
    """Print to standard output, as wide as the terminal, or `WIDTH` columns wide for a file or a pipe."""
    console = Console(markup=False)  # users' names may contain brackets
    if not console.is_terminal:
        console = Console(width=WIDTH, markup=False)
    console.print(fitted(Group(*parts), console.width))


def heading(title: str) -> Text:
    """Return a title above a table, as wide as the terminal."""
    return Text(title, style="bold")


def make_table(*columns: str, left: int = 1) -> Table:
    """Return an empty table in the project's style; all columns but the first `left` hold figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        is_name = position < left
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=is_name)
    return table


def table_of(rows: Iterable[T], columns: Columns[T], left: int = 1, style: Callable[[T], str] = lambda row: "") -> Table:
    """Return a table with one line per row.

    Args:
        rows: Rows.
        columns: Function of a row that returns the text of its cell, by heading.
        left: Number of leading columns that hold names; the others hold figures.
        style: Function of a row that returns the style of its line.
    """
    table = make_table(*columns, left=left)
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()), style=style(row))
    return table


def figure(value: float | None, unit: str = "", form: str = ".2f") -> str:
    """Format a number with its unit, in scientific notation from `_WIDE`, or an empty text for None."""
    if value is None:
        return ""
    return f"{value:{form if abs(value) < _WIDE else '.4g'}}{unit}"


def percent(share: float, digits: int = 1) -> str:
    """Format a share as `percentage` does."""
    return percentage(100 * share, digits)


def percentage(value: float, digits: int = 1) -> str:
    """Format a percentage, with up to three digits more where fewer would show 0% or 100% for a value that is neither."""
    is_whole = value in (0, 100)
    shown = next((more for more in range(digits, digits + 4) if is_whole or round(value, more) not in (0, 100)), digits)
    return f"{value:,.{shown}f}%"


def ratio_text(mean: Mean | None, digits: int = 2) -> str:
    """Format a ratio, or a dash if it divides by 0."""
    return "-" if mean is None else mean.text(digits, "x")


def sharing_table(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """Return the cost of sharing nodes in time and its saving in dollars, one line per job, red if its SLO is broken.

    Args:
        jobs: Mappings with `id`; seconds of an iteration shared (`iteration_s`) and alone (`alone_s`); `slowdown`; `slo`; the job's
            charge in $/h, an even part of its group's price (`usd_per_hour`); and the price of its nodes alone in $/h
            (`usd_per_hour_solo`). None becomes an empty cell. `alone_half_width_s`, if present, is the half-width of a 95%
            interval.
    """

    def alone(job: Mapping[str, Any]) -> str:
        half_width = job.get("alone_half_width_s")
        return figure(job["alone_s"], f" ± {half_width:.2f} s" if half_width else " s")

    def broken(job: Mapping[str, Any]) -> bool:
        return job["slowdown"] is not None and job["slo"] is not None and job["slowdown"] > job["slo"] * (1 + 1e-6)

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "job": lambda job: str(job["id"]),
        "iteration": lambda job: figure(job["iteration_s"], " s"),
        "alone": alone,
        "slowdown": lambda job: figure(job["slowdown"], "x"),
        "SLO": lambda job: figure(job["slo"], "x"),
        "$/h": lambda job: figure(job["usd_per_hour"]),
        "alone $/h": lambda job: figure(job["usd_per_hour_solo"]),
    }
    return table_of(jobs, columns, style=lambda job: "red" if broken(job) else "")
