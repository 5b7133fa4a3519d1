"""Workflow files of hosted CI and hooks of pre-commit run what `make` runs, so that they cannot drift from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.test_package import project

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
NEEDS_ROOT = {"packages"}


def load(path: Path) -> dict[str, Any]:
    """A YAML 1.2 file, in which `on` is a word."""
    data: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    return data


def steps(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow."""
    return [step for job in load(path)["jobs"].values() for step in job["steps"]]


def targets(path: Path) -> list[str]:
    """What a workflow makes, in order."""
    made = []
    for step in steps(path):
        if "run" in step:
            command = re.fullmatch(r"(sudo )?make ([a-z-]+)", step["run"])
            assert command, f"{step['run']}: is no target of make"
            assert bool(command[1]) == (command[2] in NEEDS_ROOT), step["run"]
            made.append(command[2])
    return made


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_of_make_alone(path: Path) -> None:
    made = targets(path)
    assert made
    assert [name for name in made if not re.search(rf"^{name}:", MAKEFILE, re.M)] == []
    assert all(re.fullmatch(r"[\w.-]+/[\w./-]+@v\d[\w.]*", step["uses"]) for step in steps(path) if "uses" in step)


def test_hosted_ci_runs_all_that_ours_runs() -> None:
    ours = set(re.findall(r"make ([a-z-]+)", re.sub(r"(#|echo).*", "", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))))
    hosted = {name for path in WORKFLOWS for name in targets(path)}
    assert ours == {"packages", "test"} and ours <= hosted
    assert {"lint", "dist", "docs", "notebooks", "test-long"} <= hosted


def test_it_runs_on_the_versions_of_python_that_the_distribution_names() -> None:
    named = [line.rpartition(" ")[2] for line in project()["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert project()["requires-python"] == f">={named[0]}"


def test_hooks_of_pre_commit_run_what_make_runs() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert {hook["entry"] for hook in hooks.values()} == {"make format", "make lint", "nbstripout"}
    assert "$(BIN)/nbstripout examples/notebooks/*.ipynb" in MAKEFILE
    assert hooks["nbstripout"]["additional_dependencies"][0] in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_every_target_is_in_the_help_or_part_of_one() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    shown = set(re.findall(r'@echo "make ([a-z-]+) ', MAKEFILE))
    assert {*phony.split()} - shown == {"help", "setup", "lint", "kernels", "clean"}
    assert all(re.search(rf"^{name}:", MAKEFILE, re.M) for name in phony.split())
