from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.kernel import compiled as door
from rollmux_env.kernel import linking

SOURCE = """
from rollmux_env.kernel.compiled import compiled

@compiled(arrays=False)
def product(x, y):
    if y == 0.0:
        raise ValueError("zero")
    return x * y

@compiled(arrays=False)
def step(x, y):
    return product(x, y) + 0.1
"""


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_callee_has_no_machine_code_and_its_caller_runs_it_also_from_the_disk(tmp_path: Path) -> None:
    assert linking.is_tested(), "compare the parts of numba that kernel/linking.py uses with this version, then add it to _TESTED"
    (tmp_path / "steps.py").write_text(SOURCE)
    first = load(tmp_path / "steps.py")
    assert first.step(0.7, 1e-9) == first.step.py_func(0.7, 1e-9) == 0.7 * 1e-9 + 0.1
    (callee,) = first.product.get_overload.__self__.overloads.values()
    assert list(callee.library.get_defined_functions()) == []
    again = load(tmp_path / "steps.py")
    assert again.step(0.7, 1e-9) == 0.7 * 1e-9 + 0.1
    assert again.step.stats.cache_hits.total() == 1
    with pytest.raises(ValueError, match="zero"):
        again.step(0.7, 0.0)


def test_an_unknown_version_of_numba_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: int) -> int:
        return x

    monkeypatch.setattr(door, "is_tested", lambda: False)
    plain: Any = door.compiled(function)
    assert plain.get_overload.__self__ is plain
