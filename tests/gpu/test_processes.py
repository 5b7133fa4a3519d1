"""What only several processes show: each page-locks the one staged copy for itself, and has a context that counts.

On a CPU a stand-in for CUDA is asked the same (tests/runtime/residency/test_sharing.py, tests/runtime/test_gpus.py).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rollmux_segment import Footprint

from runtime.gpus import CudaOverhead
from runtime.residency.layout import WeightLayout
from runtime.residency.staging import OpenedStage, WeightStage, pieces

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
_LARGE = 256 << 20


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process that has not used CUDA."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def read(path: str) -> tuple[bool, float]:
    """Whether what is staged is page-locked here, and the sum of it on the device."""
    opened = OpenedStage(path, pinned=True)
    with opened.read() as version:
        assert version == 1
        weights = opened.weights["weights"]
        locked, total = weights.is_pinned(), float(weights.to("cuda", non_blocking=True).double().sum())
    opened.close()
    return locked, total


def test_processes_page_lock_one_staged_copy_each_for_itself() -> None:
    weights = {"weights": torch.arange(_LARGE // 4, dtype=torch.float32)}
    stage, layout = WeightStage(pinned=True), WeightLayout.of(weights)
    stage.begin(layout, 1)
    for offset, piece in pieces(weights, layout):
        stage.receive(1, offset, piece)
    path = stage.weights().path
    assert stage.weights()["weights"].is_pinned()
    expected = float(weights["weights"].double().sum())
    assert [elsewhere(read, path) for _ in range(2)] == [(True, expected)] * 2
    stage.close()


def of_cuda() -> tuple[int, int]:
    """Bytes that a process has with a tensor on the device and without it, as it would say."""
    own = CudaOverhead(1)
    tensor = torch.ones(_LARGE, dtype=torch.uint8, device="cuda")
    awake = own.added(Footprint(device=tensor.nbytes)).device
    return awake, own.added(Footprint()).device


def test_a_context_counts_and_a_tensor_counts_once() -> None:
    awake, asleep = elsewhere(of_cuda)
    assert awake - asleep == _LARGE
    assert 50 << 20 < asleep < 4 << 30
