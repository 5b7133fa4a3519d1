"""Engines in bf16: they sample what the model says, take staged weights as if loaded with them, sleep and wake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.engines import make_engine, vllm_problem
from runtime.engines.interface import Engine, Kind, Response, Sampling
from runtime.residency.layout import WeightLayout
from runtime.residency.staging import WeightStage, pieces
from tests.gpu.elsewhere import EngineElsewhere
from tests.gpu.reference import FACTOR, distance, plain_model, plain_scores
from tests.runtime.engines.models import saved, tiny

PROMPTS = [[5], [9, 30, 7, 41, 8, 22], [3, 17, 60], [80, 2, 44, 13, 6, 50, 71, 90, 33], [64, 12]] * 2
GREEDY = Sampling(temperature=0, max_tokens=20)
RANDOM = Sampling(temperature=0.8, max_tokens=40, seed=11, ignore_end=True)


@pytest.fixture(params=["torch", pytest.param("vllm", marks=pytest.mark.long)])  # the CPU has vLLM in tests/runtime/engines too
def kind(request: pytest.FixtureRequest, device: str) -> Kind:
    """Of an engine that runs here."""
    if request.param == "vllm" and (problem := vllm_problem(device == "cuda")):
        pytest.skip(problem)
    return request.param  # type: ignore[no-any-return]


@contextmanager
def engine_of(kind: Kind, folder: Path) -> Iterator[Engine]:
    """An engine of its own; of vLLM in a process of its own."""
    options: dict[str, Any] = {"max_length": 64, "seed": 0, "threads": 1, "tensor_parallel": 1}
    engine: Any = EngineElsewhere(kind, folder, **options) if kind == "vllm" else make_engine(kind, folder, **options)
    try:
        yield engine
    finally:
        engine.close()


def same(one: list[Response], other: list[Response]) -> None:
    """The same tokens, of the same log-probs: equal weights and shapes go through the same kernels, so nothing is left to rounding
    but the least bit of a float32."""
    assert [response.token_ids for response in one] == [response.token_ids for response in other]
    for left, right in zip(one, other, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-5)


def test_log_probs_of_samples_are_the_models_but_for_what_bf16_costs(kind: Kind, device: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, seed=0)
    with engine_of(kind, folder) as engine:
        responses = engine.generate(PROMPTS, RANDOM)
    said = torch.tensor([logprob for response in responses for logprob in response.logprobs])
    exact, rounded, colder = (
        torch.cat([plain_scores(model, PROMPTS[one.prompt], one.token_ids, temperature) for one in responses])
        for model, temperature in (
            (plain_model(folder, torch.float32), RANDOM.temperature),
            (plain_model(folder, torch.bfloat16), RANDOM.temperature),
            (plain_model(folder, torch.float32), 0.8 * RANDOM.temperature),
        )
    )
    most = FACTOR * distance(rounded, exact)
    assert distance(said, exact) <= (most if device == "cuda" else 1e-3 * len(exact) ** 0.5)
    assert distance(colder, exact) > most  # something wrong is seen


def test_staged_weights_are_as_good_as_a_model_that_is_loaded_with_them(kind: Kind, device: str, tmp_path: Path) -> None:
    old, new = saved(tmp_path / "old", seed=0), saved(tmp_path / "new", seed=2)
    with engine_of(kind, new) as engine:
        expected = engine.generate(PROMPTS, GREEDY)
    precision = torch.bfloat16 if device == "cuda" else torch.float32  # as a trainer sends them
    weights = {name: tensor.to(precision) for name, tensor in tiny(2).state_dict().items()}
    stage, layout = WeightStage(pinned=device == "cuda"), WeightLayout.of(weights)
    with engine_of(kind, old) as engine:
        before = engine.generate(PROMPTS, GREEDY)
        assert [response.token_ids for response in before] != [response.token_ids for response in expected]
        engine.offload()
        stage.begin(layout, 2)
        for offset, piece in pieces(weights, layout, most=10_000):
            stage.receive(2, offset, piece)
        engine.restore(stage.weights(), stage.version)
        same(engine.generate(PROMPTS, GREEDY), [replace(response, version=2) for response in expected])
        engine.offload()
        engine.restore()  # what was staged is what comes back from then on
        same(engine.generate(PROMPTS, GREEDY), expected)
    stage.close()


def test_an_engine_sleeps_without_device_memory_and_wakes_as_it_was(kind: Kind, device: str, tmp_path: Path) -> None:
    with engine_of(kind, saved(tmp_path, seed=0)) as engine:
        first, awake = engine.generate(PROMPTS, GREEDY), engine.restore()
        for _ in range(2):
            free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
            asleep = engine.offload()
            assert engine.offload() == asleep  # again: no effect
            if device == "cuda" or kind == "torch":
                assert asleep.device < awake.device and asleep.host > 0
                with pytest.raises(RuntimeError, match="offloaded"):
                    engine.generate(PROMPTS, GREEDY)
            if device == "cuda" and kind == "vllm":  # a tiny model of the torch engine shares its two megabytes with others
                assert torch.cuda.mem_get_info()[0] > free
            engine.restore()
            same(engine.generate(PROMPTS, GREEDY), first)


def test_an_engine_that_drops_its_weights_keeps_none_and_comes_back_with_others(kind: Kind, device: str, tmp_path: Path) -> None:
    with engine_of(kind, saved(tmp_path, seed=0)) as engine:
        kept = engine.offload()
        engine.restore()
        dropped = engine.offload(drop=True)
        if device == "cuda" or kind == "torch":  # vLLM does not sleep on CPUs
            assert dropped.host < kept.host / 10 and dropped.device <= kept.device * 1.01
            with pytest.raises(RuntimeError, match="kept no weights"):
                engine.restore()
        engine.restore(tiny(1).state_dict(), 1)
        new = engine.generate(PROMPTS, GREEDY)
        engine.update_weights(tiny(1).state_dict(), 1)
        same(engine.generate(PROMPTS, GREEDY), new)
