from __future__ import annotations

from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Workload
from rollmux_env.kernel.compiled import compiled, compiling_notice, drop_stale, twin
from rollmux_env.kernel.dispatch import turns
from rollmux_env.kernel.dispatch.rows import GROUP, MEMBER, NOTHING, ROLLOUT, WAITS, GroupRow, MemberRow, record


def test_code_that_cannot_be_kept_on_disk_runs_all_the_same() -> None:
    """Of a function without a file, as of one in a folder that nobody may write, numba can keep nothing."""
    made: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", made)
    double = compiled(made["double"])
    assert double(21) == 42
    said = compiling_notice(double, "about 15 s")
    assert said is not None and "for this process alone (about 15 s)" in said and "NUMBA_CACHE_DIR" in said


def test_what_is_said_of_compiling(tmp_path: Path) -> None:
    def function() -> None: ...

    function.__dict__["_cache"] = SimpleNamespace(cache_path=str(tmp_path))
    assert compiling_notice(function, "about 15 s") == "compiling the kernel, once (about 15 s)"
    (tmp_path / "test_compiled.function-1.py311.1.nbc").write_text("code")
    assert compiling_notice(function, "about 15 s") is None


def test_compiled_code_of_other_sources_is_forgotten(tmp_path: Path) -> None:
    """Code compiled of `a.py` holds what it calls in `b.py`: an edit there must not leave it in use."""
    (tmp_path / "a.py").write_text("from b import f")
    (tmp_path / "b.py").write_text("def f(): return 1")
    cache = tmp_path / "__pycache__"
    drop_stale(tmp_path, tmp_path / "__pycache__")
    (cache / "a.caller-1.py311.nbi").write_text("index")
    (cache / "a.caller-1.py311.1.nbc").write_text("code")
    (cache / "a.cpython-311.pyc").write_text("bytecode")
    drop_stale(tmp_path, tmp_path / "__pycache__")
    assert len(list(cache.glob("*.nb*"))) == 2, "the sources are as they were"
    (tmp_path / "b.py").write_text("def f(): return 2")
    drop_stale(tmp_path, tmp_path / "__pycache__")
    assert list(cache.glob("*.nb*")) == []
    assert (cache / "a.cpython-311.pyc").exists()


def test_compiled_code_is_also_forgotten_where_numba_keeps_it_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under an installation that cannot be written numba keeps it in the user's cache, or in a folder that the user names."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "cache"))
    made: dict[str, Any] = {}
    (tmp_path / "a.py").write_text("def double(x): return 2 * x")
    exec(compile((tmp_path / "a.py").read_text(), tmp_path / "a.py", "exec"), made)
    double: Any = compiled(made["double"])
    code = Path(double.stats.cache_path) / "a.double-1.py311.1.nbc"
    code.write_text("code")
    monkeypatch.setattr("rollmux_env.kernel.compiled._checked", set())  # as in the next process
    compiled(made["double"])
    assert code.is_file(), "the sources are as they were"
    (tmp_path / "b.py").write_text("def f(): return 2")
    monkeypatch.setattr("rollmux_env.kernel.compiled._checked", set())
    compiled(made["double"])
    assert not code.exists()


def test_a_folder_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "__pycache__").write_text("a file in its place")
    drop_stale(tmp_path, tmp_path / "__pycache__")
    assert (tmp_path / "__pycache__").read_text() == "a file in its place"


def test_functions_that_count_no_references_lose_no_memory() -> None:
    env = PlacementVectorEnv(2, Workload("mixed", jobs=12), moves=True)
    env.reset(seed=0)
    _nrt_python.memsys_enable_stats()
    before = rtsys.get_allocation_stats()
    for _ in range(100):
        last = env.action_masks().shape[1] - 1 - np.argmax(env.action_masks()[:, ::-1], axis=1)
        env.step(last)
    after = rtsys.get_allocation_stats()
    _nrt_python.memsys_disable_stats()
    assert after.alloc > before.alloc, "arrays were made"
    assert after.alloc - after.free == before.alloc - before.free
    assert after.mi_alloc - after.mi_free == before.mi_alloc - before.mi_free


def test_one_text_runs_over_objects_and_compiled_over_records() -> None:
    """What a rule calls is compiled with it; the rule itself stays plain."""
    own_turn: Any = twin(turns.round_robin)
    assert isinstance(turns.round_robin, FunctionType) and not isinstance(own_turn, FunctionType)
    rows, group = [MemberRow(), MemberRow()], GroupRow()
    group.n, group.waiting = 2, 1
    for k, row in enumerate(rows):
        row.nodes, row.order = 2, k
    rows[1].waits_rollout, rows[0].turn_rollout = WAITS, 1  # the first one had its turn
    members, groups = np.array([record(row) for row in rows], dtype=MEMBER), np.array([record(group)], dtype=GROUP)
    assert turns.round_robin(group, rows, True, False) == own_turn(groups[0], members, True, False) == (1, ROLLOUT)
    group.busy = groups["busy"][0] = 2
    assert turns.round_robin(group, rows, True, False) == own_turn(groups[0], members, True, False) == (0, NOTHING)
