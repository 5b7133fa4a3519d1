"""What only the torch engine does: on a CPU its weights really leave the process between phases."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from runtime.engines.interface import Sampling
from runtime.engines.torch_engine import TorchEngine


def _resident() -> int:
    """Bytes that this process holds in memory."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def _digest(engine: TorchEngine) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(engine._model.state_dict().items()):  # noqa: SLF001 (an engine gives its weights to nobody)
        digest.update(name.encode() + tensor.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def test_offloading_shrinks_the_process_and_restoring_brings_the_same_weights(tmp_path: Path) -> None:
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    engine = TorchEngine(tmp_path, max_length=64, threads=1)
    sampling = Sampling(max_tokens=4, seed=5)
    first, digest = engine.generate([[1, 2, 3]], sampling), _digest(engine)
    size = engine.restore().device
    assert size > 120 << 20

    if torch.cuda.is_available():
        engine.offload()
    else:
        before = _resident()
        assert engine.offload().device == 0
        assert before - _resident() > 0.9 * size
    with pytest.raises(RuntimeError, match="offloaded"):
        engine.generate([[1, 2, 3]], sampling)

    engine.restore()
    assert _digest(engine) == digest
    assert engine.generate([[1, 2, 3]], sampling) == first
    engine.close()
