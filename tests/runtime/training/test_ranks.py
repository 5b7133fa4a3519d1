"""Several ranks: the update is the same to rounding, a state moves between numbers of them, and all of them see what one sees."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.residency.layout import WeightLayout
from runtime.sync.plan import length, shard
from runtime.training.batch import TrainingError
from runtime.training.group import open_store, url_of
from runtime.training.trainer import Trainer
from tests.runtime.sockets import Address, listening
from tests.runtime.training.test_rendezvous import HERE
from tests.runtime.training.world import (
    SETTINGS,
    apart,
    make_batch_of,
    make_model,
    train_together,
    updates,
    weights_of,
)

WITH_KL = SETTINGS.model_copy(update={"kl": 0.1})
RESPONSES = 9  # minibatches of 5 and 4: neither rank nor passes come out even


Rescaled = tuple[Any, str, Any, list[Address]]


def _rescaled(rank: int, world: int, rendezvous: str, model: Path, state: Any, port: Path) -> Rescaled:
    """Two more updates from a state; the error of a NaN in the weights of the last rank's shard; shard and weights before it.

    The NaN comes to ranks that meet at an address of this machine, whose own listening sockets are returned too.
    """
    found = updates(rank, world, rendezvous, model, [2, 3], WITH_KL, state, RESPONSES)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        del os.environ[name]
    earlier = listening([os.getpid()])  # of the first group, on loopback
    if rank == 0:
        store = open_store(HERE)  # it is open as long as it is held
        port.with_suffix(".part").write_text(str(store.port))
        port.with_suffix(".part").rename(port)
    while not port.exists():
        time.sleep(0.01)
    again = url_of(HERE, int(port.read_text()))
    trainer = Trainer(model, SETTINGS, rank=rank, world=world, rendezvous=again, cpu_offload=True)  # no matter here
    with trainer.shards() as (shards, info):
        before = {name: shard.clone() for name, shard in shards.items()}, info
    one = trainer.update(make_batch_of(1))
    own = torch.empty(length(shard(trainer.layout, rank, world)), dtype=torch.uint8)
    trainer.write_shard(own)
    parts = own.numpy(), {name: tensor.numpy() for name, tensor in weights_of(trainer).items()}
    addresses = [address for address in listening([os.getpid()]) if address not in earlier]
    trainer.load_shards(*before)
    assert trainer.update(make_batch_of(1)) == one  # back and again
    if rank == world - 1:
        with torch.no_grad():
            weight: Any = dict(trainer._model.named_parameters())["model.norm.weight"]  # noqa: SLF001 (no one may break a weight)
            weight.to_local().fill_(float("nan"))
    try:
        trainer.update(make_batch_of(1))
    except TrainingError as error:
        return found, str(error), parts, addresses
    finally:
        trainer.close()
    return found, "", parts, addresses


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="module")
def begun(model: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A state after one update on one rank."""
    return updates(0, 1, None, model, [1], WITH_KL, None, RESPONSES)[2:]


@pytest.fixture(scope="module")
def ranks(model: Path, begun: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Rescaled]:
    folder = tmp_path_factory.mktemp("meeting")
    return train_together(folder, 2, _rescaled, model, begun, folder / "port")


def test_after_rescaling_the_update_is_the_same(model: Path, begun: Any, ranks: list[Rescaled]) -> None:
    metrics, weights, tensors, info = updates(0, 1, None, model, [2, 3], WITH_KL, begun, RESPONSES)
    (first, *_), (second, *_) = ranks
    assert first[0] == second[0] and not second[1] and not second[2]  # metrics on all ranks, weights on the first
    for alone, together in zip(metrics, first[0], strict=True):
        assert alone == pytest.approx(together, rel=1e-3, abs=1e-5)
    start = {name.removeprefix("weights."): values for name, values in begun[0].items() if name.startswith("weights.")}
    assert apart(first[1], weights, start) < 1e-3
    assert apart(first[2], tensors) < 1e-3 and first[3] == second[3] == info


def test_ranks_can_become_fewer_again(model: Path, begun: Any, ranks: list[Rescaled]) -> None:
    (_, _, tensors, info), *_ = ranks[0]
    back = updates(0, 1, None, model, [4], WITH_KL, (tensors, info), RESPONSES)
    alone = updates(0, 1, None, model, [2, 3, 4], WITH_KL, begun, RESPONSES)
    assert apart(back[2], alone[2]) < 1e-3 and back[3] == alone[3]


def test_every_rank_says_that_a_gradient_is_no_number(ranks: list[Rescaled]) -> None:
    (_, one, *_), (_, other, *_) = ranks
    assert one == other and "the gradient's norm is nan" in one


def test_nothing_of_the_ranks_listens_elsewhere_than_where_they_meet(ranks: list[Rescaled]) -> None:
    assert {host for *_, addresses in ranks for host, _ in addresses} == {HERE}


def test_the_shards_of_the_ranks_are_the_weights(ranks: list[Rescaled]) -> None:
    weights = {name: torch.from_numpy(array) for name, array in ranks[0][2][1].items()}
    assert weights and not ranks[1][2][1]
    layout = WeightLayout.of(weights)
    whole = torch.cat([weights[name].flatten() for name, *_ in layout.tensors]).view(torch.uint8)
    for rank, (_, _, (data, _), _) in enumerate(ranks):
        held = torch.cat([whole[first:behind] for first, behind in shard(layout, rank, len(ranks))])
        assert torch.equal(torch.from_numpy(data), held)
