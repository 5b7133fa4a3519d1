"""What CUDA takes of a GPU for a process counts as the process's, measured by the memory that is free."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rollmux_segment import Footprint

from rollmux_env.errors import InputError
from runtime import gpus
from runtime.gpus import CudaOverhead, device_count, is_out_of_memory, named_devices
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.grpo.training_worker import TrainingWorker
from runtime.machine import Node
from tests.runtime.jobs.task_job import task_job

MIB = 1 << 20


class Device:
    """A GPU of 80,000 MiB, as nvidia-smi and torch tell of it.

    Attributes:
        used: MiB of it. reserved: of them, by torch's allocator in this process.
    """

    def __init__(self, folder: Path) -> None:
        self._fake = folder / "nvidia-smi"
        self._fake.touch(stat.S_IRWXU)
        self.used = self.reserved = 0

    def take(self, used: int, reserved: int = 0) -> None:
        self.used, self.reserved = self.used + used, self.reserved + reserved
        self._fake.write_text(f"#!/bin/sh\necho '0, GPU-aa, NVIDIA H100, 80000, 580.1, {80_000 - self.used}'\n")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((80_000 - made.used) * MIB, 80_000 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: made.reserved * MIB)
    made.take(3_000)  # of somebody who sleeps
    return made


def test_what_is_free_no_longer_is_the_process_s_but_for_what_its_allocators_have(device: Device) -> None:
    own = CudaOverhead(2)
    device.take(5_000, reserved=4_200)
    awake = own.added(Footprint(device=2 * 4_000 * MIB, host=7, peak=2 * 6_000 * MIB))
    assert awake == Footprint(device=2 * 4_800 * MIB, host=7, peak=2 * 6_800 * MIB)
    device.take(-4_200, reserved=-4_200)
    device.take(20_000)  # others come and go
    assert own.added(Footprint(host=9)) == Footprint(device=2 * 800 * MIB, host=9)


def test_nothing_is_added_where_nothing_can_be_measured(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    some = Footprint(5, 6, 0, 7, 8)
    assert CudaOverhead(0).added(some) == some
    own = CudaOverhead(1)
    device.take(-1_000)  # somebody has ended meanwhile
    assert own.added(some) == some
    monkeypatch.setenv("PATH", "/nowhere")
    own = CudaOverhead(1)
    device.take(5_000)
    assert own.added(some) == some


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB", True),
        ("CUDA Error: out of memory at cumem_allocator.cpp:119", True),
        ("its process has died: killed by the OOM killer", False),
        ("the disk is out of memory", False),
    ],
)
def test_words_of_a_gpu_that_is_full_are_known(message: str, is_one: bool) -> None:
    assert is_out_of_memory(message) is is_one


class Engine:
    """Has 4,000 MiB while it is awake, and its process a context of 600."""

    def __init__(self, device: Device) -> None:
        self._device, self._awake = device, True
        device.take(4_600)

    def stay(self) -> Footprint:
        return Footprint(device=4_000 * MIB * self._awake, peak=4_000 * MIB)

    def offload(self, drop: bool = False) -> Footprint:
        self._device.take(-4_000 * self._awake)
        self._awake = False
        return self.stay()

    def generate(self, *_: object) -> None: ...


def test_an_engine_and_a_rank_say_what_they_keep_with_it(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    small = {"name": "tiny", "hidden_size": 64, "layers": 1}
    entry = {"id": "a", "slo": 2, "iterations": 1, "task": "echo", "model": small, "rollout": {"engine": "torch"}}
    spec = task_job(entry, tmp_path)
    node = Node("rollout-0", "rollout", "m", (0,), (0,), 4.0, "1 GPU")
    monkeypatch.setattr("runtime.engines.make_engine", lambda *_, **__: Engine(device))
    monkeypatch.setattr("runtime.residency.staging.WeightStage", lambda **_: SimpleNamespace(footprint=Footprint))
    monkeypatch.setattr("runtime.residency.staging.StageReader", lambda *_: SimpleNamespace(footprint=Footprint, staged=None))
    rollout = RolloutWorker(spec, 0, 1, node)
    rollout.open(None)
    assert [part()[0].device // MIB for part in (rollout.residency.stay, rollout.residency.offload)] == [4_600, 600]
    assert rollout.residency.offload()[0].peak // MIB == 4_600
    monkeypatch.setattr("runtime.training.trainer.Trainer", lambda *_, **__: Engine(device))
    training = TrainingWorker(spec, 0, 1, node)
    training.open(None, None)
    assert [part()[0].device // MIB for part in (training.stay, training.offload)] == [4_600, 600]


def test_devices_are_counted_by_what_the_driver_lists_or_answers_or_has_made(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_LISTED", tmp_path / "gpus")
    monkeypatch.setattr(gpus, "_DEVICES", tmp_path)
    assert device_count() == 1  # nvidia-smi answers
    monkeypatch.setenv("PATH", "/nowhere")
    assert device_count() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert device_count() == 2
    for name in ("a", "b", "c"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert device_count() == 3
    for value, names in {"4,5": ["4", "5"], "GPU-aa, GPU-bb": ["GPU-aa", "GPU-bb"], "": [], "-1": [], "3,-1,4": ["3"]}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert named_devices() == names and device_count() == len(names)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 0,1")  # two nodes would have one GPU
    for function in (named_devices, device_count):
        with pytest.raises(InputError, match="names 1 twice, and CUDA shows no device then"):
            function()
