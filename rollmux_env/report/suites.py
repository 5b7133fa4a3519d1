"""The result of a suite: a table with the paper's figures beside ours, JSON, CSV, and plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.bench.intervals import Mean, interval_note
from rollmux_env.bench.suite import Column, Suite, SuiteRow, best_cases
from rollmux_env.report.tables import heading, make_table


def suite_table(suite: Suite, rows: Sequence[SuiteRow], seeds: Sequence[int], quick: bool) -> RenderableType:
    """One line per case and policy; the paper's figure in brackets."""
    over = f"; {len(seeds)} seeds" if len(seeds) > 1 else "".join(f"; seed {seed}" for seed in seeds)
    title = f"{suite.title} ({suite.source}){over}{', quick: shorter streams' if quick else ''}"
    table = make_table("case", "policy", *(column.heading for column in suite.columns), left=2)
    last = ""
    for row in rows:
        if last and row.case != last:
            table.add_section()
        cells = [
            _cell(column, row.figures[column.heading], suite.paper.get((row.case, row.policy, column.heading)))
            for column in suite.columns
        ]
        table.add_row(row.case if row.case != last else "", row.policy, *cells)
        last = row.case
    brackets = "[the paper's figure]" if suite.paper else ""
    notes = [note] if (note := (brackets + interval_note(len(seeds))).removeprefix("; ")) else []
    if suite.least:
        column = next(column for column in suite.columns if column.heading == suite.least)
        least = {
            policy: (row.case, _cell(column, row.figures[suite.least], None)) for policy, row in best_cases(suite, rows).items()
        }
        notes += [f"least {suite.least}: " + "; ".join(f"{policy} {figure}, {case}" for policy, (case, figure) in least.items())]
    label = "Why it differs" if suite.paper else "Note"
    parts = [Text(note, style="dim") for note in notes] + [Text(f"{label}: {line}") for line in suite.differences]
    return Group(heading(title), table, *parts)


def _cell(column: Column, ours: Mean | None, papers: float | None) -> str:
    if ours is None:
        return ""
    half_width = f" ± {ours.half_width:,.{column.digits}f}" if ours.half_width else ""
    text = f"{ours.mean:,.{column.digits}f}{column.style}{half_width}"
    return text if papers is None else f"{text} [{papers:,.{0 if papers >= 1000 else column.digits}f}]"


def suite_report(suite: Suite, rows: Sequence[SuiteRow], seeds: Sequence[int], quick: bool) -> dict[str, Any]:
    """The table as plain values."""
    return {
        "suite": suite.name,
        "source": suite.source,
        "seeds": list(seeds),
        "quick": quick,
        "rows": [
            {
                "case": row.case,
                "policy": row.policy,
                "figures": {
                    heading: None if mean is None else {"mean": mean.mean, "half_width": mean.half_width}
                    for heading, mean in row.figures.items()
                },
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


def suite_csv(suite: Suite, rows: Sequence[SuiteRow]) -> str:
    """One line per figure: case, policy, figure, mean, half-width, the paper's."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("case", "policy", "figure", "mean", "half_width", "paper"))
    for row in rows:
        for figure, mean in row.figures.items():
            if mean is not None:
                paper = suite.paper.get((row.case, row.policy, figure), "")
                half_width = "" if mean.half_width is None else mean.half_width
                writer.writerow((row.case, row.policy, figure, mean.mean, half_width, paper))
    return text.getvalue()


def suite_plots(suite: Suite, rows: Sequence[SuiteRow]) -> dict[str, bytes]:
    """By file name: bars of every ratio and share with the paper's figures as marks; of a frontier, its curve."""
    from rollmux_env.report.plots import frontier_plot, suite_bars

    plots = {}
    for column in suite.columns:
        shown = [(row, mean) for row in rows if (mean := row.figures[column.heading]) is not None]
        if shown:
            name = "".join(letter if letter.isalnum() else "_" for letter in column.heading).strip("_")
            plots[f"{suite.name}_{name}.png"] = suite_bars(suite, column, shown)
    if suite.frontier:
        plots[f"{suite.name}_frontier.png"] = frontier_plot(suite, *suite.frontier, rows)
    return plots
