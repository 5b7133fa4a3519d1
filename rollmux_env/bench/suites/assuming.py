"""Files of a user for a suite: `rollmux bench --suite NAME --set assumptions=FILE`, and the trace of `--set csv=FILE`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from rollmux_env.bench.suite import Suite, SuiteCase
from rollmux_env.bench.suites.fabric import fabric_cases, fabric_rows
from rollmux_env.command_options import parse_pairs
from rollmux_env.errors import InputError
from rollmux_env.keys.assumptions import Assumptions, find_assumptions


def assuming(suite: Suite, pairs: Iterable[str]) -> Suite:
    """Return the suite with the settings of `--set`: `assumptions=` and a name or a file, or `csv=` and the file of a trace.

    If the file of assumptions gives actual durations, every phase is replayed. A trace adds cases.

    Args:
        suite: Suite to change.
        pairs: Texts `key=value` of `--set`.

    Raises:
        InputError: If the suite does not support the option, or the file has an invalid value.
    """
    names = dict(parse_pairs("--set", pairs))
    takes = [*(["assumptions"] if suite.assumes else []), *(["csv"] if suite.of_trace else [])]
    for key in names:
        if key not in takes:
            allowed = f"{takes[0]}=FILE alone" if takes else "nothing"
            raise InputError(f"--set {key}: the suite {suite.name} has its own options, and takes {allowed}")
    if (csv := names.pop("csv", None)) is not None:
        added = [_of_trace(case, csv) for case in suite.of_trace]
        suite = replace(suite, cases=(*suite.cases, *added))
    if not names:
        return suite
    name = names["assumptions"]
    assumptions, folder = find_assumptions(name)
    said = replace(suite, differences=(f"With the assumptions {name}; the notes on ours are left out.",))
    if "fabric" in suite.assumes:
        return replace(said, measure=partial(fabric_rows, fabric_cases(assumptions.fabric, folder)))
    return replace(said, cases=tuple(_case(case, name, assumptions) for case in suite.cases))


def _of_trace(case: SuiteCase, csv: str) -> SuiteCase:
    stream: Any = case.stream
    return replace(case, stream=partial(stream, csv=csv))


def _case(case: SuiteCase, name: str, assumptions: Assumptions) -> SuiteCase:
    failures = case.failures and replace(case.failures, **_rates(case, assumptions))
    dispatch = case.dispatch or (None if assumptions.durations is None else "round-robin")
    stream: Any = case.stream
    return replace(case, stream=partial(stream, assumptions=name), failures=failures, dispatch=dispatch)


def _rates(case: SuiteCase, assumptions: Assumptions) -> dict[str, Any]:
    """Return the failure rates of the file. A case without failures stays without."""
    rates = assumptions.failures.model_dump(exclude_unset=True)
    return rates if case.failures is not None and case.failures.dies else {}
