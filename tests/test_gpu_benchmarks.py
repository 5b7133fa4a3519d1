"""The benchmarks for GPUs: they say what they find at once, go on without what is missing, and end in time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/gpu_parts.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_parts  # type: ignore[import-not-found,unused-ignore]

    return gpu_parts


def test_a_process_that_measures_ends_with_the_minutes_and_keeps_what_it_has_said(parts: Any, tmp_path: Path) -> None:
    script = tmp_path / "measures.py"
    script.write_text(
        "import sys, time\n"
        "print('a library prints', flush=True)\n"
        'print(\'{"stage": "load", "s": 1.5}\', flush=True)\n'
        "if sys.argv[2] == 'done': print('{\"stage\": \"done\"}', flush=True)\n"
        "if sys.argv[2] == 'hang': time.sleep(600)\n"
        "sys.exit(3)\n"
    )
    for word, minutes, problem in (
        ("done", 1.0, ""),
        ("hang", 1 / 60, "the minutes are over"),
        ("fail", 1.0, "its process ended with status 3; see above"),
    ):
        child = parts.Child(str(script), [word], parts.Budget(minutes))
        assert [figures["s"] for figures in child.figures()] == [1.5]
        child.close()
        assert child.problem == problem


def test_each_part_of_all_leaves_its_output_and_how_it_ended(parts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import gpu_kit  # type: ignore[import-not-found,unused-ignore]

    assert parts and gpu_kit.PARTS.keys() == gpu_kit.REHEARSAL.keys()
    for words, seconds, end in (
        (("-c", "print('a row')"), 60.0, "done after"),
        (("-c", "print('a row', flush=True); raise SystemExit(3)"), 60.0, "ended with status 3 after"),
        (("-c", "import time; print('a row', flush=True); time.sleep(600)"), 2.0, "cut off after"),
    ):
        file = tmp_path / "part.txt"
        assert gpu_kit.run_part(words, file, "GPU: none", seconds).startswith(end)
        first, hardware, *_, row, _, last = file.read_text().splitlines()
        assert (first, hardware, row) == (f"$ python {' '.join(words)}", "GPU: none", "a row") and last.startswith(end)
    assert capfd.readouterr().out.count("a row") == 3


def test_a_part_whose_time_is_over_takes_what_it_has_started_with_it_and_leaves_its_rows(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As jobs start Ray, and tests engines: such a process has the part's output too, and would be waited for."""
    import gpu_kit

    assert parts
    began = tmp_path / "began"

    class Timer(threading.Timer):
        """Its time is over when all have begun."""

        def run(self) -> None:
            while not began.exists() and not self.finished.wait(0.02):
                pass
            self.function(*self.args)

    monkeypatch.setattr(gpu_kit, "Timer", Timer)
    deaf = "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    stays = f"{deaf}; pathlib.Path({str(began)!r}).touch(); time.sleep(600)"
    words = ("-c", f"import subprocess, sys; print('a row'); subprocess.run([sys.executable, '-c', {stays!r}])")
    file = tmp_path / "part.txt"
    assert gpu_kit.run_part(words, file, "GPU: none", 0.0).startswith("cut off after")
    assert file.read_text().splitlines()[3] == "a row"


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="a try without a GPU")
@pytest.mark.parametrize(
    ("name", "options", "stages"),
    [
        ("gpu_switch", ["--engine", "torch"], ["import", "load", "first tokens, cold", "restore with staged weights", "of two in"]),
        ("gpu_training", [], ["import", "load", "first update, cold", "offload", "restore", "update, warm"]),
    ],
)
def test_a_tiny_model_on_the_cpu_goes_through_all_stages(name: str, options: list[str], stages: list[str]) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "no CUDA device: a try on the CPU, whose figures say nothing of GPUs"
    for stage in stages:
        assert any(line.startswith("tiny") and stage in line for line in lines), (stage, done.stdout)
    assert "left out" not in done.stdout and "cut off" not in done.stdout
