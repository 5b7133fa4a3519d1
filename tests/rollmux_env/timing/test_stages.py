"""The cost model of a stage: the paper's formulas for the paper's layers, and what a replica and a training make of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.timing.generation import Replica, largest_batch
from rollmux_env.timing.hardware import GPUS, Hardware
from rollmux_env.timing.links import NETWORK_S, NVLINK_S, Link, link_between, machine_link
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.stages import Stage, pipeline, share_layers
from rollmux_env.timing.training_plans import TrainingPlan
from rollmux_env.timing.work import Work, iteration_s, rates

H, LAYERS = 768, 10
PAPERS = ModelShape(H, LAYERS, 6, 6, 128, 8 * H // 3, 1, True)
"""A model of the paper's layers: 12 H^2 weights each, all heads cached, and hardly any embedding."""
RATES = Hardware("here", 10.0, 2.0, 1000.0, 1000.0, 100.0, 100.0, 100.0, 100.0, 0.0, 0.0, 0.0, 1.0, 5.0)
LINK = Link(1e-5, 200.0)
C, M, BETA = 100e12, 1000e9, 200e9  # of these: operations, bytes and bytes a second


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-4)


def test_a_stage_of_the_papers_layers_costs_what_the_paper_says() -> None:
    b, s_in, layers, gpus = 16, 512, 4, 2
    stage = Stage(PAPERS, layers, RATES, gpus, LINK)
    tp_prefill = 4 * layers * (1e-5 + b * s_in * H * 2 / (gpus * BETA))
    assert stage.prefill_s(b, s_in) == near(24 * b * s_in * H**2 * layers / (gpus * C) + tp_prefill)
    tp_decode = 4 * layers * (1e-5 + b * H * 2 / (gpus * BETA))
    reading, arithmetic = 12 * H**2 * 2 * layers / (gpus * M), 24 * b * H**2 * layers / (gpus * C)
    assert stage.decode_s(b, 0) == near(reading + arithmetic + tp_decode)
    s = 1024
    memory = (12 * H**2 * 2 / gpus + 2 * b * s * H * 2 / gpus) * layers + 4 * b * s * H * 2
    assert stage.rollout_gb(b, s, b) == near(memory / 1e9)


def test_reading_the_cache_is_what_the_paper_leaves_out() -> None:
    stage = Stage(PAPERS, LAYERS, RATES, 1, LINK)
    assert stage.decode_s(16, 1000) - stage.decode_s(16, 0) == near(16 * 1000 * 2 * H * 2 * LAYERS / M)


def test_one_gpu_sends_no_messages_to_itself() -> None:
    assert Stage(PAPERS, LAYERS, RATES, 1, LINK).messages_s(1e6) == 0


@given(st.integers(1, 80), st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_layers_are_shared_in_proportion(layers: int, weights: list[int]) -> None:
    shared = share_layers(layers, tuple(map(float, weights)))
    if len(weights) > layers:
        assert shared is None
        return
    assert shared is not None
    assert sum(shared) == layers and min(shared) >= 1
    for one, weight in zip(shared, weights, strict=True):
        for other, less in zip(shared, weights, strict=True):
            assert weight < less or one >= other - 1


def test_a_replica_of_one_gpu_is_the_sum_of_its_steps() -> None:
    work = Work(PAPERS, 64, 512, 100, 200, reads_cache=False)
    replica = Replica((Stage(PAPERS, LAYERS, RATES, 1, LINK),), 8)
    stage = replica.stages[0]
    assert replica.batch_s(work) == pytest.approx(stage.prefill_s(8, 512) + 100 * stage.decode_s(8, 0))
    assert replica.responses_per_s(work) == pytest.approx(8 / replica.batch_s(work))


def test_the_stages_of_a_replica_work_on_micro_batches_at_the_same_time() -> None:
    work = Work(PAPERS, 64, 512, 100, 200, reads_cache=False)
    stages = pipeline(PAPERS, ((RATES, 1),) * 2, lambda hardware: hardware.weights_gb_s)
    assert stages is not None and [stage.layers for stage in stages] == [5, 5]
    hop_s = NETWORK_S + 4 * H * 2 / 5e9  # to another machine, 4 sequences a micro-batch
    prefill_hop_s = NETWORK_S + 4 * 512 * H * 2 / 5e9
    turn_s = stages[0].decode_s(4, 0) + hop_s
    expected = 2 * (stages[0].prefill_s(4, 512) + prefill_hop_s) + 100 * 2 * turn_s
    assert Replica(stages, 8).batch_s(work) == pytest.approx(expected)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    work = Work(PAPERS, 10**6, 512, 512, 1024, staleness=0)
    stages = (Stage(PAPERS, LAYERS, RATES, 1, LINK),)
    batch = largest_batch(stages, work)
    assert Replica(stages, batch).fits(work) and not Replica(stages, batch + 1).fits(work)
    assert largest_batch(stages, dataclasses.replace(work, responses=5)) == 5
    tiny = dataclasses.replace(RATES, memory_gb=0.1)
    assert largest_batch((Stage(PAPERS, LAYERS, tiny, 1, LINK),), work) == 0


def test_a_training_is_arithmetic_bubbles_and_sums_of_gradients() -> None:
    work = Work(PAPERS, 64, 512, 512, 512, updates=2)
    alone = TrainingPlan((Stage(PAPERS, LAYERS, RATES, 1, LINK),), 1, 8)
    operations = 8 * 12 * H**2 * LAYERS + 4 * PAPERS.attended * 1024
    assert alone.seconds(work) == near(64 * 1024 * operations / C)
    copies = TrainingPlan(alone.stages, 4, 8)
    each = 12 * H**2 * LAYERS * 4 / 4  # bytes of a ring's message
    assert copies.seconds(work) == near(alone.seconds(work) / 4 + 2 * 6 * (LINK_IN_MACHINE.latency_s + each / LINK_RATE))
    stages = pipeline(PAPERS, ((RATES, 1),) * 2, lambda hardware: hardware.training_tflops)
    assert stages is not None
    hop_s = 3 * (LINK_IN_MACHINE.latency_s + 1024 * H * 2 / LINK_RATE)
    micro_s = 1024 * operations / 2 / C + hop_s
    assert TrainingPlan(stages, 1, 8).seconds(work) == near(2 * (32 + 1) * micro_s)


LINK_IN_MACHINE = machine_link(RATES)
LINK_RATE = LINK_IN_MACHINE.gb_s * 1e9


def test_a_training_keeps_weights_gradients_and_a_share_of_the_optimizer() -> None:
    work = Work(PAPERS, 64, 512, 512, 512)
    stage = Stage(PAPERS, LAYERS, RATES, 2, LINK)
    weights = 12 * H**2 * LAYERS * (6 + 12 / 4)
    assert TrainingPlan((stage,), 4, 8).memory_gb(work) == near((weights + 1024 * H * (LAYERS * 2 + 34)) / 2 / 1e9)


def test_links_are_those_of_the_catalogue() -> None:
    h20, h800 = rates("H20-areal-hex", 28), rates("H800-areal-hex", 28)
    assert machine_link(h20) == Link(NVLINK_S, 450.0) and machine_link(h800) == Link(NVLINK_S, 200.0)
    assert link_between(h20, h20).gb_s == h20.inside_gb_s and link_between(h20, h800).gb_s == h800.cross_gb_s
    assert GPUS["H800-areal-hex"].tflops == 756 and GPUS["H800"].tflops == 989.5, "the papers' figures differ"


def test_both_sides_of_a_stale_job_run_at_the_same_time() -> None:
    assert iteration_s(30.0, 20.0, 1) == 30.0
    assert iteration_s(30.0, 20.0, 0) == 50.0
    assert [Work(PAPERS, 100, staleness=e).in_flight for e in (0, 1, 4)] == [100, 100, 400]
