"""With the base installation alone: what needs an extra says which one in one line, and everything else works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rollmux

ROOT = Path(rollmux.__file__).parent
QUICKSTART, TWO_JOBS = (str(ROOT / "examples" / name) for name in ("quickstart.yaml", "two_jobs.yaml"))
HIDING = str(Path(__file__).parent / "hidden_extras")


def base_only(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`rollmux ARGUMENTS` in a folder, where no module of an extra can be imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((HIDING, str(ROOT), str(ROOT / "clients" / "python")))}
    environment.pop("ROLLMUX_SERVICE", None)
    command = [sys.executable, "-m", "rollmux", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("train", ("train", "toy")),
        ("run", ("run", TWO_JOBS)),
        ("run", ("run", TWO_JOBS, "--dry-run", "--out", "here")),
        ("run", ("run", "--resume", "here")),
        ("run", ("serve", "here")),
        ("run", ("submit", TWO_JOBS)),
        ("run", ("status",)),
        ("run", ("status", "--watch")),
        ("run", ("cancel", "echo")),
        ("run", ("logs", "echo", "--follow")),
        ("run", ("profile", "tiny", "--engine", "torch")),
    ],
)
def test_a_command_that_needs_an_extra_names_it_and_writes_nothing(tmp_path: Path, extra: str, arguments: tuple[str, ...]) -> None:
    done = base_only(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.endswith(f"; not installed here: pip install 'rollmux[{extra}]'\n") and done.stderr.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("plan", QUICKSTART, "--policy", "learned:default"),
        ("doctor",),
        ("logs", "--help"),
    ],
)
def test_other_commands_work_without_any_extra(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = base_only(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_a_policy_of_ones_own_that_needs_an_extra_is_told_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n")
    done = base_only(tmp_path, "plan", QUICKSTART, "--policy", "mine:Policy")
    assert done.returncode == 2
    assert (
        "needs the module 'torch', which is not installed: pip install 'rollmux[run]' or pip install 'rollmux[train]'"
        in done.stderr
    )


def test_compare_needs_a_run_and_no_extra(tmp_path: Path) -> None:
    done = base_only(tmp_path, "compare", "nowhere")
    assert (done.returncode, done.stderr) == (2, "rollmux: nowhere/journal.sqlite: there is no journal of a run here\n")
