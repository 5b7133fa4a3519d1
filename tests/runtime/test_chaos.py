"""A short soak: a run on real Ray whose driver, controller and worker are killed one after the other, by the benchmark itself."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/chaos.py."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("chaos")


@pytest.mark.long
def test_what_is_killed_goes_on_and_nothing_is_lost_or_doubled(
    chaos: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chaos.write_jobs(tmp_path / "jobs.json", random.Random(0), 2, real=False)
    tally = chaos.Tally()
    with chaos.cluster(1, tmp_path) as pools:
        given = [chaos.Strike(0.0, kind, 0.0) for kind in ("driver", "controller", "worker")]
        chaos.play(chaos.Round(pools, tmp_path / "run", tmp_path / "jobs.json"), given, tally)
    assert chaos.report(tally) == [] and not tally.failures
    assert capsys.readouterr().out.endswith("nothing lost or doubled\n")
    assert tally.kills["driver"] == 1 and tally.resumes >= 1
    assert [found.jobs for found in tally.audits] == [{"counter-0": "done", "crew-1": "done"}]
