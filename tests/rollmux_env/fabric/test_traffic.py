"""Flows from shapes: every collective moves the bytes that it must, no rank more than its share."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.fabric.flows import read_flows
from rollmux_env.fabric.steps import GRADIENTS, PIPELINE, WEIGHTS, FabricJob, iteration_of
from rollmux_env.fabric.traffic import (
    RankLayout,
    Traffic,
    data_traffic,
    expert_traffic,
    pipeline_traffic,
    tensor_traffic,
    weight_traffic,
)
from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.timing.lengths import Piecewise
from rollmux_env.timing.models import SHAPES

LAYOUT = RankLayout(16, 4, 3, 2)  # GPUs 16 to 39


def sent(traffic: Traffic, gpus: int = 64) -> list[float]:
    return [float(gb) for gb in np.bincount(traffic.source, traffic.gb, gpus)]


def received(traffic: Traffic, gpus: int = 64) -> list[float]:
    return [float(gb) for gb in np.bincount(traffic.target, traffic.gb, gpus)]


def test_ranks_of_a_tensor_parallel_group_stand_together_then_replicas_then_stages() -> None:
    assert LAYOUT.ranks[:, :, 0].tolist() == [[16, 20], [24, 28], [32, 36]] and LAYOUT.gpus == 24


def test_a_pipeline_sends_activations_on_and_gradients_back() -> None:
    traffic = pipeline_traffic(LAYOUT, 8.0)
    assert sent(traffic)[16:40] == received(traffic)[16:40] == [2.0] * 8 + [4.0] * 8 + [2.0] * 8
    assert not pipeline_traffic(RankLayout(0, 4, 1, 2), 8.0).gb.size


@pytest.mark.parametrize("data", [1, 2, 3, 8])
def test_a_ring_moves_what_reduce_scatter_and_all_gather_must(data: int) -> None:
    """Each rank sends, and gets, (n - 1) / n of its part twice."""
    traffic = data_traffic(RankLayout(0, 4, 2, data), 16.0)
    share = 2 * 16.0 / 8 * (data - 1) / data
    assert sent(traffic, 8 * data) == pytest.approx([share] * 8 * data) and received(traffic, 8 * data) == sent(traffic, 8 * data)


def test_tensor_parallel_groups_inside_nodes_cross_no_fabric() -> None:
    assert not tensor_traffic(LAYOUT, 8.0, 8).gb.size
    wide = tensor_traffic(RankLayout(0, 16, 1, 2), 8.0, 8)  # two nodes: each GPU reduces an eighth with its twin in the other
    assert sent(wide, 32) == pytest.approx([2 * 8.0 / 8 / 2] * 32)
    assert set(zip((wide.source % 16).tolist(), (wide.target % 16).tolist(), strict=True)) >= {(0, 8), (8, 0), (7, 15)}


def test_experts_send_to_all_that_hold_some() -> None:
    traffic = expert_traffic(RankLayout(0, 2, 1, 8), 4, 8.0)
    assert sent(traffic, 16) == pytest.approx([6.0] * 16) and traffic.gb.size == 16 * 3
    assert set(traffic.target[traffic.source == 1].tolist()) == {3, 5, 7}
    assert not expert_traffic(RankLayout(0, 2, 1, 8), 1, 8.0).gb.size
    with pytest.raises(InputError, match="groups of 3 do not divide 8 replicas"):
        expert_traffic(RankLayout(0, 2, 1, 8), 3, 8.0)


def test_one_copy_of_the_weights_crosses_and_every_replica_gets_one() -> None:
    training, generation = RankLayout(0, 4, 2, 2), RankLayout(16, 2, 1, 4)
    traffic = weight_traffic(training, generation, 12.0)
    crossing = traffic.source < 16
    assert traffic.gb[crossing].sum() == pytest.approx(12.0)
    assert received(traffic, 24)[16:] == pytest.approx([6.0] * 8)


def test_an_iterations_computing_is_what_the_phase_time_model_says() -> None:
    batch = ResponseBatch(64, 8, 4, 256, Piecewise(2048, ((0.5, 600.0), (0.9, 1800.0))))
    job = FabricJob("7B", RankLayout(0, 8, 2, 2), 32, 4, batch)
    iteration = iteration_of(job)
    assert [step.pattern for step in iteration.steps] == [PIPELINE, GRADIENTS] * 4 + [WEIGHTS]
    pairs = zip(iteration.steps[:-1:2], iteration.steps[1::2], strict=True)
    updates = [sum(step.before_s + step.beside_s for step in pair) for pair in pairs]
    assert updates == pytest.approx([updates[0]] * 4) and min(updates) > 0
    gradients_gb = 2 * SHAPES["7B"].parameters / 1e9
    assert iteration.traffic[GRADIENTS].gb.sum() == pytest.approx(2 * gradients_gb)  # two replicas: each sends all of it once
    assert iteration.traffic[WEIGHTS].gb.sum() == pytest.approx(8 * gradients_gb)
    with pytest.raises(InputError, match="replicas of 12 GPUs must fit into nodes or fill them"):
        iteration_of(FabricJob("7B", RankLayout(0, 8, 2, 2), 24, 12, batch))


def test_replicas_that_generate_over_several_nodes_send_their_messages_over_the_fabric() -> None:
    batch = ResponseBatch(64, 8, 4, 256, Piecewise(2048, ((0.5, 600.0), (0.9, 1800.0))))
    inside, over = (iteration_of(FabricJob("7B", RankLayout(0, 8, 2, 2), 32, replica, batch)) for replica in (8, 16))
    assert over.generation_s > inside.generation_s, "messages to another node take longer"
    source, _, gb = over.traffic[PIPELINE]
    assert inside.traffic[PIPELINE].source.max() < 32 <= source.max()
    tokens = float((batch.prompt_tokens + batch.tokens()).sum()) / 4  # of a mini-batch, over all replicas
    activations_gb = 2 * tokens * SHAPES["7B"].hidden / 1e9
    # Two all-reduces a layer between two nodes: in each of them both nodes send all of it once.
    assert gb[source >= 32].sum() == pytest.approx(2 * 2 * SHAPES["7B"].layers * activations_gb)


def test_flows_of_a_file_take_the_place_of_a_kinds_own(tmp_path: Path) -> None:
    path = tmp_path / "flows.csv"
    path.write_text("kind,source,target,gb\nweights,0,32,1.5\nweights,1,33,2\n")
    batch = ResponseBatch(64, 8, 4, 256, Piecewise(2048, ((0.5, 600.0), (0.9, 1800.0))))
    job = FabricJob("7B", RankLayout(0, 8, 2, 2), 32, 8, batch)
    own, given = iteration_of(job), iteration_of(replace(job, flows=read_flows(path, job.gpus)))
    assert [column.tolist() for column in given.traffic[WEIGHTS]] == [[0, 1], [32, 33], [1.5, 2.0]]
    assert given.traffic[PIPELINE].gb.tolist() == own.traffic[PIPELINE].gb.tolist()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind,source,target", "has no column gb"),
        ("kind,source,target,gb\nweigths,0,1,1", "line 2: kind: must be one of pipeline, gradients, weights, not 'weigths'"),
        ("kind,source,target,gb\nweights,0,64,1", "line 2: source and target must be GPUs from 0 to 63, not '0' and '64'"),
        ("kind,source,target,gb\nweights,0,1,0", "line 2: gb must be a number above 0, not '0'"),
    ],
)
def test_flows_that_are_none_are_one_line(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "flows.csv").write_text(text)
    with pytest.raises(InputError, match=re.escape(problem)):
        read_flows(tmp_path / "flows.csv", 64)
