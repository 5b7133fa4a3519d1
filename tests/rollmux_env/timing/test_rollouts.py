from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from rollmux_env.timing.hardware import GPUS, Hardware, achieved
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import Parallelism, ReplicaTiming, replica_timing
from rollmux_env.timing.rollouts import Responses, batch_s, replica_s, rollout_s, worst_rollout_s
from rollmux_env.timing.training import even_load, even_plan
from tests.oracle.draw import examples

TIMINGS = [
    replica_timing(SHAPES[size], achieved(gpu, GPUS[gpu]), parallel)
    for gpu in GPUS
    for size, parallel in (("0.5B", 1), ("3B", 1), ("8B", 1), ("8B", 2), ("14B", 1), ("32B", 4))
]
timings = st.sampled_from(TIMINGS) | st.builds(
    ReplicaTiming,
    step_s=st.floats(1e-6, 1),
    weights_s=st.floats(0, 1),
    kv_s_per_token=st.floats(0, 1e-3),
    sequence_s=st.floats(0, 0.1),
    prefill_s_per_token=st.floats(0, 1e-3),
    prefill_s_per_token2=st.floats(0, 1e-6),
    prefill_s=st.floats(0, 1),
    kv_tokens=st.integers(2000, 10**7),
    message_s=st.floats(0, 0.01),
)
batches = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400)), min_size=1, max_size=24)


def loop_s(timing: ReplicaTiming, batch: list[tuple[int, int]]) -> float:
    """The plain definition: a step at a time."""
    total = sum(timing.prefill_seconds(prompt) for prompt, _ in batch)
    for step in range(max(length for _, length in batch)):
        live = [prompt + step for prompt, length in batch if length > step]
        total += timing.decode_s(len(live), sum(live))
    return total


@given(timings, batches)
def test_the_closed_form_is_the_sum_of_all_steps(timing: ReplicaTiming, batch: list[tuple[int, int]]) -> None:
    prompts, lengths = np.array(batch, dtype=np.int64).T
    assert batch_s(timing, prompts, lengths) == pytest.approx(loop_s(timing, batch), rel=1e-9)


@given(timings, st.integers(0, 300), st.integers(1, 500), st.integers(1, 200), st.integers(1, 9), st.integers(0, 10**6))
def test_the_worst_case_bounds_what_is_sampled(
    timing: ReplicaTiming, prompt: int, cap: int, batch: int, replicas: int, seed: int
) -> None:
    responses = Responses(batch, prompt, turns=1 + seed % 2, environment_s=seed % 3)
    lengths = np.random.default_rng(seed).integers(1, cap, batch, endpoint=True)
    lengths = np.minimum(lengths * responses.turns, cap * responses.turns)
    worst_s = worst_rollout_s(timing, replicas, responses, cap)
    assert rollout_s(timing, replicas, responses, lengths) <= worst_s * (1 + 1e-9)


@given(timings, st.integers(0, 300), st.integers(1, 500), st.integers(1, 200), st.integers(1, 9))
@example(ReplicaTiming(1.0, 1.0, 0.0, 0.0625, 0.0, 0.0, 0.0, 23402), 179, 124, 83, 1)  # a cache that holds one less
@example(ReplicaTiming(1.0, 1.0, 0.0, 0.0625, 0.0, 0.0, 0.0, 7394), 184, 124, 78, 1)
def test_more_work_is_never_faster_and_more_replicas_are_never_slower(
    timing: ReplicaTiming, prompt: int, cap: int, batch: int, replicas: int
) -> None:
    def seconds(prompt: int = prompt, cap: int = cap, batch: int = batch, replicas: int = replicas) -> float:
        return worst_rollout_s(timing, replicas, Responses(batch, prompt), cap)

    here = seconds() * (1 - 1e-9)
    assert seconds(batch=batch + 1) >= here
    assert seconds(cap=cap + 1) >= here
    assert seconds(prompt=prompt + 1) >= here
    assert seconds(replicas=replicas + 1) <= seconds() * (1 + 1e-9)


def trained_s(size: str, hardware: Hardware, devices: int, count: int, tokens: int) -> float:
    load = even_load(hardware.system, count, tokens, tokens)
    return even_plan(SHAPES[size], hardware, Parallelism(1, 1, devices)).seconds(load)


SIZES = sorted(SHAPES, key=lambda size: float(size[:-1]))


@pytest.mark.parametrize("gpu", GPUS)
def test_larger_models_of_a_family_take_longer_in_both_phases(gpu: str) -> None:
    responses, unlimited = Responses(256, 512), dataclasses.replace(achieved(gpu, GPUS[gpu]), memory_gb=1e6)
    for family in (["0.5B", "1.5B", "3B", "7B", "14B", "32B", "70B"], ["4B", "8B"]):
        rollouts = [worst_rollout_s(replica_timing(SHAPES[size], unlimited), 8, responses, 4096) for size in family]
        trainings = [trained_s(size, unlimited, 8, 256, 4608) for size in family]
        for seconds in (rollouts, trainings):
            assert seconds == sorted(seconds)


@given(st.sampled_from(SIZES), st.sampled_from(["H20", "H800"]), st.integers(1, 8))
def test_a_faster_gpu_is_never_slower(size: str, name: str, factor: int) -> None:
    gpu = GPUS[name]
    better = dataclasses.replace(gpu, tflops=gpu.tflops * factor, hbm_gb=gpu.hbm_gb * factor, hbm_tb_s=gpu.hbm_tb_s * factor)
    responses = Responses(256, 512)
    here, there = (worst_rollout_s(replica_timing(SHAPES[size], achieved("", one), 8), 2, responses, 2048) for one in (gpu, better))
    assert there <= here * (1 + 1e-9)


def test_trainings_on_more_gpus_are_never_slower() -> None:
    seconds = [trained_s("7B", achieved("H800", GPUS["H800"]), devices, 256, 9000) for devices in (1, 8, 16, 64)]
    assert seconds == sorted(seconds, reverse=True)


def test_the_shrinking_batch_makes_steps_cheaper() -> None:
    timing = replica_timing(SHAPES["8B"], achieved("H20", GPUS["H20"]))
    short, long = np.full(32, 512), np.array([100] * 31 + [4096])
    per_step = [batch_s(timing, short, np.full(32, 4096)) / 4096, batch_s(timing, short, long) / 4096]
    assert per_step[1] < 0.8 * per_step[0]


def test_what_does_not_fit_is_said_in_one_line() -> None:
    with pytest.raises(InputError, match="leave no room for a KV cache on 1 x H800"):
        replica_timing(SHAPES["70B"], achieved("H800", GPUS["H800"]))
    timing = dataclasses.replace(TIMINGS[0], kv_tokens=1000)
    with pytest.raises(InputError, match="a response of 1100 tokens"):
        worst_rollout_s(timing, 1, Responses(4, 100), 1000)
    with pytest.raises(InputError, match="a response of 1100 tokens"):
        replica_s(timing, np.array([100]), np.array([1000]))


@examples(50)
@given(timings, batches, st.integers(800, 5000))
def test_a_smaller_cache_is_never_faster(timing: ReplicaTiming, batch: list[tuple[int, int]], kv_tokens: int) -> None:
    prompts, lengths = np.array(batch, dtype=np.int64).T
    roomy = dataclasses.replace(timing, kv_tokens=10**6)
    small = dataclasses.replace(timing, kv_tokens=kv_tokens)
    assert replica_s(small, prompts, lengths) >= replica_s(roomy, prompts, lengths) * (1 - 1e-9)


def test_a_cache_that_costs_next_to_nothing_to_read_is_no_warning() -> None:
    timing = ReplicaTiming(1e-3, 0.0, 5e-324, 1.0, 0.0, 0.0, 0.0, 10**6)
    assert batch_s(timing, np.array([10]), np.array([20])) == pytest.approx(20 * 1.001)
