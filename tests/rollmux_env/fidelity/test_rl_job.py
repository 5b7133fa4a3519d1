"""The parts of an RL step behave as their formulas say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.fidelity.rl_job import (
    RlJob,
    Workers,
    controller_s,
    generation_s,
    load_of,
    phases_s,
    rewards_s,
    rollout_replica,
    scoring_s,
    training_plan,
    update_s,
)
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.lengths import Lognormal, Piecewise, lognormal_of_mean, mean
from rollmux_env.timing.models import ALL_SHAPES, SHAPES
from rollmux_env.timing.replica import MixtureTiming, replica_timing

SHAPE = SHAPES["7B"]
BATCH = ResponseBatch(64, 4, 4, 200, Lognormal(8192, 600.0, 1.0))
EVEN = replace(BATCH, lengths=Piecewise(1000, ((0.0, 1000.0),)))
EIGHT = Workers("H20", 8)


@pytest.mark.parametrize(
    "model, billions, active",
    [("Llama-8B", 8.03, 8.03), ("30B-A3B", 30.5, 3.3), ("235B-A22B", 235.0, 22.0), ("671B-A37B", 671.0, 37.0)],
)
def test_other_shapes_have_the_parameters_that_their_makers_print(model: str, billions: float, active: float) -> None:
    shape = ALL_SHAPES[model]
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.06)
    looked_up = shape.vocabulary * shape.hidden  # of the embedding, which makers count as active
    assert (shape.matrix_parameters + looked_up) / 1e9 == pytest.approx(active, rel=0.1)
    assert shape.expert_parameters < shape.parameters
    assert (shape.expert_parameters > 0) == (model != "Llama-8B")


def test_a_mixture_reads_the_experts_that_any_token_is_sent_to() -> None:
    shape = ALL_SHAPES["30B-A3B"]
    timing = replica_timing(shape, achieved("H20", GPUS["H20"]))
    assert isinstance(timing, MixtureTiming)
    gb_s = 1e9 * achieved("H20", GPUS["H20"]).weights_gb_s
    apart = shape.expert_parameters / shape.experts * shape.active  # of one token
    resident = shape.parameters - shape.expert_parameters
    assert timing.weights_seconds(1.0) == pytest.approx(2 * (resident + apart) / gb_s)
    assert timing.weights_seconds(1000.0) == pytest.approx(2 * shape.parameters / gb_s, rel=1e-6)
    assert timing.decode_s(1, 0) < timing.decode_s(64, 0)


def test_even_responses_train_at_the_rate_of_all_gpus() -> None:
    gpu, tokens = GPUS["H20"], 1200
    operations = 2 * SHAPE.matrix_parameters * tokens + SHAPE.attended * tokens**2
    memory_s = SHAPE.layers * (45 * SHAPE.hidden + 12 * SHAPE.intermediate) * tokens / (0.8e12 * gpu.hbm_tb_s)
    forward_s = BATCH.count / 8 * (operations / (PHYSICAL.arithmetic * 1e12 * gpu.tflops) + memory_s)
    assert scoring_s(SHAPE, EIGHT, EVEN) == pytest.approx(forward_s + controller_s(EVEN))
    sums_s = 4 * 14 * (1e-5 + SHAPE.parameters * 4 / 8 / 450e9)
    beside_s = EVEN.updates * 1200 / (200 + 1000) * forward_s / (BATCH.count / 8) * 2  # backward of the last micro-batches
    assert sums_s < beside_s, "what copies send each other is hidden"
    assert update_s(SHAPE, EIGHT, EVEN) == pytest.approx(4 * forward_s + controller_s(EVEN))


def test_a_mini_batch_lasts_as_long_as_its_longest_response() -> None:
    def computing_s(workers: Workers, batch: ResponseBatch = BATCH) -> float:
        return training_plan(SHAPE, workers).computing_s(load_of(batch))

    alone = computing_s(Workers("H20", 4096))
    assert alone == pytest.approx(computing_s(Workers("H20", 2048)))
    assert alone > 8 / 4096 * computing_s(EIGHT)
    assert computing_s(Workers("H20", 8, 8)) < computing_s(EIGHT, replace(BATCH, updates=32))


def test_stages_of_a_pipeline_wait_for_each_other() -> None:
    piped, wide = Workers("H100", 16, 4, 4), Workers("H100", 16, 4)
    assert update_s(SHAPE, piped, BATCH) > update_s(SHAPE, wide, BATCH)


def test_decoding_pays_for_launches_and_messages() -> None:
    steps = {
        name: rollout_replica(SHAPE, workers).decode_s(1, 0) - rollout_replica(SHAPE, workers).weights_s
        for name, workers in {"graph": EIGHT, "eager": replace(EIGHT, eager=True), "two": Workers("H20", 8, 2)}.items()
    }
    assert steps["eager"] - steps["graph"] == pytest.approx(SHAPE.layers * (PHYSICAL.eager_layer_s - PHYSICAL.layer_s))
    message_s = 1e-5 + SHAPE.hidden * 2 / 2 / 450e9
    assert steps["two"] - steps["graph"] == pytest.approx(4 * SHAPE.layers * message_s)
    halved = rollout_replica(SHAPE, replace(EIGHT, number_bytes=1.0))
    assert halved.weights_s == pytest.approx(rollout_replica(SHAPE, EIGHT).weights_s / 2)


def test_turns_wait_for_their_environment() -> None:
    waiting = replace(BATCH, turns=3, environment_s=5.0)
    assert generation_s(SHAPE, EIGHT, waiting) == pytest.approx(generation_s(SHAPE, EIGHT, BATCH) + 10.0)


def test_phases_follow_each_other_or_overlap() -> None:
    job = RlJob("7B", EIGHT, EIGHT, BATCH, ("old_log_prob", "ref"))
    apart, overlapped = phases_s(job), phases_s(replace(job, overlapped=True))
    assert apart["training"] == pytest.approx(apart["old_log_prob"] + apart["ref"] + apart["update"])
    assert apart["step"] == pytest.approx(apart["gen"] + apart["training"] + rewards_s(BATCH))
    assert overlapped["step"] == pytest.approx(max(apart["gen"], apart["training"]) + rewards_s(BATCH))


def test_copies_divide_the_gpus() -> None:
    with pytest.raises(InputError, match="do not divide 8"):
        Workers("H20", 8, 3)


@pytest.mark.parametrize("tokens", [500.0, 3200.0])
def test_a_lognormal_has_the_mean_that_is_asked_for(tokens: float) -> None:
    assert mean(lognormal_of_mean(4096, tokens, 1.0)) == pytest.approx(tokens, rel=1e-6)
    with pytest.raises(InputError, match="cap of 4096"):
        lognormal_of_mean(4096, 4096.0, 1.0)


def test_the_order_of_responses_is_the_same_each_time() -> None:
    assert np.all([update_s(SHAPE, EIGHT, BATCH) == update_s(SHAPE, EIGHT, BATCH) for _ in range(3)])
