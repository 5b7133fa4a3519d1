"""What one rollout replica costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.fabric.traffic import RankLayout, data_traffic
from rollmux_env.timing.hardware import GPUS, Link, achieved
from rollmux_env.timing.models import ALL_SHAPES
from rollmux_env.timing.replica import MixtureTiming, ReplicaTiming, replica_timing

REPLICA = ReplicaTiming(0.01, 0.004, 1e-8, 1e-4, 1e-4, 1e-9, 0.002, 100_000)


def test_a_decode_step_is_bound_by_memory_or_by_arithmetic() -> None:
    assert REPLICA.decode_s(8, 1000) == pytest.approx(0.01 + 0.004 + 1e-5)
    assert REPLICA.decode_s(256, 1000) == pytest.approx(0.01 + 0.0256)


def test_prefill_grows_faster_than_the_prompt() -> None:
    assert REPLICA.prefill_seconds(1000) == pytest.approx(0.002 + 0.1 + 0.001)


@pytest.mark.parametrize("wrong", [{"step_s": -1.0}, {"sequence_s": float("nan")}, {"kv_tokens": 0}, {"step_s": 0, "weights_s": 0}])
def test_impossible_figures_are_refused_in_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="replica timing: ") as error:
        replace(REPLICA, **wrong)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_an_all_reduce_sends_what_a_ring_sends(gpus: int) -> None:
    parts = np.random.default_rng(gpus).integers(0, 100, (gpus, gpus))  # each GPU's part of a tensor, by place
    total, sent = parts.sum(axis=0), 0
    for gathering in (False, True):  # the reduce-scatter, then the all-gather
        for hop in range(gpus - 1):
            before = parts.copy()
            for k in range(gpus):  # all GPUs send at once, one part each
                place = (k - hop + gathering) % gpus
                parts[(k + 1) % gpus, place] = before[k, place] + (0 if gathering else before[(k + 1) % gpus, place])
            sent += 1
    assert (parts == total).all()
    assert Link(0.0, 1e-9).all_reduce_s(gpus, gpus) == pytest.approx(sent), "a part is a byte, and a byte takes a second"
    flows = data_traffic(RankLayout(0, 1, 1, gpus), gpus)
    assert flows.gb[flows.source == 0].sum() == pytest.approx(sent)


def test_a_step_pays_for_the_messages_of_its_own_batch() -> None:
    model, gpu = ALL_SHAPES["14B"], achieved("H800", GPUS["H800"])
    timing = replica_timing(model, gpu, 4)
    message_s = 2 * model.layers * gpu.machine_link.all_reduce_s(model.hidden * gpu.number_bytes, 4)
    fixed_s = 2 * model.layers * gpu.machine_link.all_reduce_s(0.0, 4)
    for sequences in (1, 50):  # few enough that arithmetic hides behind the reading of the weights
        own_s = fixed_s + sequences * (message_s - fixed_s)
        assert timing.decode_s(sequences, 0) == pytest.approx(gpu.step_s + timing.weights_s + own_s)


def test_each_micro_batch_of_a_pipeline_reads_the_experts_of_its_own_sequences() -> None:
    gpu, model = achieved("H20", GPUS["H20"]), ALL_SHAPES["30B-A3B"]
    whole, piped = replica_timing(model, gpu, 2), replica_timing(model, gpu, 2, stages=4)
    assert isinstance(whole, MixtureTiming) and isinstance(piped, MixtureTiming)
    for sequences in (4, 64):
        assert piped.weights_seconds(sequences) == pytest.approx(4 * whole.weights_seconds(sequences / 4) / 4)
