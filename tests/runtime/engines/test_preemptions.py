"""What a full KV cache puts back is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runtime.engines import make_engine, vllm_problem
from runtime.engines.interface import Kind, Sampling
from runtime.jobs.grpo_spec import ModelSpec
from runtime.jobs.models import model_directory


@pytest.mark.long
@pytest.mark.parametrize("kind", ["torch", "vllm"])
def test_a_full_cache_puts_responses_back_and_says_so(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU vLLM's cache holds 64 responses at their longest; of two blocks each, 100 fit until they need the second one."""
    if kind == "vllm" and (problem := "it is for CPUs" if torch.cuda.is_available() else vllm_problem(False)):
        pytest.skip(problem)
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path))
    folder = model_directory(ModelSpec.model_validate({"name": "tiny", "hidden_size": 64, "layers": 1}), 0)
    engine = make_engine(kind, folder, max_length=256, seed=0, threads=1, tensor_parallel=1)
    try:
        for prompts, full in ((50, False), (100, True)):
            before = engine.preemptions
            responses = engine.generate([[k + 3] for k in range(prompts)], Sampling(max_tokens=160, seed=1, ignore_end=True))
            assert all(len(response.token_ids) == 160 for response in responses)
            assert (engine.preemptions > before) == (full and kind == "vllm")
    finally:
        engine.close()
