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
from rollmux_env.workloads.own import is_own, own_stream


def assuming(suite: Suite, pairs: Iterable[str]) -> Suite:
    """Return the suite with the settings of `--set`: `assumptions=` and a file, `csv=` and a trace, `workload=` and a user's own.

    If the file of assumptions gives actual durations, every phase is replayed. A trace adds cases, and so does a workload, under
    the policies of the suite's first case.

    Args:
        suite: Suite to change.
        pairs: Texts `key=value` of `--set`.

    Raises:
        InputError: If the suite does not support the option, or the file has an invalid value.
    """
    names = dict(parse_pairs("--set", pairs))
    takes = {"assumptions=FILE": bool(suite.assumes), "csv=FILE": bool(suite.of_trace), "workload=module:name": bool(suite.cases)}
    allowed = [form for form, is_taken in takes.items() if is_taken]
    for key in names:
        if key not in [form.partition("=")[0] for form in allowed]:
            known = f"{', '.join(allowed)} alone" if allowed else "nothing"
            raise InputError(f"--set {key}: the suite {suite.name} has its own options, and takes {known}")
    if (csv := names.pop("csv", None)) is not None:
        added = [_of_trace(case, csv) for case in suite.of_trace]
        suite = replace(suite, cases=(*suite.cases, *added))
    own = names.pop("workload", None)
    if names:
        suite = _assuming(suite, names["assumptions"])
    if own is None:
        return suite
    if not is_own(own):
        raise InputError(f"--set workload={own}: must be module:name of a workload of your own")
    return replace(suite, cases=(*suite.cases, replace(suite.cases[0], label=own, stream=partial(own_stream, own))))


def _assuming(suite: Suite, name: str) -> Suite:
    """Return the suite with the assumptions of a name or a file."""
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
