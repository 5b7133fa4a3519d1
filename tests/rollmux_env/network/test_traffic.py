"""Flows from shapes: every collective moves the bytes that it must, no rank more than its share."""

from __future__ import annotations

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.network.steps import GRADIENTS, PIPELINE, WEIGHTS, FabricJob, iteration_of
from rollmux_env.network.traffic import (
    Layout,
    Traffic,
    data_traffic,
    expert_traffic,
    pipeline_traffic,
    tensor_traffic,
    weight_traffic,
)
from rollmux_env.timing.lengths import Piecewise
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.rl_job import Batch

LAYOUT = Layout(16, 4, 3, 2)  # GPUs 16 to 39


def sent(traffic: Traffic, gpus: int = 64) -> list[float]:
    return [float(gb) for gb in np.bincount(traffic.source, traffic.gb, gpus)]


def received(traffic: Traffic, gpus: int = 64) -> list[float]:
    return [float(gb) for gb in np.bincount(traffic.target, traffic.gb, gpus)]


def test_ranks_of_a_tensor_parallel_group_stand_together_then_replicas_then_stages() -> None:
    assert LAYOUT.ranks[:, :, 0].tolist() == [[16, 20], [24, 28], [32, 36]] and LAYOUT.gpus == 24


def test_a_pipeline_sends_activations_on_and_gradients_back() -> None:
    traffic = pipeline_traffic(LAYOUT, 8.0)
    assert sent(traffic)[16:40] == received(traffic)[16:40] == [2.0] * 8 + [4.0] * 8 + [2.0] * 8
    assert not pipeline_traffic(Layout(0, 4, 1, 2), 8.0).gb.size


@pytest.mark.parametrize("data", [1, 2, 3, 8])
def test_a_ring_moves_what_reduce_scatter_and_all_gather_must(data: int) -> None:
    """Each rank sends, and gets, (n - 1) / n of its part twice."""
    traffic = data_traffic(Layout(0, 4, 2, data), 16.0)
    share = 2 * 16.0 / 8 * (data - 1) / data
    assert sent(traffic, 8 * data) == pytest.approx([share] * 8 * data) and received(traffic, 8 * data) == sent(traffic, 8 * data)


def test_tensor_parallel_groups_inside_nodes_cross_no_fabric() -> None:
    assert not tensor_traffic(LAYOUT, 8.0, 8).gb.size
    wide = tensor_traffic(Layout(0, 16, 1, 2), 8.0, 8)  # two nodes: each GPU reduces an eighth with its twin in the other
    assert sent(wide, 32) == pytest.approx([2 * 8.0 / 8 / 2] * 32)
    assert set(zip((wide.source % 16).tolist(), (wide.target % 16).tolist(), strict=True)) >= {(0, 8), (8, 0), (7, 15)}


def test_experts_send_to_all_that_hold_some() -> None:
    traffic = expert_traffic(Layout(0, 2, 1, 8), 4, 8.0)
    assert sent(traffic, 16) == pytest.approx([6.0] * 16) and traffic.gb.size == 16 * 3
    assert set(traffic.target[traffic.source == 1].tolist()) == {3, 5, 7}
    assert not expert_traffic(Layout(0, 2, 1, 8), 1, 8.0).gb.size
    with pytest.raises(InputError, match="groups of 3 do not divide 8 replicas"):
        expert_traffic(Layout(0, 2, 1, 8), 3, 8.0)


def test_one_copy_of_the_weights_crosses_and_every_replica_gets_one() -> None:
    training, generation = Layout(0, 4, 2, 2), Layout(16, 2, 1, 4)
    traffic = weight_traffic(training, generation, 12.0)
    crossing = traffic.source < 16
    assert traffic.gb[crossing].sum() == pytest.approx(12.0)
    assert received(traffic, 24)[16:] == pytest.approx([6.0] * 8)


def test_an_iterations_computing_is_what_the_phase_time_model_says() -> None:
    batch = Batch(64, 8, 4, 256, Piecewise(2048, ((0.5, 600.0), (0.9, 1800.0))))
    job = FabricJob("7B", Layout(0, 8, 2, 2), 32, 4, batch)
    iteration = iteration_of(job)
    assert [step.pattern for step in iteration.steps] == [PIPELINE, GRADIENTS] * 4 + [WEIGHTS]
    pairs = zip(iteration.steps[:-1:2], iteration.steps[1::2], strict=True)
    updates = [sum(step.before_s + step.beside_s for step in pair) for pair in pairs]
    assert updates == pytest.approx([updates[0]] * 4) and min(updates) > 0
    gradients_gb = 2 * SHAPES["7B"].parameters / 1e9
    assert iteration.traffic[GRADIENTS].gb.sum() == pytest.approx(2 * gradients_gb)  # two replicas: each sends all of it once
    assert iteration.traffic[WEIGHTS].gb.sum() == pytest.approx(8 * gradients_gb)
    with pytest.raises(InputError, match="replicas of 16 GPUs must fit into nodes"):
        iteration_of(FabricJob("7B", Layout(0, 8, 2, 2), 32, 16, batch))
