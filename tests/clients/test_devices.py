"""What a job keeps on its GPUs, as a stand-in for NVML tells it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import rollmux_client
import rollmux_devices

from tests.children import Child

GB = 10**9


@pytest.fixture
def child() -> Iterator[int]:
    """A process of this one's, in a session of its own, as the workers of Ray are."""
    with Child([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process.pid
        process.communicate(b"\n")


def nvml(monkeypatch: pytest.MonkeyPatch, running: dict[int, dict[int, int | None]]) -> None:
    """GPUs by number, and the bytes of their processes."""
    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda gpu: gpu,
        "nvmlDeviceGetHandleByUUID": {"GPU-aa": 4, "GPU-bb": 5}.__getitem__,
        "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in running[gpu].items()
        ],
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**functions))


def attached(**gpus: list[int]) -> rollmux_client.Job:
    job = rollmux_client.Job(None, "one")
    job.lease = "lease"
    job.nodes = {pool: [{"name": pool, "host": socket.gethostname(), "gpus": own}] for pool, own in gpus.items()}
    return job


def test_all_processes_of_the_job_count_on_the_gpu_where_they_have_most(monkeypatch: pytest.MonkeyPatch, child: int) -> None:
    nvml(monkeypatch, {0: {os.getpid(): GB, child: 2 * GB, 1: 40 * GB}, 1: {child: 4 * GB, os.getpid(): None}, 2: {child: 9 * GB}})
    job = attached(rollout=[0, 1], training=[2])
    for phase, kept_gb in {"rollout": 4.0, "training": 9.0, "init": 9.0, "sync": 9.0}.items():
        turn = job.phase(phase)
        rollmux_devices.report(job, turn)
        assert turn.device_gb == kept_gb


def test_the_host_is_the_one_whose_name_the_script_has_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the name of this machine is another one than that of its nodes."""
    nvml(monkeypatch, {0: {os.getpid(): GB}, 1: {os.getpid(): 9 * GB}})
    job = rollmux_client.Job(None, "one", host="gpu-1.example.org")
    job.lease = "lease"
    job.nodes = {"rollout": [{"name": host, "host": host, "gpus": [gpu]} for gpu, host in enumerate(("gpu-1", "gpu-2"))]}
    turn = job.phase("rollout")
    rollmux_devices.report(job, turn)
    assert turn.device_gb == 1.0


def test_nvml_is_asked_about_the_devices_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, {0: {os.getpid(): 40 * GB}, 4: {os.getpid(): GB}, 5: {os.getpid(): 3 * GB}})
    assert rollmux_devices.device_gb([os.getpid()], ["GPU-aa", 5]) == 3.0


def test_without_nvml_a_line_says_once_that_the_job_file_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(rollmux_devices, "_said", [])
    job = attached(rollout=[0], training=[1])
    for _ in range(2):
        turn = job.phase("rollout")
        rollmux_devices.report(job, turn)
        assert turn.device_gb is None
    assert len(caplog.messages) == 1 and "its GPUs is taken from its job file" in caplog.messages[0]


def test_a_process_that_nvml_does_not_show_is_not_taken_for_one_that_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a container numbers of processes are others than the driver's, and memory is not told of everywhere."""
    monkeypatch.setattr(rollmux_devices, "_said", [])
    nvml(monkeypatch, {0: {4_000_000: 40 * GB}, 1: {os.getpid(): None}})
    turn = attached(rollout=[0], training=[1]).phase("init")
    rollmux_devices.report(attached(rollout=[0], training=[1]), turn)
    assert turn.device_gb is None and "it shows no process of the job" in caplog.text


def test_a_gpu_that_nvml_does_not_show_ends_no_job(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A container with some of the GPUs of its machine numbers them anew."""
    monkeypatch.setattr(rollmux_devices, "_said", [])
    nvml(monkeypatch, {0: {os.getpid(): GB}})
    turn = attached(rollout=[7]).phase("rollout")
    rollmux_devices.report(attached(rollout=[7]), turn)
    assert turn.device_gb is None and "NVML is not available (7)" in caplog.text


def test_where_there_are_no_gpus_or_no_service_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(rollmux_devices, "device_gb", lambda *_: pytest.fail("it was asked"))
    alone, cores = rollmux_client.Job(None, "one"), attached(rollout=[], training=[])
    for job in (alone, cores):
        turn = job.phase("rollout")
        rollmux_devices.report(job, turn)
        assert turn.device_gb is None
