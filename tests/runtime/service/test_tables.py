"""What `rollmux status` prints."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from rollmux_env.report.tables import show
from rollmux_env.scheduler.preview import Preview
from runtime.commands.status import _without_clocks
from runtime.journal.facts import NodeShareSpan
from runtime.service.figures import NodeUsage
from runtime.service.report import profile_of
from runtime.service.tables import preview_table, status_tables
from tests.runtime.report.replayed import scenario_of

JOB = {
    "id": "a",
    "state": "running",
    "group": 0,
    "nodes": ["rollout-0", "training-0"],
    "phase": "rollout",
    "iteration": 3,
    "iterations": 9,
    "iteration_s": 2.468,
    "alone_s": 2.0,
    "slowdown": 1.234,
    "slo": 2.0,
    "usd_per_hour": 1.25,
    "usd_per_hour_solo": 2.0,
    "at_risk": True,
    "metrics": {"reward": 0.5},
    "problem": None,
    "user": "ann",
    "priority": 2,
    "position": None,
    "key": None,
    "eta_s": None,
    "done_eta_s": 7300.0,
    "ended_s": None,
    "completion_h": None,
    "queue_h": 0.5,
    "parks": 0,
    "reason": None,
}
FAILED = {
    **JOB,
    "id": "b",
    "state": "failed",
    "group": None,
    "nodes": [],
    "phase": None,
    "iteration_s": None,
    "slowdown": None,
    "usd_per_hour": None,
    "problem": "init: [no] model",
    "done_eta_s": None,
}
WAITS = {**FAILED, "state": "waiting", "problem": None, "position": 1, "eta_s": 7300.0, "reason": "needs [more] nodes"}
REPORT: dict[str, Any] = {
    "now_s": 100.0,
    "users": [],
    "order": None,
    "completion": None,
    "folder": "/srv/x",
    "policy": "consolidate",
    "dispatch": "round-robin",
    "stopping": True,
    "paused": "journal.sqlite: cannot be written: database or disk is full",
    "jobs": [JOB, FAILED],
    "groups": [
        {
            "id": 0,
            "jobs": ["a"],
            "nodes": ["rollout-0", "training-0"],
            "period_s": 1.5,
            "usd_per_hour": 2.0,
            "usd_per_hour_solo": 3.5,
        }
    ],
    "pools": {"rollout": {"nodes": 2, "busy": 1, "idle": 0, "free": 1, "suspect": 0, "draining": 0, "utilization": 0.256}},
    "usd_per_hour": 2.0,
    "usd_per_hour_solo": 3.5,
    "throughput_gain": 1.75,
}


def test_every_job_group_and_pool_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    show(*status_tables(REPORT))
    text = " ".join(capsys.readouterr().out.split())
    assert "/srv/x: consolidate, round-robin, 2.00 $/h, 3.50 $/h if every job were alone, stopping" in text
    assert "paused: journal.sqlite: cannot be written: database or disk is full" in text
    assert "a running (rollout) 0 rollout-0 training-0 3 of 9 in 2.0 h yes 0.5" in text
    assert "b failed 3 of 9" in text and "b: init: [no] model" in text
    assert "a 2.47 s 2.00 s 1.23x 2.00x 1.25 2.00" in text
    assert "recent throughput per node-hour: 1.75x" in text
    assert "b 2.00 s" not in text, "a job without a place shares nothing"
    assert "0 1.50 2.00 3.50 rollout-0 training-0 a" in text and "rollout 2 1 0 1 0 0 26%" in text


def test_jobs_that_ended_long_ago_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """Not those that were submitted long ago: the first of these has ended last."""
    ended = [FAILED | {"id": f"e{k}", "state": "failed" if k % 2 else "done", "ended_s": (k or 15.0)} for k in range(15)]
    shown = {**REPORT, "jobs": [*ended[:8], JOB, *ended[8:]]}
    show(*status_tables(shown))
    text = " ".join(capsys.readouterr().out.split())
    assert "and 5 jobs that have ended (3 failed, 2 done): --all shows them" in text
    assert "e5 " not in text and "e3:" not in text and "e0 " in text and "e7:" in text and "a running" in text
    show(*status_tables(shown, every=True))
    assert "e1 " in (out := capsys.readouterr().out) and "--all" not in out


def test_the_time_that_passes_is_no_change() -> None:
    pools = {"rollout": {**REPORT["pools"]["rollout"], "utilization": 0.5}}
    later = [JOB | {"overdue": {"held_s": 9.0}, "usd": 2.0}, WAITS | {"queue_h": 0.75, "reason": "needs [more] nodes, for 12 s"}]
    jobs = [JOB | {"overdue": {"held_s": 8.0}}, WAITS | {"reason": "needs [more] nodes, for 11 s"}]
    users = [[{"user": "ann", "jobs": 1, "node_hours": hours, "usage_h": hours}] for hours in (1.0, 2.0)]
    before = _without_clocks(REPORT | {"jobs": jobs, "users": users[0]})
    assert before == _without_clocks(REPORT | {"now_s": 1000.0, "pools": pools, "jobs": later, "users": users[1]})
    assert before != _without_clocks(REPORT | {"jobs": [JOB, FAILED]})


def test_drains_name_the_jobs_that_they_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    drains = [
        {"node": node, "starts_s": starts_s, "deadline_s": 2e9, "jobs": ["a", "b"], "waits_for": waits_for, "overdue": overdue}
        for node, starts_s, waits_for, overdue in (("n0", 1.9e9, [], False), ("n1", None, ["b"], False), ("n2", None, ["b"], True))
    ]
    drains.append({"node": "n3", "starts_s": None, "deadline_s": None, "jobs": ["a"], "waits_for": [], "overdue": False})
    show(*status_tables(REPORT | {"drains": drains}))
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"n0 is drained from 2030-\S+ on, so that its jobs leave it by 2033-\S+ n1", out)
    assert re.search(r"n1 is drained, so that its jobs leave it by 2033-\S+; b cannot leave it", out)
    assert "n2 is held by a, b after its deadline, 2033-" in out and "n3 is drained; still on it: a" in out


def test_the_queue_says_when_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    show(*status_tables(REPORT))
    assert "waits" not in capsys.readouterr().out
    later = {**WAITS, "id": "c", "position": 2, "eta_s": None, "user": "", "priority": -1, "reason": "waits behind b"}
    show(*status_tables({**REPORT, "jobs": [JOB, later, WAITS]}))
    text = " ".join(capsys.readouterr().out.split())
    assert "1 b ann 2 in 2.0 h needs [more] nodes 2 c -1 unknown waits behind b" in text


def test_a_fleet_shows_keys_usage_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    done = {**JOB, "id": "d", "state": "done", "phase": None, "completion_h": 5.25, "done_eta_s": None}
    user = {"user": "ann", "jobs": 2, "nodes": 1.5, "usd_per_hour": 2.0, "node_hours": 7.0, "usage_h": 3.25, "quota": None}
    fleet = {
        "jobs": [{**WAITS, "key": 3.25, "done_eta_s": 10900.0}, done],
        "order": {"name": "fair", "unit": "node-hours used", "backfill": False, "park": True},
        "users": [user],
        "completion": {"jobs": 1, "mean_completion_h": 5.25, "completion_p95_h": 5.25, "mean_queue_h": 0.5},
    }
    show(*status_tables({**REPORT, **fleet}))
    text = " ".join(capsys.readouterr().out.split())
    assert "b waiting 3 of 9 in 3.0 h" in text and "d done 0 rollout-0 training-0 3 of 9 after 5.2 h" in text
    assert "fair, node-hours used expected why" in text and "1 b ann 2 3.25 in 2.0 h needs" in text
    assert "node-hours this month usage h longest run h weight" in text and "ann 2 1.5 2.00 7.0 3.2" in text
    assert "1 done, from arrival to departure 5.2 h on average, 95% within 5.2 h; without a place 0.5 h" in text


def test_a_dry_run_says_where_a_job_would_go_or_why_it_would_wait(capsys: pytest.CaptureFixture[str]) -> None:
    fits = Preview(True, "direct_packing", 3, 0.0, 20.0, {"new": 1.25, "other": 1.5}, None, 100.0, 7300.0, "")
    waits = Preview(False, None, None, None, None, {}, 2, 190.0, None, "waits behind b")
    show(preview_table({"new": asdict(fits), "late": asdict(waits)}, 100.0))
    text = " ".join(capsys.readouterr().out.split())
    assert "new group 3, direct packing 0.00 20.0 1.25x now in 2.0 h" in text
    assert "late place 2 of the queue in 2 min unknown waits behind b" in text


def held(from_s: float, until_s: float, *names: str) -> list[NodeShareSpan]:
    return [NodeShareSpan(name, from_s, until_s, 1.0, False) for name in names]


def test_utilization_counts_what_held_nodes_in_the_last_minutes() -> None:
    usage = NodeUsage()
    assert usage.share("rollout", 2, [], 0.0) == 0.0
    usage.add("rollout", held(10.0, 40.0, "rollout-0"), 40.0)
    usage.add("training", held(40.0, 50.0, "training-0", "training-1"), 50.0)
    assert usage.share("rollout", 2, [], 100.0) == pytest.approx(0.15)
    assert usage.share("rollout", 2, held(80.0, 100.0, "rollout-0"), 100.0) == pytest.approx(0.25)
    assert usage.share("training", 2, [], 100.0) == pytest.approx(0.1)
    usage.add("rollout", held(1000.0, 1030.0, "rollout-0"), 1030.0)
    assert usage.share("rollout", 2, [], 1100.0) == pytest.approx(0.05)  # 30 of 600 node-seconds
    usage.observed_from_s = 1000.0
    assert usage.share("rollout", 2, [], 1100.0) == pytest.approx(0.15)  # nothing is known of before


def test_utilization_counts_a_shared_node_by_the_parts_that_are_held() -> None:
    usage = NodeUsage()
    usage.add("rollout", [NodeShareSpan("rollout-0", 0.0, 4.0, 1.0, False), NodeShareSpan("rollout-0", 4.0, 8.0, 0.25, True)], 8.0)
    beside = [NodeShareSpan("rollout-0", 4.0, 8.0, 0.75, False)]
    assert usage.share("rollout", 1, beside, 8.0) == 1.0 and usage.share("rollout", 2, [], 10.0) == 5.0 / 20.0
    assert usage.share("training", 1, [], 8.0) == 0.0


def test_the_profile_of_a_job_is_that_of_the_shape_and_the_nodes_that_it_has() -> None:
    shape = {"training": {"nodes": 2, "worst_case_s": 6, "by_nodes": {"4": 4}}}
    shaped, plain = scenario_of({"id": "a", "shapes": [shape]}, {"id": "b"}).jobs
    assert profile_of(shaped, 1, 3) == {"rollout_s": 10, "training_s": 6, "sync_s": 0, "solo_s": 20, "shape": 1}
    assert profile_of(shaped, 1, 4)["training_s"] == 4
    assert profile_of(plain) == {"rollout_s": 10, "training_s": 10, "sync_s": 0, "solo_s": 20}


def test_what_others_have_written_moves_no_cursor_and_splits_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    figures = dict.fromkeys(("iteration_s", "alone_s", "slowdown", "slo", "usd_per_hour_solo"), 1e15)
    odd = {**JOB, **figures, "metrics": {"reward": 1e308}, "problem": "its \x1b[2J \u202eproblem\nforged"}
    groups = [{**REPORT["groups"][0], "period_s": 2e15, "usd_per_hour_solo": 1e15}]
    late = {**WAITS, "eta_s": 3.6e18}
    show(*status_tables({**REPORT, "jobs": [odd, late], "groups": groups, "usd_per_hour_solo": 1e15}))
    dry = {"fits": True, "strategy": "isolated", "group": 1, "delta_usd_per_hour": 1e15, "period_s": 1e15, "slowdown": {"a": 1e15}}
    dry["done_eta_s"] = 3.6e18
    show(preview_table({"a": dry}, 0.0))
    out = capsys.readouterr().out
    assert "00000" not in out and "1e+15x" in out and "2e+15" in out and "in 1e+15 h" in out
    assert "1e+308" in out and r"a: its \x1b[2J \u202eproblem\nforged" in out and "\x1b[2J" not in out
