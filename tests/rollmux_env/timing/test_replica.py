"""What one rollout replica costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollmux_env.errors import InputError
from rollmux_env.timing.replica import ReplicaTiming

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
