"""How jobs are measured before they are placed: one after the other on cores, again without a core, and cold starts twice."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, Reprofiled, Warm
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiles import has_loaded, job_as_stated, load_profile, note_loaded, profile_key
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.spec import dump_job, job_of
from runtime.jobside.messages import PhaseReport
from runtime.journal.facts import PROFILING_GROUP, JobProfiled, PhaseSlice
from runtime.journal.record import ColdStarts, RunRecord, cold_starts_of
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, read_run
from runtime.machine import Pool
from runtime.machines import nodes
from tests.runtime.pretend import NODES, Pretended, carry_out, plan_of

ONE = (NODES[0], NODES[2])
BOTH: tuple[Pool, ...] = ("rollout", "training")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of one's own."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return tmp_path / "cache"


def job(job_id: str, **options: Any) -> dict[str, Any]:
    return {"id": job_id, "iterations": 5, "checkpoint": {"every": 1}, "options": options}


def begun(folder: Path, *arguments: Any, **more: Any) -> RunPlan:
    """A plan whose folder is there."""
    folder.mkdir()
    return plan_of(folder, *arguments, **more)


def carried_out(plan: RunPlan, **more: Any) -> RunRecord:
    """The record of a run that comes to its end, and whose journal is decided again as it was."""
    assert carry_out(plan, **more) == "done"
    assert replay_journal(read_facts(Path(plan.folder) / JOURNAL)).lines == ()
    return read_run(Path(plan.folder))


def cold_s(plan: RunPlan) -> tuple[tuple[str, ...], list[float]]:
    """What the cache says of the first job's cold starts: which are provisional, and how long they take, rounded."""
    kinds = [next(node for node in plan.nodes if node.pool == pool) for pool in BOTH]
    profile = load_profile(profile_key(plan.specs[0], kinds))
    assert profile is not None
    return profile.provisional, [round(part.cold_s) for part in profile.parts.values()]


def test_a_cold_start_after_a_restart_replaces_one_with_empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "dead_machines", lambda machines: set())
    plan = begun(tmp_path / "run", [job("a", cold_s=[43.0, 15.0])])
    record = carried_out(plan, loses="a")
    assert record.profiled[0].provisional == BOTH
    news = [event.job for event in record.log if isinstance(event, Reprofiled)]
    assert [(round(one.rollout.switch.cold_s), round(one.training.switch.cold_s)) for one in news] == [(15, 43), (15, 15)]
    assert cold_s(plan) == ((), [15, 15])


def test_the_first_load_of_another_run_replaces_it_too(tmp_path: Path) -> None:
    plan = begun(tmp_path / "run", [job("a", cold_s=[43.0])])
    carried_out(plan)
    assert cold_s(plan) == (BOTH, [43, 43])
    jobs = [job("a", cold_s=[43.0])]
    record = carried_out(begun(tmp_path / "again", jobs))
    assert (record.profiled[0].cached, record.profiled[0].provisional) == (True, BOTH)
    assert cold_starts_of(record).describe("a") == "from the cache of profiles"
    assert cold_s(plan) == ((), [43, 43])
    assert carried_out(begun(tmp_path / "third", jobs)).profiled[0].provisional == ()


def test_who_goes_on_with_a_run_knows_what_was_provisional(tmp_path: Path) -> None:
    plan = begun(tmp_path / "run", [job("a", cold_s=[43.0])])
    assert carry_out(plan, stops_after=2) == "stopped"
    record = carried_out(replace(plan, resume=True))
    assert len([event for event in record.log if isinstance(event, Reprofiled)]) == 2
    assert cold_s(plan) == ((), [43, 43])


def test_jobs_on_cores_of_one_machine_are_measured_one_after_the_other(tmp_path: Path) -> None:
    record = carried_out(begun(tmp_path / "run", [job("a"), job("b"), job("c")]))
    passes = [[part for part in record.phases if part.job_id == name and part.profile] for name in "abc"]
    for before, after in pairwise(passes):
        assert before[-1].end_s <= after[0].asked_s
    assert [fact.provisional for fact in record.profiled] == [BOTH, (), ()]  # the others find what the first has left


def test_jobs_on_gpus_are_measured_together(tmp_path: Path) -> None:
    gpus = tuple(replace(node, cores=(), gpus=(0,), device="1 GPU") for node in NODES)
    record = carried_out(begun(tmp_path / "run", [job("a"), job("b")], gpus))
    a, b = ([part for part in record.phases if part.job_id == name and part.profile] for name in "ab")
    assert b[0].asked_s <= a[-1].end_s
    assert [fact.provisional for fact in record.profiled] == [BOTH, BOTH]


def test_a_profile_is_written_when_it_is_measured_and_jobs_that_came_together_arrive_together(tmp_path: Path) -> None:
    gpus = tuple(replace(node, cores=(), gpus=(0,), device="1 GPU") for node in NODES)
    plan = begun(tmp_path / "run", [job("a"), job("b", phase_s=0.01)], gpus)
    carried_out(plan)
    facts = read_facts(Path(plan.folder) / JOURNAL)
    known = [place for place, fact in enumerate(facts) if isinstance(fact, JobProfiled)]
    measured = [place for place, fact in enumerate(facts) if isinstance(fact, PhaseSlice) and fact.profile]
    admitted = [place for place, fact in enumerate(facts) if isinstance(fact, Admitted)]
    assert known[0] < measured[-1] < known[1] < admitted[0]


def test_a_phase_that_had_no_core_is_measured_once_more(tmp_path: Path) -> None:
    plan = begun(tmp_path / "run", [job("a", runs_s=10.0, cold_s=[43.0], waits_s={"rollout": [5.0, 0.5]})])
    record = carried_out(plan)
    fact = record.profiled[0]
    assert [part.phase for part in record.phases if part.profile] == ["rollout", "training"] * 2
    assert fact.without_core == () and fact.job.rollout.worst_case_s == pytest.approx(10.0)
    assert cold_s(plan) == (BOTH, [43, 43])  # of the first pass


def test_a_phase_without_a_core_again_counts_without_that_time_and_is_not_kept(tmp_path: Path, cache: Path) -> None:
    waits_s = {"training": [5.0, 4.0, 9.0]}
    record = carried_out(begun(tmp_path / "run", [job("a", runs_s=10.0, waits_s=waits_s)]))
    fact = record.profiled[0]
    assert len([part for part in record.phases if part.profile]) == 4 and fact.without_core == ("training",)
    assert (fact.job.rollout.worst_case_s, fact.job.training.worst_case_s) == pytest.approx((10.0, 6.0))
    assert "the cold start of its rollout and training is provisional; its training had no core" in cold_starts_of(record).describe(
        "a"
    )
    assert not [*(cache / "profiles").glob("*")]


def test_a_guest_of_a_group_that_is_measured_once_more_is_so_again(tmp_path: Path) -> None:
    guests = [{**job(name, runs_s=1.0, waits_s={"rollout": [0.5]}), "iterations": 2, "arrival_s": 1e-6} for name in "ab"]
    record = carried_out(begun(tmp_path / "run", [{**job("host"), "iterations": 60}, *guests], ONE))
    measured = [part for part in record.phases if part.profile and part.job_id != "host"]
    assert len(measured) == 8 and all(part.group != PROFILING_GROUP for part in measured)


def test_a_run_that_stops_while_jobs_wait_to_be_measured_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Pretended._timed

    def stops(self: Pretended, handle: JobHandle, report: PhaseReport, profile: bool) -> PhaseReport:
        assert self.driver is not None
        self.driver.stop()
        return timed(self, handle, report, profile)

    plan = begun(tmp_path / "run", [job("a"), job("b")])
    with monkeypatch.context() as patch:
        patch.setattr(Pretended, "_timed", stops)
        assert carry_out(plan) == "stopped"
    carried_out(replace(plan, resume=True))


def test_a_cold_start_of_another_kind_replaces_nothing() -> None:
    states = {"worst_case_s": 1.0}
    spec = job_of({"id": "a", "iterations": 5, "slo": 1000, "attach": True, "rollout": states, "training": states})
    part = PhaseSlice("a", "rollout", False, 0, 0, "rollout", (0,), ("rollout-0",), 0.0, 1.0, 30.0, 16.5, 30.0, 0.5, cold=True)
    known = ColdStarts()
    known.profiled(JobProfiled(0.0, job_as_stated(spec, 0.0), False, {}, BOTH))
    others: tuple[dict[str, Any], ...] = ({"cold": False}, {"ok": False}, {"profile": True}, {"extra": True}, {"nodes": ("a", "b")})
    for other in others:
        assert known.observed(replace(part, **other), spec) is None
    assert known.observed(part, spec.model_copy(update={"staleness": 1})) is None
    assert known.observed(part, spec) == 15.0
    assert known.observed(part, spec) is None and known.describe("a") == "the cold start of its training is provisional"


def test_caches_that_were_deleted_are_empty(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "vllm").mkdir()
    assert not has_loaded("key")
    note_loaded("key")
    assert has_loaded("key") and not has_loaded("other")
    (tmp_path / "vllm").rmdir()
    assert not has_loaded("key")
    (cache / "loaded" / "key.json").write_text(json.dumps(["another start of the machine", []]))
    assert not has_loaded("key")
    (cache / "loaded" / "key.json").write_text("no mark")
    assert not has_loaded("key")


def test_jobs_that_were_measured_here_enter_warm_and_those_of_the_cache_cold(tmp_path: Path) -> None:
    """The first has a group on the nodes of its profile, and the second joins it there."""
    for folder, warm in (("first", [None, 0]), ("second", [])):
        plan = begun(tmp_path / folder, [job(name, cold_s=[3.0], runs_s=1.0) for name in "ab"], ONE, policy="rollmux,switches=true")
        record = carried_out(plan)
        assert [event.group for event in record.log if isinstance(event, Warm)] == warm
        assert [event.placement.group for event in record.log if isinstance(event, Admitted)] == [None, 0]


def test_a_label_is_the_class_that_orders_learn_from() -> None:
    states = {"worst_case_s": 1.0}
    entry = {"id": "a", "iterations": 5, "slo": 2, "attach": True, "label": "sweep", "rollout": states, "training": states}
    assert job_as_stated(job_of(entry), 0.0).class_name == "sweep"
    assert dump_job(job_of(entry)) == entry
