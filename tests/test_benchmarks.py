"""Benchmarks whose figures the pages show, in a small way."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "words", "shown"),
    [("expected_times.py", ("--seeds", "1", "--jobs", "12", "--queue"), ("12 jobs", "drawn durations, priorities"))],
)
def test_a_small_run_prints_its_table(
    script: str, words: tuple[str, ...], shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(part in printed for part in shown), printed
