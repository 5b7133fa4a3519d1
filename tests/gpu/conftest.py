"""The device that a test runs on."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """`cuda`, or `cpu` for its twin. Trainers and engines take a GPU where there is one, so the twin is for machines without."""
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine" if request.param == "cuda" else "the twin of a test that runs on the GPU here")
    return str(request.param)
