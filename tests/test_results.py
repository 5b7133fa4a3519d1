"""What policies and environments give on the frozen scenarios is what `benchmarks/freeze_results.py` wrote."""

from __future__ import annotations

import json
from types import ModuleType


def test_quick_results_are_as_frozen(frozen: ModuleType) -> None:
    assert frozen.differences(frozen.results(quick=True)) == []


def test_every_case_and_every_trace_is_frozen(frozen: ModuleType) -> None:
    replays, traces = (json.loads((frozen.FOLDER / name).read_text()) for name in ("replays.json", "traces.json"))
    assert {frozen.key(case) for quick in (True, False) for case in frozen.cases(quick)} == set(replays)
    assert set(frozen.TRACES) == set(traces)
