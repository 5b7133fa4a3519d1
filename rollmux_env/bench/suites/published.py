"""Suites from the files of `rollmux_env.published`: their cases, columns and figures of the paper, and why ours differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from rollmux_env.bench import columns
from rollmux_env.bench.streams import apart, asynchronous, crowd, drifting, sampled, workload
from rollmux_env.bench.suite import Case, Column, Suite
from rollmux_env.errors import InputError
from rollmux_env.published import source
from rollmux_env.replay.failures import Failures
from rollmux_env.validation_errors import not_one_of

T = TypeVar("T")
STREAMS: dict[str, Any] = {one.__name__: one for one in (workload, crowd, apart, sampled, drifting, asynchronous)}
COLUMNS = {column.heading: column for column in vars(columns).values() if isinstance(column, Column)}


class _Run(BaseModel, extra="forbid"):
    """What a case says, or a suite for all its cases that do not say otherwise; options and failures are merged, key by key."""

    stream: tuple[str | int | float, ...] = ()
    """Name of a function of `rollmux_env.bench.streams`, and its first arguments."""
    options: dict[str, bool | int | float | str | tuple[float, float]] = {}
    """Of the stream's workload."""
    policies: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()
    dispatch: str | None = None
    failures: dict[str, int | float | str] = {}


class _Case(_Run):
    label: str


class _Suite(_Run):
    """A suite as its file has it; `paper`: figures by label of a case (several between semicolons), heading and policy."""

    title: str
    source: str
    seeds: int = 5
    frontier: tuple[str, str] | None = None
    least: str = ""
    varied: str = ""
    columns: tuple[str, ...] = ()
    cases: tuple[_Case, ...] = ()
    differences: tuple[str, ...] = ()
    paper: dict[str, dict[str, dict[str, int | float]]] = {}


def published_suite(file: str, name: str, **more: Any) -> Suite:
    """A suite as a source's file has it.

    Args:
        file: of `rollmux_env.published`; `{key}` in a difference is a sentence of its `notes`. more: fields of the suite that are
            code.

    Raises:
        InputError: the file has no such suite, or what is none; one line.
    """
    text, notes = source(file).value(name, _Suite), source(file).value("notes", dict[str, str], {})
    paper = {
        (label, policy, heading): figure
        for labels, headings in text.paper.items()
        for label in labels.split("; ")
        for heading, figures in headings.items()
        for policy, figure in figures.items()
    }
    same = {field: getattr(text, field) for field in ("title", "source", "seeds", "frontier", "least", "varied")}
    return Suite(
        name=name,
        cases=tuple(_case(text, case) for case in text.cases),
        differences=tuple(line.format_map(notes) for line in text.differences),
        **{"columns": tuple(map(_column, text.columns)), "paper": paper, **same, **more},
    )


def _case(suite: _Suite, case: _Case) -> Case:
    said = {name: getattr(one, name) for one in (_Run(), suite, case) for name in one.model_fields_set or _Run.model_fields}
    (stream, *where), options, failures = said["stream"], suite.options | case.options, suite.failures | case.failures
    return Case(
        case.label,
        partial(_named(STREAMS, stream), *where, **options),
        said["policies"],
        said["dispatch"],
        Failures(**failures) if failures else None,  # type: ignore[arg-type]
        said["observed"],
    )


def _column(heading: str) -> Column:
    """A column by its heading; `saving, rollmux = 1` is relative to that policy in place of Solo-D, per seed."""
    what, _, policy = heading.removesuffix(" = 1").rpartition(", ")
    if not heading.endswith(" = 1"):
        return _named(COLUMNS, heading)
    return replace(_named(COLUMNS, what), heading=heading, against=(policy,), digits=3)


def _named(known: Mapping[str, T], name: str) -> T:
    if name not in known:
        raise InputError(f"suite: {not_one_of(name, known)}")
    return known[name]
