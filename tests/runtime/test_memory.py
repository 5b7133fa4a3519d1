"""The memory of a machine, and of a container on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.memory import HostMemory, memory

GB = 1_000_000_000


def machine(root: Path, groups: str, **files: object) -> Path:
    """A machine of 64 GB of which 32 are free."""
    kilo = [f"{name}: {round(size * GB / 1024)} kB" for name, size in (("MemTotal", 64), ("MemAvailable", 32))]
    for name, text in {"proc/meminfo": "\n".join(kilo), "proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def rounded(found: HostMemory) -> tuple[float, float, bool]:
    return round(found.total_gb, 3), round(found.free_gb, 3), found.limited


def test_a_container_has_what_it_is_limited_to_and_not_what_the_machine_has(tmp_path: Path) -> None:
    second = {"memory.max": 8 * GB, "memory.current": 3 * GB}
    inner = machine(tmp_path / "2", "0::/", **{f"sys/fs/cgroup/{name}": value for name, value in second.items()})
    assert rounded(memory(inner)) == (8.0, 5.0, True)
    first = {"memory.limit_in_bytes": 8 * GB, "memory.usage_in_bytes": 3 * GB}
    files = {f"sys/fs/cgroup/memory/{name}": value for name, value in first.items()}
    assert rounded(memory(machine(tmp_path / "1", "9:cpu:/\n4:memory:/not/seen/in/here", **files))) == (8.0, 5.0, True)


def test_the_narrowest_of_nested_groups_counts_and_no_limit_is_none(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/memory.max": 4 * GB,
        "sys/fs/cgroup/a/memory.current": GB,
        "sys/fs/cgroup/a/b/memory.max": "max",
        "sys/fs/cgroup/a/b/memory.current": GB,
    }
    assert rounded(memory(machine(tmp_path / "nested", "0::/a/b", **files))) == (4.0, 3.0, True)
    huge = {"sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096, "sys/fs/cgroup/memory/memory.usage_in_bytes": GB}
    assert rounded(memory(machine(tmp_path / "huge", "4:memory:/", **huge))) == (64.0, 32.0, False)
    assert memory(tmp_path / "nothing") == (0.0, 0.0, False)


def test_it_is_known_of_this_machine() -> None:
    here = memory()
    assert here.total_gb >= here.free_gb and here.total_gb == pytest.approx(memory().total_gb)
