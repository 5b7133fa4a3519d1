"""The result of a suite: a table with the paper's figures beside ours, JSON, CSV, and plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.bench.intervals import Mean, interval_note
from rollmux_env.bench.suite import Column, Suite, SuiteRow, best_cases
from rollmux_env.files import write_whole
from rollmux_env.report.folder import results_page
from rollmux_env.report.results import to_csv, to_json
from rollmux_env.report.styles import Kind
from rollmux_env.report.tables import heading, make_table, percentage

_ONE = 1 - 1e-9


def suite_table(suite: Suite, rows: Sequence[SuiteRow], seeds: Sequence[int], quick: bool) -> RenderableType:
    """Return a table with one line per case and policy, and the paper's figures in brackets.

    Args:
        suite: Suite with its columns and the paper's figures.
        rows: Results, grouped by case.
        seeds: Seeds over which the results are averaged.
        quick: Whether the suite ran with shorter streams.
    """
    over = f"; {len(seeds)} seeds" if len(seeds) > 1 else "".join(f"; seed {seed}" for seed in seeds)
    title = f"{suite.title} ({suite.source}){over}{', quick: shorter streams' if quick else ''}"
    table = make_table("case", "policy", *(column.heading for column in suite.columns), left=2)
    for case, own in groupby(rows, key=lambda row: row.case):
        table.add_section()
        for k, row in enumerate(own):
            papers = (suite.paper.get((case, row.policy, column.heading)) for column in suite.columns)
            cells = (_cell(column, row.figures[column.heading], paper) for column, paper in zip(suite.columns, papers, strict=True))
            table.add_row("" if k else case, row.policy, *cells)
    notes = (Text(note, style="dim") for note in _notes(suite, rows, len(seeds)))
    return Group(heading(title), table, *notes, *remarks(suite))


def remarks(suite: Suite) -> list[Text]:
    """Return the last lines below a suite's table, which do not depend on its results."""
    label = "Why it differs" if suite.paper else "Note"
    return [Text(f"{label}: {line}") for line in suite.differences]


def _notes(suite: Suite, rows: Sequence[SuiteRow], seeds: int) -> Iterator[str]:
    """Yield the notes below the table."""
    if note := (("[the paper's figure]" if suite.paper else "") + interval_note(seeds)).removeprefix("; "):
        yield note
    for column in suite.columns:
        figures = (row.figures[column.heading] for row in rows)
        if column.heading.endswith("/ optimal") and any(mean is not None and mean.mean < _ONE for mean in figures):
            yield f"{column.heading} below 1: it breaks SLOs, or the least at each event is not the least over the stream"
    if suite.least:
        column = next(column for column in suite.columns if column.heading == suite.least)
        best = best_cases(suite, rows).items()
        least = (f"{policy} {_cell(column, row.figures[suite.least], None)}, {row.case}" for policy, row in best)
        yield f"least {suite.least}: " + "; ".join(least)


def _cell(column: Column, ours: Mean | None, papers: float | None) -> str:
    if ours is None:
        return ""
    half_width = f" ± {ours.half_width:,.{column.digits}f}" if ours.half_width else ""
    shown = percentage(ours.mean, column.digits) if column.style == "%" else f"{ours.mean:,.{column.digits}f}{column.style}"
    text = f"{shown}{half_width}"
    return text if papers is None else f"{text} [{papers:,.{0 if papers >= 1000 else column.digits}f}]"


def suite_report(suite: Suite, rows: Sequence[SuiteRow], seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """Return the table as plain values."""
    return {
        "suite": suite.name,
        "source": suite.source,
        "seeds": list(seeds),
        "quick": quick,
        "rows": [
            {
                "case": row.case,
                "policy": row.policy,
                "figures": {heading: mean and asdict(mean) for heading, mean in row.figures.items()},
                "paper": {
                    heading: suite.paper[row.case, row.policy, heading]
                    for heading in row.figures
                    if (row.case, row.policy, heading) in suite.paper
                },
            }
            for row in rows
        ],
        "differences": list(suite.differences),
    }


def suite_csv(suite: Suite, rows: Sequence[SuiteRow], seeds: Sequence[int], quick: bool) -> str:
    """Return one line per figure as CSV: case, policy, figure, mean, half-width, the paper's, and how ours was measured.

    Args:
        suite: Suite with the paper's figures.
        rows: Results, grouped by case.
        seeds: Seeds over which the results are averaged.
        quick: Whether the suite ran with shorter streams.
    """
    how = len(seeds), str(quick).lower()
    cells = (
        (row.case, row.policy, figure, mean.mean, mean.half_width, suite.paper.get((row.case, row.policy, figure)), *how)
        for row in rows
        for figure, mean in row.figures.items()
        if mean is not None
    )
    return to_csv(("case", "policy", "figure", "mean", "half_width", "paper", "seeds", "quick"), cells)


def write_suite(
    folder: Path,
    suite: Suite,
    rows: Sequence[SuiteRow],
    report: Mapping[str, Any],
    table: RenderableType,
    points: Sequence[Any],
    kind: Kind = "png",
) -> None:
    """Write a suite's report, figures and table, and its plots if it has random draws.

    Args:
        folder: Existing folder.
        suite: Suite.
        rows: Results, grouped by case.
        report: Report as plain values.
        table: Table that a terminal shows.
        points: Points of the suite's sweep; may be empty.
        kind: File format of the plots.

    Raises:
        InputError: If a file cannot be written.
    """
    from rollmux_env.report.suite_plots import sweep_plot

    write_whole(folder / f"{suite.name}.json", to_json(report))
    write_whole(folder / f"{suite.name}.csv", suite_csv(suite, rows, report["seeds"], report["quick"]))
    suite = replace(suite, title=f"{suite.title}, quick: shorter streams") if report["quick"] else suite
    pictures = suite_plots(suite, rows, kind) if suite.seeds else {}
    for file, data in pictures.items():
        write_whole(folder / file, data)
    if points:
        write_whole(folder / f"{suite.name}_sweep.{kind}", sweep_plot(points, kind))
    write_whole(folder / f"{suite.name}.html", results_page(suite.title, table, pictures))


def suite_plots(suite: Suite, rows: Sequence[SuiteRow], kind: Kind = "png") -> dict[str, bytes]:
    """Return the plots of a suite by file name.

    There is a bar chart of every column, with the paper's figures as marks, the lines of a series and the curve of a frontier.
    """
    from rollmux_env.report.suite_plots import frontier_plot, series_plot, suite_bars

    plots = {}
    for column in suite.columns:
        shown = [(row, mean) for row in rows if (mean := row.figures[column.heading]) is not None]
        if shown:
            name = "".join(letter if letter.isalnum() else "_" for letter in column.heading).strip("_")
            plots[f"{suite.name}_{name}.{kind}"] = suite_bars(suite, column, shown, kind)
    if suite.series:
        plots[f"{suite.name}_by_load.{kind}"] = series_plot(suite, rows, kind)
    if suite.frontier:
        plots[f"{suite.name}_frontier.{kind}"] = frontier_plot(suite, *suite.frontier, rows, kind)
    return plots
