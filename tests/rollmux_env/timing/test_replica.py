"""What one rollout replica costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollmux_env.errors import InputError
from rollmux_env.timing.hardware import GPUS, achieved
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


def test_each_micro_batch_of_a_pipeline_reads_the_experts_of_its_own_sequences() -> None:
    gpu, model = achieved("H20", GPUS["H20"]), ALL_SHAPES["30B-A3B"]
    whole, piped = replica_timing(model, gpu, 2), replica_timing(model, gpu, 2, stages=4)
    assert isinstance(whole, MixtureTiming) and isinstance(piped, MixtureTiming)
    for sequences in (4, 64):
        assert piped.weights_seconds(sequences) == pytest.approx(4 * whole.weights_seconds(sequences / 4) / 4)
