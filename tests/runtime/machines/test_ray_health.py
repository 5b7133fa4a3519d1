"""Leaving Ray."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
from ray._private import worker

from runtime.machines import ray_health
from tests.children import Child


def test_no_process_of_rays_is_left_unwaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray waits a second for one that it has killed; on a busy machine that is too short."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    node = SimpleNamespace(all_processes={"raylet": [SimpleNamespace(process=process)]})

    def shutdown() -> None:
        node.all_processes.clear()
        process.kill()

    has_died = True
    monkeypatch.setattr(worker, "_global_node", node)
    monkeypatch.setattr(ray, "is_initialized", lambda: has_died)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:1"))
    monkeypatch.setattr(ray, "shutdown", shutdown)
    monkeypatch.setattr(ray_health, "has_died", False)
    assert ray_health.shut_down() == [process] and process.returncode is None  # somebody else ends them
    has_died = False
    assert ray_health.shut_down() == [] and process.returncode == -9


def test_the_processes_of_a_ray_whose_start_has_failed_are_known() -> None:
    """On a busy machine its raylet may not come in time; Ray raises, and forgets what it has started."""

    class Node:
        def __init__(self) -> None:
            self.all_processes = {"gcs": [SimpleNamespace(process=process)]}
            raise TimeoutError

    with Child(["sleep", "600"]) as process:
        with pytest.raises(TimeoutError) as failed:
            Node()
        assert ray_health.started_in_vain(failed.value) == [process]
        process.kill()
        ray_health.wait_for_ends([process])
        assert process.returncode == -9
