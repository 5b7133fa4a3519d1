"""What policies and environments give on the frozen scenarios is what `benchmarks/freeze_results.py` wrote."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks import load_benchmark

frozen = load_benchmark("freeze_results")


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.long)], ids=["quick", "all"])
def test_results_are_as_frozen(quick: bool) -> None:
    assert frozen.differences(frozen.results(quick)) == []


def test_every_case_and_every_trace_is_frozen() -> None:
    replays, traces = (json.loads((frozen.FOLDER / name).read_text()) for name in ("replays.json", "traces.json"))
    assert {frozen.key(case) for quick in (True, False) for case in frozen.cases(quick)} == set(replays)
    assert set(frozen.TRACES) == set(traces)
