"""Suites from the files of `rollmux_env.published`: cases, columns, figures of the paper, and why ours differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rollmux_env.bench import columns
from rollmux_env.bench.streams import apart, asynchronous, crowd, drifting, owned, repriced, sampled, workload
from rollmux_env.bench.suite import Column, Suite, SuiteCase
from rollmux_env.errors import InputError
from rollmux_env.published import source
from rollmux_env.validation_errors import not_one_of

T = TypeVar("T")
STREAMS: dict[str, Any] = {one.__name__: one for one in (workload, crowd, apart, sampled, drifting, asynchronous, owned, repriced)}
_PAPER = dict[str, dict[str, dict[str, int | float]]]
_SHARED = ("stream", "options", "policies", "observed", "dispatch", "failures")
COLUMNS = {column.heading: column for column in vars(columns).values() if isinstance(column, Column)}


def make_published_suite(file: str, name: str, **more: Any) -> Suite:
    """Return a suite as a file describes it.

    Values of the suite hold for all cases that do not override them: `policies`, `observed`, `dispatch`; `stream`, the name of a
    function of `rollmux_env.bench.streams` and its first arguments; and, key by key, `options` of the stream's workload and
    `failures`. `paper` has figures by the label of a case (several labels are separated by semicolons), heading and policy. `{key}`
    in one of `differences` is replaced by a sentence of the file's `notes`.

    Args:
        file: Name of a file of `rollmux_env.published`.
        name: Name of the suite.
        more: Fields of the suite that are code.

    Raises:
        InputError: If the file has no such suite, or the suite is invalid.
    """
    figures = source(file)
    text, notes = figures.value(name, dict[str, Any]).copy(), figures.value("notes", dict[str, str], {})
    shared = {key: text.pop(key) for key in _SHARED if key in text}
    cases, of_trace = (
        [figures.checked(_case(shared, case), SuiteCase, name, key, k) for k, case in enumerate(text.pop(key, ()))]
        for key in ("cases", "of_trace")
    )
    paper = {
        (label, policy, heading): figure
        for labels, headings in figures.checked(text.pop("paper", {}), _PAPER, name, "paper").items()
        for label in labels.split("; ")
        for heading, by_policy in headings.items()
        for policy, figure in by_policy.items()
    }
    differences = [line.format_map(notes) for line in text.pop("differences", ())]
    columns = [_column(heading) for heading in text.pop("columns", ())]
    said = {"name": name, "cases": cases, "of_trace": of_trace, "columns": columns, "paper": paper, "differences": differences}
    return figures.checked(said | text | more, Suite, name)


def _case(shared: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    options, failures = (shared.get(key, {}) | case.get(key, {}) for key in ("options", "failures"))
    said = {"stream": ("",), **shared, **case, "failures": failures or None}
    stream, *where = said["stream"]
    said["stream"] = partial(_named(STREAMS, stream), *where, **{key: _tuple(value) for key, value in options.items()})
    said.pop("options", None)
    return said


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _column(heading: str) -> Column:
    """Return a column by its heading.

    A heading such as `saving, rollmux = 1` makes the column relative to that policy instead of Solo-D, per seed.
    """
    what, _, policy = heading.removesuffix(" = 1").rpartition(", ")
    if not heading.endswith(" = 1"):
        return _named(COLUMNS, heading)
    return replace(_named(COLUMNS, what), heading=heading, against=(policy,), digits=3)


def _named(known: Mapping[str, T], name: str) -> T:
    if name not in known:
        raise InputError(f"suite: {not_one_of(name, known)}")
    return known[name]
