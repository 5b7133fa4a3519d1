"""Tensors leave a device for host memory and come back as they were."""

from __future__ import annotations

import hashlib

import pytest
import torch
from rollmux_offload import Offloader
from rollmux_segment import Segment


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Of names and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def test_a_model_and_its_optimizer_leave_the_device_and_go_on(device: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.linspace(-1, 1, 512, device=device).view(2, 256)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def state() -> dict[str, torch.Tensor]:
        moments = {f"{i}.{j}": tensor for i, entry in enumerate(optimizer.state.values()) for j, tensor in entry.items()}
        return moments | dict(model.named_parameters())

    step()
    offloader, before = Offloader(state), digest(state())
    moved = offloader.footprint().device
    for _ in range(2):  # the second time into the same host memory
        held = torch.cuda.memory_allocated() if device == "cuda" else 0
        away = offloader.offload()
        assert away.device == 0 and away.host >= moved > 0
        if device == "cuda":
            assert held - torch.cuda.memory_allocated() >= moved
        assert offloader.restore().device == moved
        assert digest(state()) == before
    step()
    assert digest(state()) != before
    offloader.close()


@pytest.mark.gpu
def test_host_memory_for_a_gpu_is_page_locked(device: str) -> None:
    if device == "cpu":
        pytest.skip("page-locking needs CUDA")
    segment = Segment(1 << 20, pinned=True)
    assert segment.bytes.is_pinned()
    target = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    segment.bytes.fill_(7)
    target.copy_(segment.bytes, non_blocking=True)
    torch.cuda.synchronize()
    assert bool((target == 7).all())
    segment.close()
