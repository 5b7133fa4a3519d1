"""Examples are found by name, in a clone and where RollMux is installed from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollmux_env.files import EXAMPLES
from rollmux_env.published import FOLDER
from runtime.jobs.file import load_cluster
from tests.conftest import Command

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "examples/quickstart.yaml"])
def test_an_example_is_found_by_its_name_where_no_file_has_it(command: Command, tmp_path: Path, name: str) -> None:
    for words in (("validate", name), ("plan", name), ("bench", name, "-p", "solo")):
        status, out, err = command(*words)
        assert (status, err) == (0, "") and out
    Path(tmp_path / "examples").mkdir()
    (tmp_path / name).write_text("version: 1\n")
    assert f"{name}: " in command("validate", name)[2]


def test_a_job_file_is_found_with_what_lies_beside_it(command: Command) -> None:
    assert "jobs[0]" not in command("exec", "attached", "--", "true")[2]
    assert command("exec", "attached", "--", "true")[2] == "rollmux: attached: has 2 jobs; --job says which: first, second\n"
    assert "`rollmux bench` reads it" in command("run", "quickstart")[2]
    status, _, err = command("submit", "own_job", "--at", "nowhere")
    assert status == 2 and "nowhere: no service runs there" in err, "own_job.py is found, or the file would be refused"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("bench", "quikstart"), "did you mean quickstart?"),
        (("plan", "quikstart"), "quikstart: No such file or directory, and no example of that name; did you mean quickstart?"),
        (("plan", "production"), "is a workload; `rollmux workload production --out FILE` writes a scenario file of it"),
        (("run", "two_job.yaml"), "did you mean two_jobs?"),
        (("run", "elsewhere/two_jobs.yaml"), "elsewhere/two_jobs.yaml: No such file or directory"),
    ],
)
def test_a_name_of_nothing_is_one_line_with_what_is_near(command: Command, words: tuple[str, ...], problem: str) -> None:
    status, out, err = command(*words)
    assert (status, out, err.count("\n")) == (2, "", 1) and err.endswith(f"{problem}\n")


def test_examples_are_listed_by_how_they_are_used(command: Command) -> None:
    status, out, err = command("examples")
    found, _, code = out.partition("Code to copy:\n")
    names = [[line.split()[0] for line in part.splitlines() if line.startswith("  ")] for part in (found, code)]
    assert (status, err) == (0, "")
    assert names[0] == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
    assert names[1] == sorted({path.stem for path in EXAMPLES.glob("*.py")} - {*names[0]})
    assert "quickstart        Six post-training jobs that arrive over a working day" in found
    assert all(len(line.split()) > 3 for line in out.splitlines() if line.startswith("  ")), "each says what it is"


def test_an_example_is_copied_with_what_it_names_and_replaces_nothing(command: Command, tmp_path: Path) -> None:
    assert command("examples", "copy", "attached", "mine") == (0, "mine/attached.yaml\nmine/attached_job.py\n", "")
    assert (tmp_path / "mine" / "attached.yaml").read_bytes() == (EXAMPLES / "attached.yaml").read_bytes()
    assert command("examples", "copy", "first_fit")[1] == "first_fit.py\n"
    assert command("plan", "quickstart", "--policy", "first_fit:FirstFit")[0] == 0
    assert command("examples", "copy", "response_ratio")[0] == 0
    status, out, _ = command("plan", "max_nodes", "--policy", "solo,order=response_ratio:ResponseRatio,park=true")
    assert status == 0 and "patient" in out
    (tmp_path / "own_job.py").write_text("mine\n")
    status, _, err = command("examples", "copy", "own_job")
    assert (status, err) == (2, "rollmux: own_job.py: is there already, and nothing was copied\n")
    assert not (tmp_path / "own_job.yaml").exists() and (tmp_path / "own_job.py").read_text() == "mine\n"
    assert "did you mean quickstart?" in command("examples", "copy", "quikstart")[2]
    assert command("examples", "copy", "quickstart", "own_job.py/below")[0] == 2


def test_what_is_installed_has_all_examples_and_published_figures(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    build = ["setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run([sys.executable, *build], cwd=ROOT, capture_output=True, check=True)
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml", ".csv")}
    assert {path.name for path in (tmp_path / "lib" / "rollmux_env" / "examples").iterdir()} == names
    figures = {path.name for path in (tmp_path / "lib" / "rollmux_env" / "published").glob("*.toml")}
    assert figures == {path.name for path in FOLDER.glob("*.toml")}
    installed = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    done = subprocess.run(
        [sys.executable, "-m", "rollmux", "validate", "quickstart"], cwd=tmp_path, env=installed, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("quickstart: 6 jobs"), done.stderr


def test_a_cluster_file_is_found_too() -> None:
    assert load_cluster("one_machine").pools == load_cluster(EXAMPLES / "one_machine.yaml").pools
