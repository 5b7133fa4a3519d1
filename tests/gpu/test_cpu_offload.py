"""`training.cpu_offload` on a GPU: the state stays in host memory, and the updates are those of one on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rollmux_offload import release_device_memory

from runtime.training.trainer import Trainer
from tests.runtime.qwen import small_qwen
from tests.runtime.training.world import SETTINGS, WORDS, apart, make_batch_of, state_of, weights_of


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_state_in_host_memory_leaves_the_device_free(tmp_path: Path) -> None:
    small_qwen(0, WORDS, 1024, 8, initializer_range=0.02).save_pretrained(tmp_path)  # 15 million parameters
    before, settings = torch.cuda.memory_allocated(), SETTINGS.model_copy(update={"learning_rate": 1e-4})
    host = Trainer(tmp_path, settings, cpu_offload=True)
    nbytes = 4 * sum(tensor.numel() for tensor in weights_of(host).values())
    metrics = [host.update(make_batch_of(seed)) for seed in (1, 2)]
    release_device_memory()
    assert torch.cuda.memory_allocated() - before < nbytes / 4  # buffers
    there = Trainer(tmp_path, settings)
    began = state_of(there)[0]
    for found, seed in zip(metrics, (1, 2), strict=True):
        expected = there.update(make_batch_of(seed))
        for name in ("entropy", "grad_norm"):  # Adam rounds otherwise, by 1e-7, which bf16 makes a thousandth of
            assert found[name] == pytest.approx(expected[name], rel=1e-2)
    here, away = host.restore(), host.offload()
    assert here.device < nbytes / 4 and here.host >= 3 * nbytes and away.device == 0 and away.host >= 3 * nbytes
    host.restore()
    tensors, info = state_of(host)
    one, other = ({name: state[name] for name in began} for state in (tensors, state_of(there)[0]))
    assert apart(one, other, began) < 5e-2
    host.load_state(tensors, info)
    again = state_of(host)[0]
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)
    host.close()
    there.close()
