"""The tables of `rollmux whatif`: figures and jobs before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rollmux_env.report.tables import figure, heading, table_of

_MAX_TABLE_ROWS = 40  # largest number of jobs in the table
_UNKNOWN, _ABSENT = "?", "-"  # cells of a figure that is not known, and of a job that is not there
_FIGURES = {"mean completion h": "mean_completion_h", "mean wait h": "mean_wait_h", "$": "usd"}
_HOURS_AND_USD = {"completion h": "completion_h", "wait h": "wait_h", "$": "usd"}

_Pair = tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]
"""A job's identifier, and its forecast before and after; None where it is not there."""


def whatif_tables(report: Mapping[str, Any]) -> list[RenderableType]:
    """Return the tables of an answer.

    Args:
        report: Answer as in `rollmux_env.replay.whatif.WhatIf.as_dict`.
    """
    before, after = ({job["job"]: job for job in report[side]["jobs"]} for side in ("before", "after"))
    pairs: list[_Pair] = [(job_id, before.get(job_id), after.get(job_id)) for job_id in dict.fromkeys((*before, *after))]
    differing = sorted((pair for pair in pairs if _cells(pair[1]) != _cells(pair[2])), key=_gain)
    parts: list[RenderableType] = [heading(f"{report['target']}: {'; '.join(report['changes']) or 'as it is'}"), _totals(report)]
    if differing:
        parts += [heading("Jobs, before → after"), _jobs_table(differing[:_MAX_TABLE_ROWS])]
    notes = [f"assumed: {'; '.join(report['assumed'])}"]
    if len(differing) > _MAX_TABLE_ROWS:
        notes.append(f"{len(differing) - _MAX_TABLE_ROWS} more jobs differ: --format json lists them all")
    if same := len(pairs) - len(differing):
        notes.append(f"no difference: {same} of {len(pairs)} jobs")
    return [*parts, Text("\n".join(notes), style="dim")]


def _totals(report: Mapping[str, Any]) -> Table:
    """Return the figures of all jobs, with one line before and one after."""
    sides = [(name, report[name]["policy"], report[name]["figures"]) for name in ("before", "after")]
    columns: dict[str, Callable[[Any], str]] = {"": lambda side: side[0], "policy": lambda side: side[1]}
    columns |= {name: lambda side, key=key: figure(side[2][key], form=",.2f") for name, key in _FIGURES.items()}  # type: ignore[misc]
    columns["SLO kept"] = lambda side: f"{side[2]['slo_kept']} of {side[2]['jobs'] - side[2]['unknown']}"
    if any(side[2]["unknown"] for side in sides):
        columns["end unknown"] = lambda side: str(side[2]["unknown"])
    return table_of(sides, columns, left=2)


def _jobs_table(pairs: list[_Pair]) -> Table:
    columns: dict[str, Callable[[_Pair], str]] = {"job": lambda pair: pair[0]}
    for number, name in enumerate((*_HOURS_AND_USD, "slowdown", "SLO")):
        columns[name] = lambda pair, number=number: _both(_cells(pair[1])[number], _cells(pair[2])[number])  # type: ignore[misc]
    return table_of(pairs, columns)


def _cells(job: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the figures of a job as text."""
    if job is None:
        return (_ABSENT,) * (len(_HOURS_AND_USD) + 2)
    numbers = (figure(job[key], form=",.2f") or _UNKNOWN for key in _HOURS_AND_USD.values())
    outcome = {True: "kept", False: "broken", None: _UNKNOWN}[job["slo_kept"]]
    return (*numbers, figure(job["slowdown"], "x") or _UNKNOWN, outcome)


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _gain(pair: _Pair) -> float:
    """Return the change of a job's completion in hours; jobs of which one side is missing come last."""
    before, after = (None if job is None else job["completion_h"] for job in pair[1:])
    return float("inf") if before is None or after is None else float(after - before)
