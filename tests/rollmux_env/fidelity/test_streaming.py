"""Streamed steps: what the trainer waits for, against cases that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollmux_env.fidelity.batch import ResponseBatch
from rollmux_env.fidelity.rl_job import RlJob, Workers, phases_s
from rollmux_env.fidelity.streaming import StreamLimits, simulate_streamed_step
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.lengths import Lognormal, Piecewise
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import replica_timing

TIMING = replica_timing(SHAPES["7B"], achieved("H20", GPUS["H20"]))
EVEN = ResponseBatch(32, 4, 4, 200, Piecewise(1000, ((0.0, 1000.0),)))
LONG_TAILED = replace(EVEN, lengths=Lognormal(8192, 600.0, 1.0))


def test_without_staleness_the_trainer_waits_for_the_whole_rollout_when_all_end_together() -> None:
    step = simulate_streamed_step(TIMING, 1, EVEN, StreamLimits(4, 0.0, 32), piece_s=10.0, sync_s=2.0)
    rate_s = TIMING.decode_s(128, 128 * 700) + 128 * TIMING.prefill_s_per_token * 200 / 1000
    assert step.wait_s == pytest.approx(1000 * rate_s)
    assert step.step_s == pytest.approx(1000 * rate_s + 4 * 10.0 + 2.0)


def test_a_slow_trainer_never_waits_once_prompts_run_ahead() -> None:
    step = simulate_streamed_step(TIMING, 8, LONG_TAILED, StreamLimits(4, 1.0, 64), piece_s=1000.0, sync_s=2.0)
    assert step == pytest.approx((4002.0, 0.0))


def test_running_further_ahead_shortens_the_wait() -> None:
    waits = [
        simulate_streamed_step(TIMING, 8, LONG_TAILED, StreamLimits(4, ahead, 32), 10.0, 2.0).wait_s for ahead in (0.0, 0.25, 1.0)
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[-1]


def test_a_fast_trainer_is_paced_by_decoding() -> None:
    step = simulate_streamed_step(TIMING, 1, EVEN, StreamLimits(4, 1.0, 8), piece_s=0.001, sync_s=0.001)
    rate_s = TIMING.decode_s(32, 32 * 700) + 32 * TIMING.prefill_s_per_token * 200 / 1000
    assert step.step_s == pytest.approx(4 * 1000 * rate_s, rel=0.01)  # 32 prompts, eight at once


def test_a_streamed_job_fetches_responses_one_by_one() -> None:
    workers = Workers("H20", 8)
    job = RlJob("7B", workers, workers, LONG_TAILED, (), stream=StreamLimits(4, 1.0, 64))
    phases = phases_s(job)
    assert phases["gen"] >= LONG_TAILED.count * PHYSICAL.fetch_s
    assert phases["step"] >= phases["update"] + LONG_TAILED.count * PHYSICAL.fetch_s
    assert phases == phases_s(job)
