"""The cost model of a stage: the paper's formulas for the paper's layers, and what a replica and a training make of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.timing.calibration import PHYSICAL, ROLLMUX, Calibration
from rollmux_env.timing.hardware import GPUS, NETWORK_S, NVLINK_S, Hardware, Link, achieved, link_between
from rollmux_env.timing.models import ModelShape
from rollmux_env.timing.replica import Parallelism
from rollmux_env.timing.stages import Replica, Stage, largest_batch, pipeline, share_layers
from rollmux_env.timing.training import MiniBatch, TrainingPlan, even_load, even_plan, update_load
from rollmux_env.timing.work import IterationWork

H, LAYERS = 768, 10
PAPERS = ModelShape(H, LAYERS, 6, 6, 128, 8 * H // 3, 1, True)
"""A model of the paper's layers: 12 H^2 weights each, all heads cached, and hardly any embedding."""
RATES = Hardware("here", 10.0, 2.0, 1000.0, 1000.0, 100.0, 100.0, 100.0, 100.0, 0.0, 0.0, 0.0, 1.0, 5.0)
LINK = Link(1e-5, 200.0)
C, M, BETA = 100e12, 1000e9, 200e9  # of these: operations, bytes and bytes a second


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-4)


def test_a_stage_of_the_papers_layers_costs_what_the_paper_says() -> None:
    b, s_in, layers, gpus, others = 16, 512, 4, 4, 3
    stage = Stage(PAPERS, layers, RATES, gpus, LINK)
    tp_prefill = 4 * layers * (1e-5 + others * b * s_in * H * 2 / (gpus * BETA))  # one latency; the paper has one a GPU
    attention = b * s_in**2 * PAPERS.attended * layers / LAYERS / (gpus * C)  # the paper leaves it out
    tp_prefill += (b - 1) * 4 * layers * 1e-5  # a pass for each prompt; the paper reads all in one
    timing = stage.timing
    assert b * timing.prefill_seconds(s_in) == near(24 * b * s_in * H**2 * layers / (gpus * C) + tp_prefill + attention)
    tp_decode = 4 * layers * (1e-5 + others * b * H * 2 / (gpus * BETA))
    reading, arithmetic = 12 * H**2 * 2 * layers / (gpus * M), 24 * b * H**2 * layers / (gpus * C)
    assert timing.decode_s(b, 0) == near(max(reading, arithmetic) + tp_decode), "the paper has the sum"
    s = 1024
    memory = (12 * H**2 * 2 / gpus + 2 * b * s * H * 2 / gpus) * layers + 4 * b * s * H * 2
    assert stage.rollout_gb(b, s, b) == near(memory / 1e9)


def test_reading_the_cache_is_what_the_paper_leaves_out() -> None:
    stage = Stage(PAPERS, LAYERS, RATES, 1, LINK)
    timing = stage.timing
    assert timing.decode_s(16, 16 * 1000) - timing.decode_s(16, 0) == near(16 * 1000 * 2 * H * 2 * LAYERS / M)


def test_one_gpu_sends_no_messages_to_itself() -> None:
    assert Stage(PAPERS, LAYERS, RATES, 1, LINK).timing.decode_s(1, 0) == near(12 * H**2 * 2 * LAYERS / M)


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
    work = IterationWork(PAPERS, 64, 512, 100, 200, reads_cache=False)
    replica = Replica((Stage(PAPERS, LAYERS, RATES, 1, LINK),), 8)
    timing = replica.stages[0].timing
    assert replica.batch_s(work) == pytest.approx(8 * timing.prefill_seconds(512) + 100 * timing.decode_s(8, 0))
    assert replica.responses_per_s(work) == pytest.approx(8 / replica.batch_s(work))


def test_the_stages_of_a_replica_work_on_micro_batches_at_the_same_time() -> None:
    work = IterationWork(PAPERS, 64, 512, 100, 200, reads_cache=False)
    stages = pipeline(PAPERS, ((RATES, 1),) * 2, lambda hardware: hardware.weights_gb_s)
    assert stages is not None and [stage.layers for stage in stages] == [5, 5]
    hop_s = NETWORK_S + 4 * H * 2 / 5e9  # to another machine, 4 sequences a micro-batch
    prefill_hop_s = NETWORK_S + 4 * 512 * H * 2 / 5e9
    timing = stages[0].timing
    turn_s = timing.decode_s(4, 0) + hop_s
    expected = 2 * (4 * timing.prefill_seconds(512) + prefill_hop_s) + 100 * 2 * turn_s
    assert Replica(stages, 8).batch_s(work) == pytest.approx(expected)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    work = IterationWork(PAPERS, 10**6, 512, 512, 1024, staleness=0)
    stages = (Stage(PAPERS, LAYERS, RATES, 1, LINK),)
    batch = largest_batch(stages, work)
    assert Replica(stages, batch).fits(work) and not Replica(stages, batch + 1).fits(work)
    assert largest_batch(stages, dataclasses.replace(work, responses=5)) == 5
    tiny = dataclasses.replace(RATES, memory_gb=0.1)
    assert largest_batch((Stage(PAPERS, LAYERS, tiny, 1, LINK),), work) == 0


def test_a_training_is_arithmetic_bubbles_and_sums_of_gradients() -> None:
    load = even_load(ROLLMUX, 64, 1024, 1024, updates=2)
    alone = TrainingPlan((Stage(PAPERS, LAYERS, RATES, 1, LINK),), 1)
    operations = 8 * 12 * H**2 * LAYERS + 4 * PAPERS.attended * 1024
    assert alone.seconds(load) == near(64 * 1024 * operations / C)
    stages = pipeline(PAPERS, ((RATES, 1),) * 2, lambda hardware: hardware.training_tflops)
    assert stages is not None
    hop_s = 3 * (NVLINK_S + 1024 * H * 2 / NVLINK_RATE)
    micro_s = 1024 * operations / 2 / C + hop_s
    assert TrainingPlan(stages, 1).seconds(load) == near(2 * (32 + 1) * micro_s)


def test_a_sum_of_gradients_hides_behind_the_last_backward_pass() -> None:
    load, weights = even_load(ROLLMUX, 64, 1024, 1024), 12 * H**2 * LAYERS * 4
    stage = Stage(PAPERS, LAYERS, RATES, 1, LINK)
    whole_s, last_s = TrainingPlan((stage,), 1).seconds(load), TrainingPlan((stage,), 64).seconds(load)
    inside_s = 2 * 7 * (NVLINK_S + weights / 8 / NVLINK_RATE)  # a ring of 8, then each part over as many machines
    across_s = 2 * 7 * (NETWORK_S + weights / 8 / 8 / 5e9)
    assert last_s == near(whole_s / 64 + max(0.0, inside_s + across_s - whole_s / 64 / 2))
    assert last_s > whole_s / 64, "so many machines are too many to hide it"
    assert TrainingPlan((stage,), 4).seconds(load) == near(whole_s / 4)


systems = st.sampled_from([ROLLMUX, PHYSICAL])


@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(1, 16),
    systems,
)
def test_no_training_passes_the_one_with_all_at_the_cap(tokens: list[int], updates: int, copies: int, system: Calibration) -> None:
    updates, cap = min(updates, len(tokens)), max(tokens)
    plan = even_plan(PAPERS, dataclasses.replace(RATES, calibration=system.name), Parallelism(1, 1, copies))
    seconds = [plan.seconds(update_load(system, np.array(each), updates, cap)) for each in (tokens, [cap] * len(tokens))]
    assert 0 < seconds[0] <= seconds[1] * (1 + 1e-9)


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=40), st.integers(1, 16), systems)
def test_what_a_file_keeps_of_a_plan_gives_its_seconds(tokens: list[int], copies: int, system: Calibration) -> None:
    plan = even_plan(PAPERS, dataclasses.replace(RATES, calibration=system.name), Parallelism(1, 1, copies))
    load, part = update_load(system, np.array(tokens), 1, max(tokens), 1), MiniBatch.of(np.array(tokens))
    assert plan.timing(load).seconds(part) == near(plan.seconds(load))


NVLINK_RATE = RATES.nvlink_gb_s * 1e9


def test_a_training_keeps_weights_gradients_and_a_share_of_the_optimizer() -> None:
    work = IterationWork(PAPERS, 64, 512, 512, 512)
    stage = Stage(PAPERS, LAYERS, RATES, 2, LINK)
    weights = 12 * H**2 * LAYERS * (6 + 12 / 4)
    assert TrainingPlan((stage,), 4).memory_gb(work.micro_tokens) == near((weights + 1024 * H * (LAYERS * 2 + 34)) / 2 / 1e9)


def test_links_are_those_of_the_catalogue() -> None:
    h20, h800 = (achieved(name, GPUS[name]) for name in ("H20-areal-hex", "H800-areal-hex"))
    assert h20.machine_link == Link(NVLINK_S, 450.0) and h800.machine_link == Link(NVLINK_S, 200.0)
    assert link_between(h20, h20).gb_s == h20.inside_gb_s and link_between(h20, h800).gb_s == h800.cross_gb_s
    assert GPUS["H800-areal-hex"].tflops == 756 and GPUS["H800"].tflops == 989.5, "the papers' figures differ"


def test_a_stale_job_samples_for_several_iterations_at_once() -> None:
    assert [IterationWork(PAPERS, 100, staleness=e).in_flight for e in (0, 1, 4)] == [100, 100, 400]
