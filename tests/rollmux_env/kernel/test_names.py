"""Names that were given up do not come back: neither as modules nor as words of the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import rollmux_env

MODULES = [
    *(
        f"kernel.{name}"
        for name in ("looks", "moves", "worth", "horizons", "regroupings", "exchanges", "mergers", "joining", "rows")
    ),
    *(f"kernel.{name}" for name in ("stream", "events", "steps", "choices")),
    *(f"envs.{name}" for name in ("scalar", "generator", "reward", "viewer", "observation", "stream")),
]
WORDS = re.compile(r"\b(uncounted|pass_on|JobTable|GroupTable|move_space|candidate_room)\b")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_has_another_name_is_gone(name: str) -> None:
    assert importlib.util.find_spec(f"rollmux_env.{name}") is None


def test_words_that_were_replaced_are_gone() -> None:
    package = Path(rollmux_env.__file__).parent
    assert [path.name for path in package.rglob("*.py") if WORDS.search(path.read_text())] == []
