"""The frozen scenario files are what they were, and what the generators give."""

from __future__ import annotations

import shutil
from pathlib import Path

from rollmux_env.scenario import load_scenario
from tests.benchmarks import load_benchmark

freeze = load_benchmark("freeze")


def test_files_have_their_hashes_and_the_generators_bytes() -> None:
    assert freeze.problems() == []
    assert {path.name for path in freeze.FOLDER.iterdir()} == {*freeze.FROZEN, freeze.SUMS}


def test_files_load() -> None:
    sizes = {name: len(load_scenario(freeze.FOLDER / name).jobs) for name in freeze.FROZEN}
    assert set(sizes.values()) == {200, 300}


def test_a_changed_and_a_missing_file_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "scenarios"
    shutil.copytree(freeze.FOLDER, folder)
    changed, missing = sorted(freeze.FROZEN)[:2]
    (folder / changed).write_text((folder / changed).read_text().replace("1", "2", 1))
    (folder / missing).unlink()
    found = freeze.problems(folder)
    assert f"{folder / changed}: does not have the hash in SHA256SUMS" in found
    assert f"{folder / missing}: is missing" in found
    assert all(changed in line or missing in line for line in found)
