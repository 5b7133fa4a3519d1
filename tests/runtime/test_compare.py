"""The prediction of a run from its beginning."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmux_env.cluster.events import Admitted, Arrived, Event, Moved, Placement, Resumed, Ticked, isolated
from rollmux_env.cluster.plan import Move, Place, Plan
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.report.tables import show
from runtime.compare import compare, comparison_table
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run
from tests.fixtures import copied
from tests.runtime.report.replayed import recorded, scenario_of

SWITCH = {"warm_s": 1, "cold_s": 8}
SWITCHING: dict[str, object] = {
    "rollout": {"worst_case_s": 12, "switch": SWITCH},
    "training": {"worst_case_s": 10, "switch": SWITCH},
}


@pytest.mark.parametrize("dispatch", ["round-robin", "shortest-first"])
def test_a_run_that_goes_on_as_it_began_is_foretold_exactly(dispatch: str) -> None:
    jobs = ({"id": "a", "sync_s": 2}, {"id": "b", "slo": 2} | SWITCHING, {"id": "c", "arrival_s": 90, "iterations": 11, "slo": 2})
    found = compare(recorded(scenario_of(*jobs), dispatch=dispatch))
    assert found["iterations_seen"] == {"a": 4, "b": 4, "c": 3}
    for row in (*found["jobs"].values(), found["makespan"]):
        assert row["error"] == pytest.approx(0, abs=0.02)


def test_what_the_first_fifth_does_not_show_is_an_error_of_the_prediction() -> None:
    drifting: dict[str, object] = {"id": "a", "drift": [{"iteration": 10, "rollout": 2.0}]}
    found = compare(recorded(scenario_of(drifting)))
    assert found["jobs"]["a"] == {
        "predicted_s": pytest.approx(20),
        "measured_s": pytest.approx((6 * 20 + 10 * 30) / 16),
        "error": pytest.approx(20 / 26.25 - 1),
    }
    assert found["period_error"] == pytest.approx(1 - 20 / 26.25)


def test_varying_phases_are_foretold_in_the_mean() -> None:
    actual = {"mean_fraction": 0.7, "cv": 0.1}
    phase = {"worst_case_s": 10, "actual": actual}
    varying = {"rollout": phase, "training": phase, "iterations": 100}
    found = compare(recorded(scenario_of({"id": "a"} | varying, {"id": "b"} | varying)))
    assert found["period_error"] < 0.06


def test_a_job_that_waited_for_nodes_waits_in_the_prediction_too() -> None:
    """The first one gets faster than its beginning foretells, so in the prediction the other one comes while it runs."""
    scenario = scenario_of({"id": "a", "slo": 1, "drift": [{"iteration": 10, "rollout": 0.5}]}, {"id": "b", "slo": 1})
    pool = scenario.cluster.pools["rollout"].model_copy(update={"max_nodes": 1})
    cluster = scenario.cluster.model_copy(update={"rollout": pool, "training": pool})
    record = recorded(scenario.model_copy(update={"cluster": cluster}), policy="solo")
    admitted_s = {event.job_id: event.at_s for event in record.log if isinstance(event, Admitted)}
    assert admitted_s["b"] > admitted_s["a"]
    found = compare(record)
    assert found["jobs"]["a"]["error"] > 0.1 and found["jobs"]["b"]["error"] == pytest.approx(0, abs=0.02)


def test_the_table_names_jobs_and_makespan(capsys: pytest.CaptureFixture[str]) -> None:
    show(comparison_table(compare(recorded(scenario_of({"id": "a"})))))
    printed = capsys.readouterr().out
    assert "iteration of a" in printed and "makespan" in printed and "4 of a" in printed


def test_a_run_that_cannot_be_compared_says_why() -> None:
    record = recorded(scenario_of({"id": "a"}))
    with pytest.raises(InputError, match="job a has done 1 iterations; two or more are needed"):
        compare(dataclasses.replace(record, iterations=record.iterations[:1]))
    with pytest.raises(InputError, match="no job was placed"):
        compare(dataclasses.replace(record, log=()))
    job = next(event.job for event in record.log if isinstance(event, Arrived))
    again = (*record.log, Arrived(999.0, job), Admitted(999.0, "a", Placement(None, (), 1, 1)))
    with pytest.raises(InputError, match="job a was placed twice"):
        compare(dataclasses.replace(record, log=again))


def test_the_parts_of_an_iteration_are_all_of_it_and_the_largest_difference_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    drifting: dict[str, object] = {"id": "a", "sync_s": 3, "drift": [{"iteration": 10, "rollout": 2.0}]}
    found = compare(recorded(scenario_of(drifting)))
    (group,) = found["groups"]
    parts = group["jobs"]["a"]
    assert parts["predicted_s"] == pytest.approx(
        {"rollout": 10, "training": 10, "sync": 3, "switch": 0, "waiting": 0, "other": 0}, abs=1e-6
    )
    assert parts["measured_s"] == pytest.approx(parts["predicted_s"] | {"rollout": 10 + 10 * 10 / 16}, abs=1e-6)
    assert parts["iterations"] == 16
    assert group["largest"] == {"job": "a", "part": "rollout", "predicted_s": pytest.approx(10), "measured_s": pytest.approx(16.25)}
    show(comparison_table(found))
    assert "the rollouts of a take 6.250 s more than predicted" in " ".join(capsys.readouterr().out.split())


def test_switches_and_waiting_are_told_apart() -> None:
    record = recorded(scenario_of({"id": "a"} | SWITCHING, {"id": "b", "slo": 3} | SWITCHING))
    (group,) = compare(record)["groups"]
    for job in group["jobs"].values():
        for parts in (job["predicted_s"], job["measured_s"]):
            assert (parts["rollout"], parts["training"], parts["switch"]) == pytest.approx((12, 10, 2))
            assert sum(parts.values()) == pytest.approx(26)  # two rollouts with their switches
            assert parts["waiting"] == pytest.approx(2)
    assert group["largest"] is None


def test_a_job_is_parked_again_when_as_many_iterations_are_done() -> None:
    long, short = {"id": "long", "slo": 3, "iterations": 60}, {"id": "short", "slo": 3, "iterations": 12, "arrival_s": 390}
    scenario = scenario_of(long, short)
    pools = {name: pool.model_copy(update={"max_nodes": 1}) for name, pool in scenario.cluster.pools.items()}
    cluster = scenario.cluster.with_pools(pools).model_copy(update={"min_run_s": 60.0, "resume_s": 30.0, "max_group_size": 1})
    record = recorded(scenario.model_copy(update={"cluster": cluster}), policy="solo,order=shortest,park=true")
    assert [event.job_id for event in record.log if isinstance(event, Admitted)] == ["long", "short", "long"]
    found = compare(record)
    assert found["iterations_seen"] == {"long": 12, "short": 3}
    for row in (*found["jobs"].values(), found["makespan"]):
        assert row["error"] == pytest.approx(0, abs=0.03)  # the pause of 30 s is left out
    assert all(job["predicted_s"]["other"] < 0.1 for group in found["groups"] for job in group["jobs"].values())
    assert compare(continued_later(record, 100.0))["jobs"]["long"] == pytest.approx(found["jobs"]["long"])


def continued_later(record: RunRecord, by_s: float) -> RunRecord:
    """The record of a run in which the processes of the job that continues last need so long to start again."""
    since_s = max(event.at_s for event in record.log if isinstance(event, Resumed))
    times = ("asked_s", "start_s", "run_s", "done_s", "end_s")

    def later(one: Any) -> Any:
        ready_s = {"start_s": since_s + by_s} if one.start_s < since_s else {}
        moved = {name: getattr(one, name) + by_s for name in times if hasattr(one, name)} | ready_s
        return dataclasses.replace(one, **moved) if one.end_s > since_s else one

    return dataclasses.replace(record, phases=(*map(later, record.phases),), iterations=(*map(later, record.iterations),))


class MovesOnce:
    """Every job alone, until one moves when it has done ten iterations: the second, to the first's nodes."""

    keeps_slo = False
    wakes_every_s = 200.0
    move = Move("b", Placement(0, (0,)))

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            return (Place(event.job.id, isolated(event.job)),)
        return (self.move,) if isinstance(event, Ticked) and event.at_s == 200 else ()


def test_a_move_is_made_again_when_as_many_iterations_are_done() -> None:
    """Two jobs in two groups, then in one: both are foretold, the second in its old group and in its new one."""
    job: dict[str, object] = {"slo": 9, "iterations": 60}
    scenario = scenario_of({"id": "a"} | job, {"id": "b", "rollout": {"worst_case_s": 15}} | job)
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"migration_s": 0.0})})
    record = recorded(scenario, policy="tests.runtime.test_compare:MovesOnce")
    assert sum(isinstance(event, Moved) for event in record.log) == 1
    found = compare(record)
    assert [group["group"] for group in found["groups"]] == [0]
    for row in (*found["jobs"].values(), found["makespan"]):
        assert row["error"] == pytest.approx(0, abs=0.02)


def test_a_run_of_many_jobs_in_several_groups_that_come_and_go_is_compared() -> None:
    """Drift makes jobs leave in another order than is foretold, so groups end that others joined in the run."""
    random = np.random.default_rng(0)
    jobs: list[dict[str, object]] = [
        {
            "id": f"j{k}",
            "arrival_s": 60 * k,
            "iterations": int(random.integers(5, 25)),
            "slo": float(random.uniform(1.2, 3)),
            "rollout": {"worst_case_s": float(random.uniform(5, 20)), "nodes": int(random.integers(1, 3))},
            "training": {"worst_case_s": float(random.uniform(5, 20))},
            "drift": [{"iteration": 4, "rollout": float(random.uniform(0.3, 3))}],
        }
        for k in range(10)
    ]
    scenario = scenario_of(*jobs)
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"migration_s": 5.0})})
    record = recorded(scenario, policy="consolidate")
    found = compare(record)
    assert len(found["groups"]) > 1
    means: dict[str, list[tuple[int, float, float]]] = {job_id: [] for job_id in found["jobs"]}
    for group in found["groups"]:
        for job_id, job in group["jobs"].items():
            means[job_id].append((job["iterations"], sum(job["predicted_s"].values()), sum(job["measured_s"].values())))
    for job_id, row in found["jobs"].items():
        count = sum(number for number, _, _ in means[job_id])
        assert sum(n * seconds for n, seconds, _ in means[job_id]) / count == pytest.approx(row["predicted_s"])
        assert sum(n * seconds for n, _, seconds in means[job_id]) / count == pytest.approx(row["measured_s"])


def test_migrated_tails_are_foretold_by_the_first_ones() -> None:
    phases: dict[str, object] = {"rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 15}, "iterations": 100, "slo": 3}
    record = recorded(scenario_of({"id": "a"} | phases, {"id": "b"} | phases), dispatch="round-robin,migrate=0.8")
    assert any(span.tail for part in record.phases for span in part.spans)
    found = compare(record)
    assert found["period_error"] < 0.06 and abs(found["makespan"]["error"]) < 0.06


def test_what_the_machine_took_of_the_cores_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Rollouts take 10 s more from iteration 10 on; 8 of them without a core, which the run has measured."""
    record = recorded(scenario_of({"id": "a", "drift": [{"iteration": 10, "rollout": 2.0}]}))
    waits = (
        dataclasses.replace(part, core_wait_s=8.0) if part.phase == "rollout" and part.iteration >= 10 else part
        for part in record.phases
    )
    found = compare(dataclasses.replace(record, phases=tuple(waits)))
    assert found["jobs"]["a"]["error"] == pytest.approx(20 / 26.25 - 1)
    assert found["cores"] == {"before": 0.0, "after": pytest.approx(80 / (16 * 26.25))}
    show(comparison_table(found))
    assert "had no core for 0.0% of their seconds in the first iterations and 19.0% after" in capsys.readouterr().out
    assert compare(record)["cores"] is None


def test_a_recorded_service_with_a_move_and_three_groups(tmp_path: Path) -> None:
    record = read_run(copied("service", tmp_path))
    assert any(isinstance(event, Moved) for event in record.log)
    found = compare(record)
    assert [group["group"] for group in found["groups"]] == [1, 2]
    moved = next(group["jobs"]["moved"] for group in found["groups"] if "moved" in group["jobs"])
    assert moved["iterations"] == 32 and sum(moved["measured_s"].values()) == pytest.approx(found["jobs"]["moved"]["measured_s"])


class TakesTheSecondShape(MovesOnce):
    """The first job goes to its next shape, on nodes of its own."""

    move = Move("a", Placement(None, (), 1, 2, shape=1))


def test_a_job_that_goes_to_another_shape_is_foretold_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    """Its phases take four fifths of their worst cases in either shape; of the other one, the first fifth shows nothing."""
    actual = {"mean_fraction": 0.8, "cv": 0}
    job: dict[str, object] = {
        "slo": 9,
        "iterations": 30,
        "rollout": {"worst_case_s": 15, "actual": actual},
        "training": {"worst_case_s": 10, "actual": actual},
        "shapes": [{"training": {"nodes": 2, "worst_case_s": 5}}],
    }
    scenario = scenario_of({"id": "a"} | job)
    scenario = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"migration_s": 0.0})})
    found = compare(recorded(scenario, policy="tests.runtime.test_compare:TakesTheSecondShape"))
    own, other = found["jobs"]["a"]["shapes"]
    assert own == {
        "shape": 0,
        "nodes": {"rollout": 1, "training": 1},
        "iterations": 4,
        "predicted_s": pytest.approx(20),
        "measured_s": pytest.approx(20),
        "error": pytest.approx(0),
    }
    assert (other["shape"], other["nodes"], other["iterations"]) == (1, {"rollout": 1, "training": 2}, 20)
    assert other["predicted_s"] == pytest.approx(16, abs=0.02) and other["measured_s"] == pytest.approx(16)
    show(comparison_table(found))
    assert "iteration of a, shape 1 (1 + 2 nodes)" in " ".join(capsys.readouterr().out.split())
