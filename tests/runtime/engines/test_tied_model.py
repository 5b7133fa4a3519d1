"""A model whose output matrix is its embedding: no engine forgets one of the two. numba is here, as in every worker."""

from __future__ import annotations

from pathlib import Path

import numba  # noqa: F401 - vLLM would stumble over it
import pytest
import torch

from runtime.engines import make_engine, vllm_problem
from runtime.engines.interface import Kind, Sampling
from tests.runtime.engines.models import greedy, saved, tiny

PROMPTS = [[5], [9, 30, 7, 41, 8, 22], [3, 17, 60]]


@pytest.mark.parametrize("kind", ["torch", pytest.param("vllm", marks=pytest.mark.long)])
def test_greedy_is_what_the_plain_model_says(kind: Kind, tmp_path: Path) -> None:
    if kind == "vllm" and (problem := vllm_problem(torch.cuda.is_available())):
        pytest.skip(problem)
    engine = make_engine(kind, saved(tmp_path, seed=0, tied=True), max_length=32, seed=0, threads=1, tensor_parallel=1)
    for seed in (0, 1, 2):
        model = tiny(seed, tied=True)
        if seed == 1:
            engine.update_weights(dict(model.named_parameters()), seed)  # without the output matrix
        if seed == 2:
            engine.offload()
            engine.restore(model.state_dict(), seed)  # with it
        for response, prompt in zip(engine.generate(PROMPTS, Sampling(temperature=0, max_tokens=16)), PROMPTS, strict=True):
            assert list(response.token_ids) == greedy(model, prompt, 16)[0]
    engine.close()
