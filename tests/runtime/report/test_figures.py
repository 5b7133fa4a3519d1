"""Figures of runs whose figures are known by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rollmux_env.report.tables import show
from runtime.journal.facts import JobFailed, PhaseSlice, SharingBound
from runtime.report.figures import figures
from runtime.report.shared_time import shared_times
from runtime.report.summary import summary
from tests.runtime.report.replayed import recorded, scenario_of

SWITCH = {"warm_s": 1, "cold_s": 5}
SWITCHING: dict[str, object] = {
    "rollout": {"worst_case_s": 10, "switch": SWITCH},
    "training": {"worst_case_s": 10, "switch": SWITCH},
}


def test_two_balanced_jobs_double_the_throughput_of_a_node_hour() -> None:
    record = recorded(scenario_of({"id": "a"}, {"id": "b"}), alone=True)
    found = figures(record)
    assert found["jobs"]["a"]["iteration_s"] == pytest.approx(20)
    assert found["jobs"]["b"]["slowdown"] == pytest.approx(1)
    assert found["throughput"]["gain"] == pytest.approx(2)
    # 20 meta-iterations of 20 s and one phase to fill the pipe, on 2 nodes; alone twice 20 times 20 s, on 2 nodes
    assert found["throughput"]["node_hours"] == pytest.approx(410 * 2 / 3600)
    assert found["throughput"]["solo_node_hours"] == pytest.approx(800 * 2 / 3600)
    assert found["throughput"]["gain_whole_run"] == pytest.approx(800 / 410)
    (group,) = found["groups"]
    assert group["iteration_s"] == pytest.approx({"a": 20, "b": 20})
    assert group["pools"]["rollout"] == pytest.approx({"running": 1, "switching": 0, "bubble": 0}, abs=1e-9)


def test_two_jobs_that_share_nodes_pay_half_of_them_each(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(recorded(scenario_of({"id": "a"}, {"id": "b", "slo": 1.6}), alone=True))
    # while both are there a node hour costs each 1 $; the one that ends last is alone with its training for 10 s, at 2 $/h
    rates = sorted(job["usd_per_hour"] for job in found["jobs"].values())
    assert rates == [pytest.approx(1.0), pytest.approx((400 * 1 + 10 * 2) / 410)]
    assert [job["usd_per_hour_solo"] for job in found["jobs"].values()] == [2.0, 2.0]
    assert found["usd"] == pytest.approx(410 * 2 / 3600) and found["usd_solo"] == pytest.approx(800 * 2 / 3600)
    show(summary(found))
    out = " ".join(capsys.readouterr().out.split())
    assert "Shared against alone job iteration alone slowdown SLO $/h alone $/h" in out
    assert "b 20.00 s 20.00 s 1.00x 1.60x 1.02 2.00" in out
    assert "dollars: 0.228 in all, 0.444 for the same iterations of the jobs alone" in out


def test_without_solo_runs_jobs_are_held_against_their_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(recorded(scenario_of({"id": "a", "sync_s": 5})))
    assert found["jobs"]["a"]["slowdown"] is None and found["jobs"]["a"]["profiled_iteration_s"] == 25
    show(summary(found))
    out = " ".join(capsys.readouterr().out.split())
    assert "Shared against alone, by profiles" in out and "a 25.00 s 25.00 s 1.00x 1.50x 2.00 2.00" in out


def test_a_sampler_that_is_not_the_trainer_is_in_results_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    record = recorded(scenario_of({"id": "a"}))
    assert "warnings" not in figures(record)["jobs"]["a"]
    gaps = [dataclasses.replace(done, metrics={"logprob_gap": 0.3 if done.number >= 2 else 0.01}) for done in record.iterations]
    found = figures(dataclasses.replace(record, iterations=tuple(gaps)))
    (warning,) = found["jobs"]["a"]["warnings"]
    assert warning["iteration"] == 2 and warning["text"].startswith(
        "log-probabilities of sampler and trainer differ by 0.3 a token"
    )
    show(summary(found))
    assert "a: iteration 3: log-probabilities of sampler and trainer" in " ".join(capsys.readouterr().out.split())


def test_a_job_alone_leaves_each_pool_idle_half_of_the_time_and_gains_nothing() -> None:
    found = figures(recorded(scenario_of({"id": "a"}), alone=True))
    assert found["throughput"]["gain"] == pytest.approx(1)
    assert found["pools"]["rollout"] == pytest.approx({"running": 0.5, "switching": 0, "bubble": 0.5})


def test_the_bound_of_a_run_is_what_its_phases_gain_in_parallel() -> None:
    record = recorded(scenario_of({"id": "a"}, {"id": "b"}), alone=True)
    bounds = (
        SharingBound(("a rollout", "b training"), (2, 2), (2.5, 2)),
        SharingBound(("b rollout", "a training"), (2, 2), (2, 2)),
    )
    gained = figures(dataclasses.replace(record, bounds=bounds))["throughput"]
    assert gained["bound"] == pytest.approx(8 / 4.5)
    assert gained["of_bound"] == pytest.approx(2 / (8 / 4.5))


def test_nothing_is_said_of_a_gain_where_a_job_was_not_run_alone() -> None:
    record = recorded(scenario_of({"id": "a"}, {"id": "b"}), alone=True)
    partly = dataclasses.replace(record, solo=tuple(done for done in record.solo if done.job_id == "a"))
    assert figures(partly)["throughput"] is None
    assert figures(partly)["jobs"]["a"]["slowdown"] == pytest.approx(1)


def test_rewards_are_those_of_the_first_and_the_last_tenth() -> None:
    job = figures(recorded(scenario_of({"id": "a", "iterations": 40})))["jobs"]["a"]
    assert (job["reward_first"], job["reward_last"]) == (pytest.approx(0.15), pytest.approx(3.75))
    assert (job["iterations"], job["of"], job["failed"], job["strategy"]) == (40, 40, None, "isolated")


def test_held_out_rewards_are_those_of_the_first_and_the_last_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    record = recorded(scenario_of({"id": "a", "iterations": 25}))
    assert figures(record)["jobs"]["a"]["eval_reward_last"] is None
    done = tuple(
        dataclasses.replace(one, metrics=one.metrics | ({"eval_reward": one.number / 10} if one.number in (0, 10, 20) else {}))
        for one in record.iterations
    )
    found = figures(dataclasses.replace(record, iterations=done))
    assert (found["jobs"]["a"]["eval_reward_first"], found["jobs"]["a"]["eval_reward_last"]) == (0, 2)
    show(summary(found))
    out = capsys.readouterr().out
    assert "held out" in out and "0.000 -> 2.000" in out


def test_cold_and_warm_switches_are_told_apart_by_stage() -> None:
    job = figures(recorded(scenario_of({"id": "a", **SWITCHING}, {"id": "b", **SWITCHING})))["switches"]["b"]["rollout"]
    assert (job["cold_s"], job["warm_s"], job["times_faster"]) == (pytest.approx(5), pytest.approx(1), pytest.approx(5))
    assert job["cold_stages_s"] == {"weights": pytest.approx(2.5)}
    assert job["warm_stages_s"] == {"weights": pytest.approx(0.5), "load": pytest.approx(1), "offload": 0}


def test_making_a_job_is_part_of_its_cold_start_even_when_that_was_for_its_profile() -> None:
    record = recorded(scenario_of({"id": "a", **SWITCHING}))
    made = PhaseSlice("a", "init", True, -1, -1, "rollout", (0,), ("rollout-0",), 0, 0, 3, 0, 3, cold=True)
    job = figures(dataclasses.replace(record, phases=(made, *record.phases)))["switches"]["a"]
    assert (job["rollout"]["cold_s"], job["training"]["cold_s"]) == (pytest.approx(8), pytest.approx(5))


def test_the_shared_time_of_a_group_is_when_all_members_are_warm_and_none_has_left() -> None:
    record = recorded(scenario_of({"id": "a"}, {"id": "b", "arrival_s": 100, "iterations": 5}))
    (shared,) = shared_times(record)
    ends = {job_id: [part.end_s for part in record.iterations if part.job_id == job_id] for job_id in ("a", "b")}
    assert (shared.jobs, shared.from_s, shared.until_s) == (("a", "b"), ends["b"][0], ends["b"][-1])
    once = [part for part in record.iterations if part.job_id == "a" or part.number == 0]  # b is parked after its first iteration
    assert shared_times(dataclasses.replace(record, iterations=tuple(once))) == []


def test_a_parked_job_has_its_iterations_in_each_group_without_the_time_between(capsys: pytest.CaptureFixture[str]) -> None:
    """The short job comes at 110 s; the long one continues at 200 s, and pauses for 5 s."""
    long, short = {"id": "long", "slo": 9}, {"id": "short", "slo": 9, "iterations": 4, "arrival_s": 110}
    scenario = scenario_of(long, short, max_nodes=1, migration_s=5, min_run_s=0)
    found = figures(recorded(scenario, "solo,order=attained,park=true"))
    alike = [(group["jobs"], group["shared_s"], *group["iteration_s"].values()) for group in found["groups"]]
    assert alike == [(["long"], 100, 20), (["short"], 60, 20), (["long"], pytest.approx(260), pytest.approx(20))]
    show(summary(found))
    out = " ".join(capsys.readouterr().out.split())
    assert "long: parked 1 time; its iterations are without these 80.0 s" in out
    assert "rollout, long alone, warm, group 0" in out and "rollout, long alone, warm, group 2" in out
    assert "rollout, short alone, warm 50.0%" in out


def test_a_job_that_failed_has_its_problem_and_no_figures() -> None:
    record = recorded(scenario_of({"id": "a"}))
    found = figures(dataclasses.replace(record, failed=(JobFailed(1.0, "poison", "init", "it has no tongue"),)))
    assert found["jobs"]["poison"]["failed"] == "it has no tongue"
    assert found["jobs"]["poison"]["iteration_s"] is None
    assert found["throughput"] is None


def test_a_run_that_was_killed_before_anything_happened_still_has_figures() -> None:
    record = recorded(scenario_of({"id": "a"}))
    empty = dataclasses.replace(record, log=(), profiled=(), phases=(), iterations=(), ended=None)
    found = figures(empty)
    assert (found["outcome"], found["jobs"], found["pools"]["rollout"], found["permit_ms"]) == ("killed", {}, None, None)


def test_syncs_and_permits_are_counted() -> None:
    found = figures(recorded(scenario_of({"id": "a", "sync_s": 2}, {"id": "b"})))
    assert found["syncs"] == {"count": 20, "mean_s": pytest.approx(2), "beside_others": 20}
    assert found["permit_ms"]["p50"] == pytest.approx(1)
    json.dumps(found, allow_nan=False)


def test_a_job_that_changes_its_shape_has_figures_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    job: dict[str, object] = {
        "slo": 9,
        "rollout": {"worst_case_s": 15, "actual": {"mean_fraction": 0.8}},
        "training": {"worst_case_s": 8},
        "shapes": [{"training": {"nodes": 2, "worst_case_s": 4}}],
    }
    scenario = scenario_of({"id": "a"} | job)
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"migration_s": 0.0})})
    found = figures(recorded(scenario, policy="tests.runtime.test_compare:TakesTheSecondShape"))
    own, other = found["jobs"]["a"]["shapes"]
    assert [used["shape"] for used in (own, other)] == [0, 1] and own["iterations"] == other["iterations"] == 10
    assert [used["nodes"] for used in (own, other)] == [{"rollout": 1, "training": 1}, {"rollout": 1, "training": 2}]
    assert [used["worst_case_s"] for used in (own, other)] == [{"rollout": 15, "training": 8}, {"rollout": 15, "training": 4}]
    assert own["phase_s"] == pytest.approx({"rollout": 12, "training": 8})
    assert other["phase_s"] == pytest.approx({"rollout": 12, "training": 4})
    assert [(used["iteration_s"], used["alone_s"]) for used in (own, other)] == [(pytest.approx(20), 23), (pytest.approx(16), 19)]
    show(summary(found))
    assert "a 1 1 + 2 10 12.00 s (15.00 s) 4.00 s (4.00 s) 16.00 s 19.00 s" in " ".join(capsys.readouterr().out.split())
