"""Presets of configurations can be used, and say what each of their lines means."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.config import preset_names, read_config
from trainers.problems.catalogue import make_problem

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_can_be_used_and_says_what_every_line_of_it_means(name: str) -> None:
    config = read_config(name)
    make_problem(config.environment, name)
    lines = (ROOT / "trainers" / "presets" / f"{name}.yaml").read_text().splitlines()
    settings = [line for line in lines if not line.startswith("#") and line.partition("#")[0].strip().partition(": ")[2]]
    assert settings and all(" # " in line for line in settings)
