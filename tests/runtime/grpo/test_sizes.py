"""Engines of several sizes: how nodes are cut, what they take together, what is refused, and when the size changes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollmux_segment import Footprint

from policies.rollout.places import make_at
from policies.rollout.rounds import Rounds
from rollmux_env.errors import InputError
from rollmux_env.timing.replica import ReplicaTiming
from runtime.grpo.control import ControlledRollout, control_of
from runtime.grpo.engine_slots import engine_slots_of, footprint_of
from runtime.grpo.job import Grpo
from runtime.grpo.messages import ResponseStatus
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import TaskJob
from runtime.machine import Node
from runtime.machines.forecast import forecasts
from runtime.phases import runtime_hook, set_session
from tests.runtime.grpo.here import TWO_CORES, Here, always_resizes
from tests.runtime.grpo.test_job import job
from tests.runtime.jobs.task_job import task_job

TIMING = ReplicaTiming(0.0, 1.0, 0.0, 0.1, 0.0, 0.0, 0.0, 2**40)


def spec_of(rollout: dict[str, Any], **more: Any) -> TaskJob:
    given = job("a", slo=2.0, **more) | {"rollout": {"engine": "torch", **rollout}}
    return task_job(given)


FEW = {"prompts_per_iteration": 2, "group_size": 2, "max_tokens": 16, "max_prompt_tokens": 12, "minibatches": 1}
ADAPTIVE = {"policy": "adaptive-parallelism", "sizes": [2]}


@pytest.mark.parametrize(
    ("rollout", "more", "problem"),
    [
        ({**ADAPTIVE, "sizes": [2, 2]}, {}, "jobs[0].rollout.sizes: must be different, and others than tensor_parallel, 1"),
        ({**ADAPTIVE, "sizes": [1]}, {}, "jobs[0].rollout.sizes: must be different, and others than tensor_parallel, 1"),
        ({**ADAPTIVE, "sizes": [0]}, {}, "jobs[0].rollout.sizes[0]: must be at least 1, not 0"),
        (
            {"sizes": [2]},
            {},
            "jobs[0].rollout.sizes: are of no use to the policy plain, which keeps the size of the engines; adaptive-",
        ),
        ({"sizes": [2], "policy": "tail-batching"}, {}, "jobs[0].rollout.sizes: are of no use to the policy tail-batching, which"),
        ({"policy": "parallelism-planner"}, {}, "jobs[0].rollout.policy: parallelism-planner chooses the size of the engines, and"),
        (
            {"policy": "learned:default", "sizes": [3]},
            {},
            "jobs[0].rollout.sizes: learned:default has learned with engines of 1, 2, 4, 8, and has no others, tensor_parallel",
        ),
        (ADAPTIVE, {"staleness": 1}, "jobs[0].rollout.sizes: with a staleness need `interruptible`: engines of another size go on"),
    ],
)
def test_a_bad_size_is_one_line(rollout: dict[str, Any], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=f"^test: {re.escape(problem)}") as error:
        spec_of(rollout, **more)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [{"class": "toy_jobs:Sleeper"}, {"attach": True}])
def test_jobs_whose_engines_are_their_own_have_no_sizes(kind: dict[str, Any]) -> None:
    given = {"id": "a", "iterations": 1, "slo": 2, **kind, "rollout": {"sizes": [2], "policy": "adaptive-parallelism"}}
    with pytest.raises(InputError, match=r"^test: jobs\[0\]\.rollout\.(sizes|policy): is a key of jobs with task"):
        parse_jobs({"version": 1, "jobs": [given]}, "test", Path())


def test_a_node_has_engines_of_every_size_on_the_same_devices() -> None:
    eight = Node("rollout-0", "rollout", "m", tuple(range(16)), tuple(range(8)), 4.0, "")
    seats = engine_slots_of([eight], spec_of({**ADAPTIVE, "tensor_parallel": 2, "sizes": [8, 1]}).rollout)
    assert [seat.size for seat in seats] == [2] * 4 + [8] + [1] * 8
    for size in (1, 2, 8):
        own = [seat.node for seat in seats if seat.size == size]
        assert {len(node.gpus) for node in own} == {size}
        assert [gpu for node in own for gpu in node.gpus] == [*range(8)] and [c for n in own for c in n.cores] == [*range(16)]
    cores = [seat.node.cores for seat in engine_slots_of([TWO_CORES], spec_of(ADAPTIVE).rollout)]
    assert cores == [(0,), (1,), (0, 1)]
    assert [seat.node for seat in engine_slots_of([TWO_CORES], spec_of({}).rollout)] == [
        TWO_CORES
    ]  # one engine on all of its cores


def test_a_size_that_does_not_divide_a_node_is_refused_before_anything_starts() -> None:
    nodes = [replace(TWO_CORES, cores=(0, 1, 2)), replace(TWO_CORES, name="training-0", pool="training")]
    problem = "job a: rollout.sizes: must divide the 3 cores of the rollout node rollout-0, tensor_parallel included, not be 2"
    with pytest.raises(InputError, match=f"^{problem}$"):
        forecasts([spec_of(ADAPTIVE)], nodes)
    (one,) = forecasts([spec_of({**ADAPTIVE, "sizes": [3]})], nodes)
    assert (one.on_node["rollout"], one.engines) == (3, 4)


def test_what_sleeps_counts_beside_what_is_in_use() -> None:
    awake, asleep = Footprint(10, 0, 0, 40, 80), Footprint(1, 20, 5, 38, 80)
    both = footprint_of([awake, awake, asleep], [1, 1, 2], 1)
    assert both == Footprint(21, 20, 5, 81, 160)  # at their peak the one that sleeps is there too


def test_the_planner_halves_after_four_calm_rollouts_and_doubles_after_preemptions() -> None:
    own = control_of(spec_of({"policy": "parallelism-planner", "tensor_parallel": 2, "sizes": [1]}), 1, {2: TIMING, 1: TIMING})
    assert own is not None
    rounds, sizes = Rounds(4, 4, 1.0), []
    for preemptions in (0, 0, 0, 0, 3, 4, 0):
        led = ControlledRollout(own, rounds.next())
        led.begin()
        sizes.append(led.size)
        assert sorted(set(led.where)) == [*range(2 // led.size)]
        led.end([ResponseStatus(place, 5, 1.0) for place in range(16)], 2.0, preemptions)
    assert sizes == [2, 2, 2, 2, 1, 2, 2]


def test_a_policy_in_a_run_knows_what_its_engines_cost() -> None:
    own = control_of(spec_of(ADAPTIVE), 2, {1: TIMING, 2: replace(TIMING, weights_s=0.5)})
    assert own is not None and own.setting.gpus == 2 and dict(own.setting.timings)[2].weights_s == 0.5
    make_at("learned:default", "run").begin_job(own.setting)


@pytest.mark.long
def test_a_jobs_memory_is_that_of_all_sizes_and_new_weights_reach_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two iterations on a policy that goes to the other size whenever it is asked: before the rollout, here."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Here, "nodes", lambda self, pool: (TWO_CORES,))
    found: dict[str, list[dict[str, float]]] = {}
    memory = {}
    try:
        for name, rollout in (("one", {}), ("two", {"policy": always_resizes(tmp_path / "policy"), "sizes": [2]})):
            run, made = Here(), Grpo(spec_of(rollout, seed=3, algorithm=FEW))
            set_session(run)
            found[name] = []
            for run.iteration in range(2):
                runtime_hook.renew()
                made.step()
                found[name].append(dict(runtime_hook.metrics))
            made.load("rollout")
            memory[name] = made.offload("rollout")
            made.close()
    finally:
        set_session(None)
    assert [one.pop("engine_size") for one in found["two"]] == [2.0, 1.0]
    assert [(one.pop("resizes"), one.pop("preemptions")) for one in found["two"]] == [(0.0, 0.0)] * 2
    versions = [[(one["sampled_version"], one["trained_version"]) for one in metrics] for metrics in found.values()]
    assert versions == [[(k, k) for k in range(2)]] * 2
    for one, two in zip(*found.values(), strict=True):
        assert {name: two[name] for name in ("reward", "response_tokens")} == {
            name: one[name] for name in ("reward", "response_tokens")
        }
    assert memory["one"].host <= memory["two"].host < 1.5 * memory["one"].host  # three engines have one copy of what is staged


@pytest.mark.long
def test_engines_of_all_sizes_go_on_from_a_checkpoint_that_one_of_them_has_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Here, "nodes", lambda self, pool: (TWO_CORES,))
    spec = spec_of({**ADAPTIVE, "policy": always_resizes(tmp_path / "policy")}, seed=3, algorithm=FEW)
    try:
        set_session(Here())
        made = Grpo(spec)
        runtime_hook.renew()
        made.step()
        made.checkpoint(tmp_path)()
        made.close()
        resumed = Grpo(spec)
        resumed.restore(tmp_path)
        resumed.load("rollout")
        workers: list[Any] = [worker.held for worker in resumed._engines]  # type: ignore[attr-defined]  # noqa: SLF001
        assert [worker._engine.version for worker in workers] == [1, 1, 0]  # noqa: SLF001
        workers[2].residency.restore()  # it takes what is staged when its time comes
        assert workers[2]._engine.version == 1  # noqa: SLF001
        assert [worker.residency.staged_version() is not None for worker in workers] == [True, False, False]
        resumed.close()
    finally:
        set_session(None)
