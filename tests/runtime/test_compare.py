"""The prediction of a run from its beginning."""

from __future__ import annotations

import dataclasses

import pytest

from rollmux_env.cluster.events import Admitted, Moved, Placement
from rollmux_env.errors import InputError
from rollmux_env.report.tables import show
from runtime.compare import compare, comparison_table
from runtime.facts import Span
from tests.runtime.report.replayed import recorded, scenario_of

SWITCH = {"warm_s": 1, "cold_s": 8}
SWITCHING = {"rollout": {"worst_case_s": 12, "switch": SWITCH}, "training": {"worst_case_s": 10, "switch": SWITCH}}


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
    pool = scenario.cluster.rollout.model_copy(update={"max_nodes": 1})
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
    with pytest.raises(InputError, match="moved"):
        compare(dataclasses.replace(record, log=(*record.log, Moved(5.0, "a", Placement(None, (), 1, 1)))))
    spans = (Span("rollout-0", 0.0, 1.0, 0.5, True),)
    with pytest.raises(InputError, match="tails were migrated"):
        compare(dataclasses.replace(record, phases=(dataclasses.replace(record.phases[0], spans=spans),)))
