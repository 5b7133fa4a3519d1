"""Several ranks: the update is the same to rounding, a state moves between numbers of them, and all of them see what one sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.residency.layout import WeightLayout
from runtime.sync.plan import length, shard
from runtime.training.batch import TrainingError
from runtime.training.trainer import Trainer
from tests.runtime.training.world import (
    SETTINGS,
    apart,
    make_batch_of,
    make_model,
    meeting_place,
    train_together,
    updates,
    weights_of,
)

WITH_KL = SETTINGS.model_copy(update={"kl": 0.1})
RESPONSES = 9  # minibatches of 5 and 4: neither rank nor passes come out even


def _rescaled(rank: int, world: int, rendezvous: str, model: Path, state: Any, again: str) -> tuple[Any, str, Any]:
    """Two more updates from a state; the error of a NaN in the weights of the last rank's shard; shard and weights before it."""
    found = updates(rank, world, rendezvous, model, [2, 3], WITH_KL, state, RESPONSES)
    trainer = Trainer(model, SETTINGS, rank=rank, world=world, rendezvous=again, cpu_offload=True)  # no matter here
    with trainer.shards() as (shards, info):
        before = {name: shard.clone() for name, shard in shards.items()}, info
    one = trainer.update(make_batch_of(1))
    own = torch.empty(length(shard(trainer.layout, rank, world)), dtype=torch.uint8)
    trainer.write_shard(own)
    parts = own.numpy(), {name: tensor.numpy() for name, tensor in weights_of(trainer).items()}
    trainer.load_shards(*before)
    assert trainer.update(make_batch_of(1)) == one  # back and again
    if rank == world - 1:
        with torch.no_grad():
            weight: Any = dict(trainer._model.named_parameters())["model.norm.weight"]  # noqa: SLF001 (no one may break a weight)
            weight.to_local().fill_(float("nan"))
    try:
        trainer.update(make_batch_of(1))
    except TrainingError as error:
        return found, str(error), parts
    finally:
        trainer.close()
    return found, "", parts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def begun(model: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A state after one update on one rank."""
    return updates(0, 1, None, model, [1], WITH_KL, None, RESPONSES)[2:]


@pytest.fixture(scope="module")
def ranks(model: Path, begun: Any, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, str, Any]]:
    folder = tmp_path_factory.mktemp("meeting")
    return train_together(folder, 2, _rescaled, model, begun, meeting_place(folder))


def test_after_rescaling_the_update_is_the_same(model: Path, begun: Any, ranks: list[tuple[Any, str, Any]]) -> None:
    metrics, weights, tensors, info = updates(0, 1, None, model, [2, 3], WITH_KL, begun, RESPONSES)
    (first, *_), (second, *_) = ranks
    assert first[0] == second[0] and not second[1] and not second[2]  # metrics on all ranks, weights on the first
    for alone, together in zip(metrics, first[0], strict=True):
        assert alone == pytest.approx(together, rel=1e-3, abs=1e-5)
    start = {name.removeprefix("weights."): values for name, values in begun[0].items() if name.startswith("weights.")}
    assert apart(first[1], weights, start) < 1e-3
    assert apart(first[2], tensors) < 1e-3 and first[3] == second[3] == info


def test_ranks_can_become_fewer_again(model: Path, begun: Any, ranks: list[tuple[Any, str, Any]]) -> None:
    (_, _, tensors, info), *_ = ranks[0]
    back = updates(0, 1, None, model, [4], WITH_KL, (tensors, info), RESPONSES)
    alone = updates(0, 1, None, model, [2, 3, 4], WITH_KL, begun, RESPONSES)
    assert apart(back[2], alone[2]) < 1e-3 and back[3] == alone[3]


def test_every_rank_says_that_a_gradient_is_no_number(ranks: list[tuple[Any, str, Any]]) -> None:
    (_, one, _), (_, other, _) = ranks
    assert one == other and "the gradient's norm is nan" in one


def test_the_shards_of_the_ranks_are_the_weights(ranks: list[tuple[Any, str, Any]]) -> None:
    weights = {name: torch.from_numpy(array) for name, array in ranks[0][2][1].items()}
    assert weights and not ranks[1][2][1]
    layout = WeightLayout.of(weights)
    whole = torch.cat([weights[name].flatten() for name, *_ in layout.tensors]).view(torch.uint8)
    for rank, (*_, (data, _)) in enumerate(ranks):
        held = torch.cat([whole[first:behind] for first, behind in shard(layout, rank, len(ranks))])
        assert torch.equal(torch.from_numpy(data), held)
