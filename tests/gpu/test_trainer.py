"""A trainer in bf16 against float32 on the CPU, and its state between phases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from runtime.training.trainer import Trainer
from tests.gpu.reference import FACTOR, distance, flat, plain_gradient
from tests.runtime.training.world import SETTINGS, make_batch_of, make_model, state_of, weights_of

WHOLE = SETTINGS.model_copy(update={"minibatches": 1, "max_grad_norm": 1e6})  # one step, of a gradient that is not cut
BATCH = make_batch_of(1, responses=48)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def trainer(device: str, model: Path) -> Iterator[Trainer]:
    made = Trainer(model, WHOLE)
    yield made
    made.close()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def test_gradients_are_those_of_float32_but_for_what_bf16_costs(device: str, model: Path, trainer: Trainer) -> None:
    exact, rounded = (flat(plain_gradient(model, BATCH, WHOLE, dtype)[1]) for dtype in (torch.float32, torch.bfloat16))
    most = FACTOR * distance(rounded, exact)
    metrics = trainer.update(BATCH)
    moments = {name.removeprefix("exp_avg."): value for name, value in state_of(trainer)[0].items() if name.startswith("exp_avg.")}
    found = flat(moments) / 0.1  # a first moment is a tenth of the first gradient
    assert distance(found, exact) <= (most if device == "cuda" else 1e-4 * float(exact.norm()))
    assert metrics["grad_norm"] == pytest.approx(float(exact.norm()), abs=most)
    warmer = WHOLE.model_copy(update={"temperature": 0.7})
    assert distance(flat(plain_gradient(model, BATCH, warmer, torch.float32)[1]), exact) > 2 * most  # something wrong is seen


def test_log_probs_are_those_of_float32_but_for_what_bf16_costs(device: str, model: Path, trainer: Trainer) -> None:
    exact, rounded = (plain_gradient(model, BATCH, WHOLE, dtype)[0] for dtype in (torch.float32, torch.bfloat16))
    root_mean_square = distance(rounded, exact) / len(exact) ** 0.5
    batch = make_batch_of(1, responses=48)
    batch.logprobs[batch.mask] = exact
    gap = trainer.update(batch)["logprob_gap"]  # the mean, which is the root of the mean square at most
    assert gap <= (FACTOR * root_mean_square if device == "cuda" else 1e-4)
    assert FACTOR * root_mean_square < float((exact - exact.mean()).abs().mean()) / 10  # log-probs of other tokens are seen


def test_weights_for_the_sampler_are_the_state_in_its_precision(device: str, trainer: Trainer) -> None:
    trainer.update(BATCH)
    precision = torch.bfloat16 if device == "cuda" else torch.float32
    state, sent = state_of(trainer)[0], weights_of(trainer)
    assert {tensor.dtype for tensor in sent.values()} == {precision}
    assert all(torch.equal(tensor, state[f"weights.{name}"].to(precision)) for name, tensor in sent.items())


def test_state_goes_to_the_host_and_comes_back_to_the_bit(device: str, trainer: Trainer) -> None:
    trainer.update(BATCH)
    before, here = digest(state_of(trainer)[0]), trainer.restore()
    held = torch.cuda.memory_allocated() if device == "cuda" else 0
    away = trainer.offload()
    assert away.device == 0 and away.host >= here.device
    if device == "cuda":
        assert held - torch.cuda.memory_allocated() >= here.device
    with trainer.shards() as (shards, _):  # what a checkpoint is written from, in host memory
        assert all(tensor.device.type == "cpu" for tensor in shards.values())
    assert trainer.restore().device == here.device
    assert digest(state_of(trainer)[0]) == before
    trainer.update(BATCH)
    assert digest(state_of(trainer)[0]) != before


def test_a_checkpoint_is_gone_on_from(device: str, model: Path, trainer: Trainer) -> None:
    trainer.update(BATCH)
    tensors, info = state_of(trainer)
    other = Trainer(model, WHOLE)
    try:
        other.load_state(tensors, info)
        assert digest(state_of(other)[0]) == digest(tensors) and other.updates == 1
    finally:
        other.close()
