"""The files of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rollmux_env.cluster.events import Admitted
from rollmux_env.report.tables import show
from runtime.journal.facts import PROFILING_GROUP, Assigned, JobFailed, PhaseSlice, Returned
from runtime.report.folder import gantt_of, trace_of, write_report
from runtime.report.scalars import scalars
from runtime.report.summary import summary
from tests.runtime.report.replayed import recorded, scenario_of


def test_a_report_is_whole_and_written_again_over_an_older_one(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    record = recorded(scenario_of({"id": "a", "sync_s": 1}, {"id": "b"}), alone=True)
    for _ in range(2):
        found = write_report(tmp_path, record)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gantt.png", "results.json", "tensorboard", "trace.json"]
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(found))
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")
    assert [len([*(tmp_path / "tensorboard" / job).iterdir()]) for job in ("a", "b")] == [1, 1]


def test_a_record_whose_events_end_with_an_admission_has_no_picture() -> None:
    record = recorded(scenario_of({"id": "a"}, {"id": "b"}))
    assert gantt_of(record) is not None
    last = max(k for k, event in enumerate(record.log) if isinstance(event, Admitted))
    assert gantt_of(dataclasses.replace(record, log=record.log[: last + 1])) is None


def test_a_job_that_reports_no_number_does_not_take_the_report_of_the_others_with_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    record = recorded(scenario_of({"id": "a"}, {"id": "b"}))
    odd = [dataclasses.replace(part, metrics={"reward": float("nan")}) for part in record.iterations if part.job_id == "a"]
    even = [part for part in record.iterations if part.job_id == "b"]
    write_report(tmp_path, dataclasses.replace(record, iterations=(*odd, *even)))
    jobs = json.loads((tmp_path / "results.json").read_text())["jobs"]
    assert jobs["a"]["reward_last"] is None and jobs["b"]["reward_last"] > 0


def test_the_trace_shows_phases_syncs_and_profiling() -> None:
    record = recorded(scenario_of({"id": "a", "sync_s": 1}))
    profile = PhaseSlice("a", "rollout", True, -1, PROFILING_GROUP, "rollout", (0,), ("rollout-0",), 0, 0, 3, 0, 3)
    assigned, returned = Assigned(0.0, PROFILING_GROUP, "rollout", 0, "rollout-0"), Returned(4.0, "rollout-0")
    record = dataclasses.replace(record, phases=(profile, *record.phases), assigned=(assigned, returned))
    events = json.loads(trace_of(record))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert names == {"cluster", "profiling rollout", "group 0 rollout", "group 0 training", "beside phases"}
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["cat"] for event in slices].count("sync") == 20
    assert [event["cat"] for event in slices].count("rollout") == 21
    assert sum(event["dur"] for event in slices if event["cat"] == "sync") == 20 * 1_000_000


def test_tensorboard_has_metrics_and_seconds_by_iteration() -> None:
    found = {(tag, step): value for tag, value, step, _ in scalars(recorded(scenario_of({"id": "a"})), "a")}
    assert found["job/reward", 7] == pytest.approx(0.7)
    assert found["seconds/iteration", 7] == pytest.approx(20)
    assert found["seconds/rollout", 7] == found["seconds/training", 7] == pytest.approx(10)


def test_the_summary_says_rewards_gain_and_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    record = recorded(scenario_of({"id": "a", "sync_s": 1}, {"id": "b"}), alone=True)
    record = dataclasses.replace(record, failed=(JobFailed(1.0, "poison", "training", "loss is NaN"),))
    named = dataclasses.replace(record.phases[-1], stages={"[/odd]": 1.0})  # stages are named by jobs
    record = dataclasses.replace(record, phases=(*record.phases, named))
    from runtime.report.figures import figures

    show(summary(figures(record)))
    printed = capsys.readouterr().out
    for expected in (
        "0.050 -> 1.850",
        "direct packing",
        "poison failed: loss is NaN",
        "[/odd] 1.00 s",
        "throughput per node-hour against solo: 1.9",
    ):
        assert expected in printed
    assert "None" not in printed and "rollout, group 0 while it is shared" in printed


def test_the_summary_of_one_job_speaks_of_no_sharing(capsys: pytest.CaptureFixture[str]) -> None:
    from runtime.report.figures import figures

    show(summary(figures(recorded(scenario_of({"id": "a"}), alone=True))))
    printed = capsys.readouterr().out
    assert "rollout, a alone, warm" in printed and "1.00x of warm iterations; no two jobs shared a group" in printed
    assert "while" not in printed
