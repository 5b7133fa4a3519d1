"""Reports of a job's own process about the memory of its GPUs: an end for want of it, and how much is not free behind a phase."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed: runs need it")

from rollmux_segment import Footprint

from runtime.jobside.controller import Controller
from runtime.jobside.meter import ProcessMeter
from runtime.phases import WorkerDied
from tests.runtime.coordinator.test_residents import GPUS

GB = 10**9


@pytest.mark.parametrize(
    ("error", "outcome", "is_short"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "failed", True),
        (WorkerDied("a process of its engine has died: CUDA error: out of memory"), "died", True),
        (WorkerDied("its process on training-0 has died: exit code 137"), "died", False),
        (ValueError("no task"), "failed", False),
    ],
)
def test_a_job_says_that_a_gpu_had_too_little_memory(error: Exception, outcome: str, is_short: bool) -> None:
    controller: Any = object.__new__(Controller)
    waits: list[float | None] = []
    controller._writer, controller._session = SimpleNamespace(wait=waits.append), SimpleNamespace(workers=[])
    end = controller._end_of(error, "training")
    assert (end.outcome, end.where, end.out_of_memory) == (outcome, "training", is_short)
    assert len(waits) == (outcome == "died" or is_short)  # a checkpoint that it goes on from is whole
    assert all((most_s is None) == (outcome == "died") for most_s in waits)  # of a rank that waits for the others there is none


def test_a_phase_says_what_of_the_fullest_gpu_is_not_free() -> None:
    meter = ProcessMeter([])
    meter.nodes = {"rollout": GPUS[:1], "training": GPUS[1:]}
    ranks = Footprint(device=20 * GB, capacity=80 * GB, taken=30 * GB) + Footprint(device=20 * GB, capacity=80 * GB, taken=45 * GB)
    assert (ranks.capacity, ranks.taken) == (160 * GB, 45 * GB)
    assert meter.used("training", ranks, {})[1:] == (40.0, 45.0)
