"""`examples/evolve`: what a search calls, without one."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "evolve"
INITIAL = FOLDER / "initial_program.py"


@pytest.fixture
def evaluator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evaluator", FOLDER / "evaluator.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_initial_program_is_scored(evaluator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in its own process, on one stream: a score is a figure of a policy that keeps every SLO and moves nothing."""
    shutil.copy(INITIAL, tmp_path / "evolved_program.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(evaluator, "STREAMS", [("mixed", 100, False)])
    evaluator.measure("result.json")
    sys.modules.pop("evolved_program")
    figures = json.loads((tmp_path / "result.json").read_text())
    assert -100 < figures["combined_score"] < 100 and figures["combined_score"] != 0
    assert (figures["slo_kept"], figures["moves"]) == (1.0, 0.0) and figures["usd_per_work_hour"] > 0
    text = INITIAL.read_text()
    assert text.count("# EVOLVE-BLOCK-START") == text.count("# EVOLVE-BLOCK-END") == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("return bytearray(8 << 30)[0]", "MemoryError"),
        ("raise SystemExit", "SystemExit"),
        ("__import__('os')._exit(0)", "it left no figures"),
    ],
)
def test_a_program_that_fails_scores_below_all_others(evaluator: ModuleType, tmp_path: Path, line: str, problem: str) -> None:
    program = tmp_path / "some-program.py"
    program.write_text(INITIAL.read_text().replace("return -float(table.usd_per_hour[row])", line))
    result = evaluator.evaluate(str(program))
    assert result["combined_score"] == evaluator.FAILED and problem in result["error"] and "\n" not in result["error"]


def test_a_program_that_never_ends_is_stopped(evaluator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "TIME_S", 0.2)
    assert evaluator.evaluate(str(INITIAL)) == {"combined_score": evaluator.FAILED, "error": "it took longer than 0.2 s"}


@pytest.mark.parametrize(("score", "usd"), [(4239.6, 10.0), (50.0, -1.0), (float("nan"), 10.0)])
def test_figures_that_cannot_be_are_no_score(evaluator: ModuleType, score: float, usd: float) -> None:
    assert evaluator.can_be({"combined_score": 50.0, "usd_per_work_hour": 10.0})
    assert not evaluator.can_be({"combined_score": score, "usd_per_work_hour": usd})
    assert not evaluator.can_be({}) and not evaluator.can_be([])
