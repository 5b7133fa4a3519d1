"""The benchmarks for GPUs: they say what they find at once, go on without what is missing, and end in time."""

from __future__ import annotations

import json
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
        child = parts.Child(str(script), [word], parts.TimeBudget(minutes))
        assert [figures["s"] for figures in child.figures()] == [1.5]
        child.close()
        assert child.problem == problem


@pytest.fixture
def kit(parts: Any) -> Any:
    """benchmarks/gpu_kit.py."""
    import gpu_kit  # type: ignore[import-not-found,unused-ignore]

    return gpu_kit


def test_each_part_leaves_its_result_and_ends_no_other(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done = "import json, sys; json.dump({'gain': 1.2}, open(sys.argv[1], 'w')); print('a row')"
    words = {
        "jobs": ("-c", "print('a row', flush=True); raise SystemExit(3)"),
        "tests": ("-c", "import time; print('a row', flush=True)\ntry: time.sleep(600)\nexcept KeyboardInterrupt: pass"),
        "http": ("-c", done, "FIGURES"),
    }
    shares = {"jobs": 0.5, "tests": 0.02, "http": 0.48}  # a busy machine has long ended the other two
    monkeypatch.setattr(kit, "PARTS", {name: kit.KitPart(("-c", "raise"), one, shares[name]) for name, one in words.items()})
    monkeypatch.setattr(sys, "argv", ["gpu_kit.py", "--out", str(tmp_path), "--tiny", "--minutes", "2"])
    monkeypatch.setenv("ROLLMUX_CACHE", "")  # which the kit sets
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kit.main()
    results = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in words}
    assert [one["end"] for one in results.values()] == ["ended with status 3", "cut off", "done"]
    assert [one["figures"] for one in results.values()] == [None, None, {"gain": 1.2}]
    for name, one in results.items():
        assert one["last_line"] == (tmp_path / f"{name}.txt").read_text().strip() == "a row"
        assert one["command"].startswith("python -c") and one["versions"]["torch"] and one["cores"]
    assert results["jobs"]["limit_s"] <= 60 < results["http"]["limit_s"]  # what a part leaves goes to those after it
    *_, head, jobs, _, http = capfd.readouterr().out.splitlines()
    assert head.split()[:2] == ["part", "end"] and jobs.startswith("jobs    ended with status 3") and http.endswith("a row")


def test_parts_go_through_the_same_in_a_rehearsal(kit: Any) -> None:
    assert [*kit.PARTS] == ["jobs", "tests", "forced", "http"] and sum(part.share for part in kit.PARTS.values()) == 1
    for part in kit.PARTS.values():
        assert [word for word in part.words if word in part.tiny] == list(part.tiny[:-1])  # but for the model, or the device


def test_a_part_whose_time_is_over_takes_what_it_has_started_with_it_and_leaves_its_rows(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As jobs start Ray, and tests engines: such a process has the part's output too, and would be waited for."""
    began = tmp_path / "began"

    class Timer(threading.Timer):
        """Its time is over when all have begun."""

        def run(self) -> None:
            while not began.exists() and not self.finished.wait(0.02):
                pass
            self.function(*self.args)

    monkeypatch.setattr(kit, "Timer", Timer)
    deaf = "import pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    stays = f"{deaf}; pathlib.Path({str(began)!r}).touch(); time.sleep(600)"
    words = ("-c", f"import subprocess, sys; print('a row'); subprocess.run([sys.executable, '-c', {stays!r}])")
    file = tmp_path / "part.txt"
    assert kit.run_part(words, file, 0.0)[0] == "cut off"
    assert file.read_text().startswith("a row\n")


def test_what_is_not_on_a_machine_is_packed_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_pack  # type: ignore[import-not-found,unused-ignore]

    there = gpu_pack.names_in("Package    Version\n---------- -------\ntorch      2.11.0\nTyping_Extensions==4\n\n")
    assert there == {"torch", "typing-extensions"}
    needs = {
        "rollmux": ["numpy", 'ray; extra == "run"', 'vllm; extra == "vllm"', 'tomli; python_version < "3.11"', "torch"],
        "ray": ["jsonschema", "numpy"],
        "jsonschema": ["typing_extensions"],
        "torch": ["nvidia-cublas"],
    }
    assert gpu_pack.missing(["rollmux[run]"], there, "3.12", needs.get) == {"rollmux", "numpy", "ray", "jsonschema"}
    assert {"benchmarks/gpu_kit.py", "tests/gpu/test_engines.py", "clients/python/rollmux_client.py"} <= {*gpu_pack.tree()}


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
