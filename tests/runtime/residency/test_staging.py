"""Weights are staged piece by piece, and nobody sees a part of a version."""

from __future__ import annotations

import random

import pytest
import torch
from safetensors import safe_open

from runtime.residency.layout import WeightLayout
from runtime.residency.staging import OpenedStage, WeightStage, pieces

WEIGHTS = {
    "b": torch.arange(35.0).view(5, 7),
    "a": torch.arange(9, dtype=torch.bfloat16),
    "c": torch.tensor([1, 2, 3], dtype=torch.int64),
    "scalar": torch.tensor(2.5),
    "flags": torch.tensor([True, False, True]),
}


def test_pieces_in_any_order_make_the_weights() -> None:
    layout = WeightLayout.of(WEIGHTS)
    cut = list(pieces(WEIGHTS, layout, most=16))
    random.Random(0).shuffle(cut)
    stage = WeightStage()
    stage.begin(layout, 7)
    for offset, data in cut:
        assert not stage.complete
        stage.receive(7, offset, data)
    assert stage.complete
    assert {name: tensor.tolist() for name, tensor in stage.weights().items()} == {name: t.tolist() for name, t in WEIGHTS.items()}
    assert stage.path is not None
    with safe_open(stage.path, framework="pt") as file:
        assert set(file.keys()) == set(WEIGHTS)
        for name, tensor in WEIGHTS.items():
            assert torch.equal(file.get_tensor(name), tensor)
    stage.close()
    assert stage.footprint().host == 0


def test_half_a_version_is_none() -> None:
    stage = WeightStage()
    with pytest.raises(RuntimeError, match="not complete"):
        stage.weights()
    layout = WeightLayout.of(WEIGHTS)
    stage.begin(layout, 1)
    for offset, data in pieces(WEIGHTS, layout):
        stage.receive(1, offset, data)
    stage.begin(layout, 2)  # the memory is the same, the first version is gone
    assert not stage.complete
    with pytest.raises(RuntimeError, match="version 2 are not complete: 0 of"):
        stage.weights()


def test_a_piece_that_is_wrong_is_refused() -> None:
    stage, layout = WeightStage(), WeightLayout.of(WEIGHTS)
    stage.begin(layout, 1)
    stage.receive(1, 10, torch.zeros(10, dtype=torch.uint8))
    for version, offset, size in ((2, 30, 4), (1, 8, 4), (1, 19, 4), (1, 12, 2), (1, layout.nbytes - 2, 4), (1, -4, 4)):
        with pytest.raises(ValueError, match="weights"):
            stage.receive(version, offset, torch.zeros(size, dtype=torch.uint8))
    stage.receive(1, 8, torch.zeros(2, dtype=torch.uint8))
    stage.receive(1, 20, torch.zeros(2, dtype=torch.uint8))


def test_the_layout_depends_on_names_and_shapes_alone() -> None:
    backwards = {name: torch.zeros_like(WEIGHTS[name]) for name in reversed(WEIGHTS)}
    assert WeightLayout.of(backwards) == WeightLayout.of(WEIGHTS)


def test_another_process_opens_what_is_staged_once_and_sees_each_version_without_a_copy() -> None:
    stage, layout = WeightStage(), WeightLayout.of(WEIGHTS)
    stage.begin(layout, 1)
    for offset, data in pieces(WEIGHTS, layout):
        stage.receive(1, offset, data)
    path = stage.weights().path
    opened = OpenedStage(path, pinned=False)
    assert {name: tensor.tolist() for name, tensor in opened.weights.items()} == {name: t.tolist() for name, t in WEIGHTS.items()}
    newer = WEIGHTS | {"b": -WEIGHTS["b"]}
    stage.begin(layout, 2)
    for offset, data in pieces(newer, layout):
        stage.receive(2, offset, data)
    assert opened.is_at(stage.weights().path) and torch.equal(opened.weights["b"], newer["b"])
    other = {"b": torch.zeros(1000)}  # another layout: other memory, whose descriptor may have the same number
    stage.begin(WeightLayout.of(other), 3)
    assert stage.path is not None and not opened.is_at(stage.path)
    assert torch.equal(opened.weights["b"], newer["b"])
    opened.close()
    stage.close()
