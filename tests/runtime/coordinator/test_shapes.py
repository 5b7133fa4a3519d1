"""Jobs that run in several shapes: what is estimated of them, and that they go from one to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.api import Event, Move, Place, Placement, Plan, State, Ticked, isolated, may_move
from rollmux_env.cluster.events import Arrived, Moved
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.cluster import Pool as PoolSpec
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import JobSpec
from runtime.journal.audit import audit
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.machines.forecast import with_shapes
from runtime.run.driver import RunDriver
from tests.runtime.pretend import NODES, carry_out, plan_of

MODEL: dict[str, Any] = {"task": "echo", "algorithm": {"prompts_per_iteration": 6, "group_size": 5}}


class NextShape:
    """Places jobs alone as they are written, and moves the first one to its next shape whenever `moves` says so."""

    keeps_slo = False
    wakes_every_s = 0.01
    moves = 0  # that are still to be made; a test counts them up

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            return (Place(event.job.id, isolated(event.job)),)
        if not isinstance(event, Ticked) or NextShape.moves < 1 or not may_move(state, "a") or state.is_paused("a"):
            return ()
        job, shape = state.job("a"), (state.shape("a") + 1) % (1 + len(state.job("a").shapes))
        NextShape.moves -= 1
        phases = job.phases(shape)
        return (Move("a", Placement(None, (), phases.rollout.nodes, phases.training.nodes, shape=shape)),)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    NextShape.moves = 0


def spec_of(*shapes: dict[str, Any], **more: Any) -> JobSpec:
    job = {"id": "a", "iterations": 3, "slo": 2.0, **MODEL, "shapes": [*shapes], **more}
    return parse_jobs({"version": 1, "jobs": [job]}, "x", Path("/")).jobs[0]


def estimated(spec: JobSpec, gpus: int = 0, gpu: str = "", memory_gb: float = 4.0) -> list[tuple[float, float]]:
    """(seconds, GB on a node) of the training in each shape."""
    nodes = [replace(node, gpus=(*range(gpus),)) for node in NODES]
    pool = PoolSpec(gpus_per_node=max(gpus, 1), usd_per_gpu_hour=1.0, gpu=gpu)
    job = Job(
        id="a",
        arrival_s=0.0,
        iterations=3,
        slo=2.0,
        rollout=Phase(nodes=spec.rollout.nodes, worst_case_s=30.0, host_memory_gb=2.0),
        training=Training(nodes=spec.training.nodes, worst_case_s=12.0, host_memory_gb=memory_gb),
    )
    shaped = with_shapes(spec, job, Cluster(rollout=pool, training=pool), nodes)
    assert [shaped.phases(k).training.nodes for k in range(1 + len(spec.shapes))] == [
        spec.training.nodes,
        *(shape.training.nodes for shape in spec.shapes if shape.training is not None),
    ]
    return [(shaped.phases(k).training.worst_case_s, shaped.phases(k).training.host_memory_gb) for k in range(len(spec.shapes) + 1)]


def test_on_nodes_that_the_timing_model_does_not_know_work_is_divided_evenly() -> None:
    known = estimated(spec_of({"training": {"nodes": 2}}, {"training": {"nodes": 4}}))
    assert [seconds for seconds, _ in known] == pytest.approx([12.0, 6.0, 12.0 * 8 / 30])  # the worker with most has 30, 15, 8
    memory = [gb for _, gb in known]
    assert memory == sorted(memory, reverse=True) and memory[0] == 4.0
    fewer = estimated(spec_of({"training": {"nodes": 1}}, training={"nodes": 2}))
    assert fewer[1][0] == pytest.approx(24.0) and fewer[1][1] > fewer[0][1] == 4.0
    assert fewer[1][1] - fewer[0][1] == pytest.approx(memory[0] - memory[1])


def test_on_a_gpu_that_it_knows_the_timing_model_says_how_much_is_gained() -> None:
    long = {"prompts_per_iteration": 64, "group_size": 8, "max_tokens": 3000, "max_prompt_tokens": 256}
    spec = spec_of({"training": {"nodes": 2}}, {"training": {"nodes": 4}}, algorithm=long, model={"hidden_size": 512, "layers": 8})
    own, two, four = (seconds for seconds, _ in estimated(spec, gpus=1, gpu="H100"))
    assert own == 12.0 and 6.0 < two < 12.0 and 3.0 < four < two  # what a training takes at least is not divided
    assert [seconds for seconds, _ in estimated(spec, gpus=1, gpu="H1")] == [12.0, 6.0, 3.0]


def test_what_the_file_states_is_taken() -> None:
    spec = spec_of({"training": {"nodes": 2, "worst_case_s": 11.0, "host_memory_gb": 9.0}}, {"training": {"nodes": 3}})
    assert estimated(spec)[1] == (11.0, 9.0) and spec.estimated_phases == {(2, "training")}


def test_the_scheduler_decides_about_jobs_with_shapes_as_it_did(tmp_path: Path) -> None:
    shape = {"training": {"nodes": 2, "worst_case_s": 0.5}}
    jobs = [{"id": name, "iterations": 6, "shapes": [shape]} for name in "ab"]
    assert carry_out(plan_of(tmp_path, jobs)) == "done"
    facts = read_facts(tmp_path / JOURNAL)
    assert audit(facts).problems == () and replay_journal(facts).lines == ()


def test_a_job_goes_to_another_shape_and_back_by_checkpoint_and_a_restart_keeps_it_there(tmp_path: Path) -> None:
    shape = {"training": {"nodes": 2, "worst_case_s": 0.5, "host_memory_gb": 0.1}}
    job = {"id": "a", "iterations": 12, "shapes": [shape], "options": {"phase_s": 0.002}}
    nodes = (*NODES, *(replace(node, name=node.name.replace("0", "2").replace("1", "3")) for node in NODES))
    plan = plan_of(tmp_path, [job], nodes=nodes, policy="tests.runtime.coordinator.test_shapes:NextShape")

    def moves(driver: RunDriver) -> None:
        NextShape.moves = 1

    seen: list[int] = []

    def stop(driver: RunDriver) -> None:
        seen.append(driver.run.handles["a"].place.shape)
        driver.stop()

    then: dict[int, Callable[[RunDriver], None]] = {3: moves, 6: stop}
    assert carry_out(plan, then=then) == "stopped" and seen == [1]
    resumed = replace(plan, resume=True)
    assert carry_out(resumed, then={2: moves}) == "done"
    facts = read_facts(tmp_path / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == ()
    assert [done.metrics["count"] for done in record.iterations] == [*range(1, 13)] and not record.failed
    assert [event.placement.shape for event in record.log if isinstance(event, Moved)] == [1, 0]
    trainings = [len(part.nodes) for part in record.phases if part.phase == "training" and not part.profile]
    changes = [size for k, size in enumerate(trainings) if k == 0 or size != trainings[k - 1]]
    assert changes == [1, 2, 1]
    (relaunched,) = record.relaunched
    assert next(len(p.nodes) for p in record.phases if p.phase == "training" and p.start_s > relaunched.at_s) == 2
