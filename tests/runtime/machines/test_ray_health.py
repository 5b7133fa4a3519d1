"""Leaving Ray."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
from ray._private import worker

from runtime.machines import ray_health


def test_no_process_of_rays_is_left_unwaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray waits a second for one that it has killed; on a busy machine that is too short."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    node = SimpleNamespace(all_processes={"raylet": [SimpleNamespace(process=process)]})

    def shutdown() -> None:
        node.all_processes.clear()
        process.kill()

    monkeypatch.setattr(worker, "_global_node", node)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    ray_health.shut_down()
    assert process.returncode == -9
