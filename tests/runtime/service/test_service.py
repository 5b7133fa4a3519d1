"""A service on real Ray: jobs come and go while others run, and what it says of them is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollmux_env.cluster.events import Moved, Reprofiled, Withdrawn
from rollmux_env.errors import InputError
from runtime.journal.audit import check_run
from runtime.journal.write import JOURNAL
from runtime.output import LOGS, lines
from runtime.service.report import STATES
from tests.fixtures import copied
from tests.runtime.service.conftest import Served, Serving

SLEEPER = {"class": "toy_jobs:Sleeper"}
WORKERS = {"class": "toy_jobs:WithWorkers"}
OVER = ("done", "failed", "cancelled")


def metrics_of(service: Served) -> dict[tuple[str, ...], float]:
    """What Prometheus reads: by the name of a series and the values of its labels."""
    families = text_string_to_metric_families(service.ask("metrics"))
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def over(jobs: dict[str, dict[str, Any]]) -> bool:
    return all(job["state"] in OVER for job in jobs.values())


def test_five_jobs_of_which_one_is_cancelled_one_killed_one_poisoned_and_one_moved(serve: Serving, tmp_path: Path) -> None:
    service = serve("tests.runtime.toy_policies:MoveOnce", pairs=2)
    mover = {"journal": str(service.folder / JOURNAL), "does": {"rollout 20": "fact Moved mover"}}
    killed = {"folder": str(tmp_path), "does": {"train 3": "once; worker train die"}}
    service.submit(
        {"id": "mover", **WORKERS, "options": mover, "iterations": 40, "slo": 1000.0},
        {"id": "killed", **WORKERS, "options": killed, "iterations": 12, "checkpoint": {"every": 1}},
        {"id": "poisoned", **SLEEPER, "options": {"does": {"train 2": "raise"}}, "iterations": 9},
    )
    service.submit({"id": "cancelled", **SLEEPER, "iterations": 500}, {"id": "plain", **SLEEPER, "iterations": 15})
    service.until(lambda jobs: jobs["mover"]["group"] == 1 or jobs["mover"]["iteration"] > 20)  # it has moved
    service.until(lambda jobs: jobs["cancelled"]["iteration"] > 0)
    service.ask("cancel", "cancelled")
    jobs = service.until(over)
    assert {name: job["state"] for name, job in jobs.items()} == {
        "mover": "done",
        "killed": "done",
        "poisoned": "failed",
        "cancelled": "cancelled",
        "plain": "done",
    }
    assert jobs["poisoned"]["problem"] == "training: ValueError: it went wrong in two lines"
    with pytest.raises(InputError, match="job cancelled: has ended already: cancelled"):
        service.ask("cancel", "cancelled")
    record = service.stop()
    check_run(record)
    for name, total in {"mover": 40, "killed": 12, "plain": 15, "poisoned": 2}.items():
        assert [done.number for done in record.iterations if done.job_id == name] == [*range(total)], name
        assert jobs[name]["iteration"] == total
    assert [event.job_id for event in record.log if isinstance(event, Moved)] == ["mover"]
    assert [fact.job_id for fact in record.restarted] == ["killed"]
    counts = {name: [done.metrics["count"] for done in record.iterations if done.job_id == name] for name in ("mover", "killed")}
    assert counts == {"mover": [*range(1, 41)], "killed": [*range(1, 13)]}  # each trained on from where it was
    assert {path.name for path in (service.folder / LOGS).iterdir()} == set(jobs)
    logs = {name: [*lines(service.folder / LOGS / name)] for name in jobs}
    for name in ("plain", "killed", "mover"):
        mine = [line for line in logs[name] if "controller | " in line and "  iteration " in line]
        assert all(f"  iteration {k + 1} of {len(mine)}: " in line for k, line in enumerate(mine)), mine
        assert len(mine) == jobs[name]["iterations"], mine
    restarts = [line for line in logs["killed"] if "  restarted: " in line]
    assert [line.partition("restarted: ")[2] for line in restarts] == [fact.why for fact in record.restarted]
    assert any("  continues from its checkpoint after iteration " in line for line in logs["killed"])
    assert any("  ERROR in training: it went wrong in two lines" in line for line in logs["poisoned"])
    assert any("in _turn" in line for line in logs["poisoned"]) and logs["poisoned"][-1].startswith("controller | ")
    true_throughout(service.reports)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["consolidate", "learned:default"])
def test_a_job_is_moved_when_another_one_has_left_and_goes_on_where_it_was(serve: Serving, policy: str) -> None:
    service = serve(policy, pairs=2)
    job = {**WORKERS, "options": {"rollout_s": 0.5, "train_s": 0.5}, "slo": 1000.0, "iterations": 100}
    service.submit({"id": "a", **job}, {"id": "strict", **job, "slo": 1.45})  # it bears one beside it, not two
    jobs = service.until(lambda jobs: all(job["group"] is not None for job in jobs.values()))
    assert jobs["a"]["group"] == jobs["strict"]["group"], service.ask("news", 0)
    service.submit({"id": "b", **job})
    jobs = service.until(lambda jobs: jobs["b"]["iteration"] > 1)
    assert jobs["b"]["group"] != jobs["a"]["group"]
    service.ask("cancel", "strict")
    before = service.until(lambda jobs: jobs["a"]["group"] == jobs["b"]["group"])
    service.until(lambda jobs: all(jobs[name]["iteration"] > before[name]["iteration"] + 1 for name in ("a", "b")))
    record = service.stop()
    check_run(record)
    true_throughout(service.reports)
    (move,) = (event for event in record.log if isinstance(event, Moved))
    for name in ("a", "b"):
        done = [done for done in record.iterations if done.job_id == name]
        assert [one.number for one in done] == [*range(len(done))] and len(done) > 3
        assert [one.metrics["count"] for one in done] == [*range(1, len(done) + 1)]  # each trained on from where it was
        rollouts = [part for part in record.phases if part.job_id == name and part.phase == "rollout" and not part.profile]
        places = [*dict.fromkeys(part.nodes for part in rollouts)]
        assert [part.nodes for part in rollouts] == sorted((part.nodes for part in rollouts), key=places.index)  # never back
        assert len(places) == (2 if name == move.job_id else 1)
        if name == move.job_id:  # it was begun there once, from its checkpoint
            assert [part.cold for part in rollouts if part.nodes == places[1]].count(True) == 1
    assert not record.restarted  # a move is none


def true_throughout(reports: list[dict[str, Any]]) -> None:
    """What no report may say, alone or after another."""
    before: dict[str, dict[str, Any]] = {}
    for report in reports:
        jobs = {job["id"]: job for job in report["jobs"]}
        assert sum(report["states"].values()) == len(jobs) and set(report["states"]) == set(STATES)
        members = [name for group in report["groups"] for name in group["jobs"]]
        placed = [name for name, job in jobs.items() if job["state"] in ("running", "moving")]
        assert sorted(members) == sorted(placed)
        charged = {name: job["usd_per_hour"] for name, job in jobs.items() if job["usd_per_hour"] is not None}
        assert sorted(charged) == sorted(members)  # and evenly
        assert all(charged[name] == g["usd_per_hour"] / len(g["jobs"]) for g in report["groups"] for name in g["jobs"])
        assert report["usd_per_hour_solo"] == sum(group["usd_per_hour_solo"] for group in report["groups"]) >= 0
        assert all(jobs[name]["usd_per_hour_solo"] >= 2.0 and jobs[name]["alone_s"] > 0 for name in members)  # a node of each pool
        assert report["throughput_gain"] is None or report["throughput_gain"] > 0
        held = [node for group in report["groups"] for node in group["nodes"]]
        assert len(held) == len(set(held))
        for pool in report["pools"].values():
            assert pool["busy"] + pool["idle"] + pool["free"] + pool["draining"] == pool["nodes"] and min(pool.values()) >= 0
            assert pool["utilization"] <= 1
        for name, job in jobs.items():
            assert 0 <= job["iteration"] <= job["iterations"]
            assert job["state"] != "done" or job["iteration"] == job["iterations"]
            known = before.get(name, job)
            assert known["iteration"] <= job["iteration"]
            assert known["state"] not in OVER or known == job
        before = jobs


def test_who_waits_can_be_cancelled_and_the_next_one_takes_the_turn(serve: Serving) -> None:
    service = serve("solo")
    long = {**SLEEPER, "iterations": 1000}
    service.submit({"id": "a", **long}, {"id": "b", **long}, {"id": "c", **SLEEPER})
    jobs = service.until(lambda jobs: jobs["a"]["state"] == "running" and jobs["a"]["iteration"] > 0)
    assert jobs["b"]["state"] == jobs["c"]["state"] == "waiting" and service.reports[-1]["queue"] == ["b", "c"]
    service.ask("cancel", "b")
    service.ask("cancel", "a")
    jobs = service.until(lambda jobs: jobs["c"]["state"] == "done")
    assert jobs["a"]["state"] == jobs["b"]["state"] == "cancelled" and jobs["b"]["iteration"] == 0
    record = service.stop()
    assert [event.job_id for event in record.log if isinstance(event, Withdrawn)] == ["b"]
    check_run(record)


def test_what_cannot_be_taken_is_refused_whole_and_who_can_never_be_placed_fails(serve: Serving) -> None:
    service = serve("tests.runtime.toy_policies:Never")
    with pytest.raises(InputError, match=r"job wide: rollout\.nodes: asks for 2 nodes"):
        service.submit({"id": "a", **SLEEPER}, {"id": "wide", **SLEEPER, "rollout": {"nodes": 2}})
    service.submit({"id": "a", **SLEEPER})
    with pytest.raises(InputError, match="job a: this service has had a job of that name"):
        service.submit({"id": "b", **SLEEPER}, {"id": "a", **SLEEPER})
    with pytest.raises(InputError, match="job b: this service has no such job"):
        service.ask("cancel", "b")
    jobs = service.until(over)
    assert jobs["a"]["state"] == "failed" and jobs["a"]["problem"].startswith("placement: ") and [*jobs] == ["a"]
    assert service.ask("job", "a")["state"] == "failed"


def test_a_service_that_is_stopped_or_killed_goes_on_where_it_was(serve: Serving) -> None:
    first = serve()
    first.submit({"id": "a", **WORKERS, "iterations": 40}, {"id": "b", **SLEEPER}, {"id": "gone", **SLEEPER, "iterations": 1000})
    first.until(lambda jobs: jobs["b"]["state"] == "done" and jobs["a"]["iteration"] > 3 and jobs["gone"]["iteration"] > 0)
    first.ask("cancel", "gone")
    first.stop()
    second = serve(folder=first.folder)
    jobs = second.until(lambda jobs: jobs["a"]["iteration"] > 8)
    assert jobs["b"]["state"] == "done" and jobs["gone"]["state"] == "cancelled" and jobs["b"]["metrics"]["reward"] == 0.2
    second.kill()
    third = serve(folder=first.folder)
    third.submit({"id": "late", **SLEEPER})
    assert third.until(over)["a"]["iteration"] == 40
    with pytest.raises(InputError, match="job b: this service has had a job of that name"):
        third.submit({"id": "b", **SLEEPER})
    record = third.stop()
    check_run(record)
    assert len(record.relaunched) == 2
    mine = [done for done in record.iterations if done.job_id == "a"]
    assert [done.number for done in mine] == [*range(40)] and [done.metrics["count"] for done in mine] == [*range(1, 41)]
    assert sum(done.job_id == "late" for done in record.iterations) == 3
    for reports in (second.reports, third.reports):  # what a service told last, and had not written, is lost when it is killed
        true_throughout(reports)


@pytest.mark.long
def test_a_job_that_drifts_is_known_anew_and_one_that_suffers_from_it_is_moved(serve: Serving) -> None:
    service = serve(pairs=2)
    later = {f"rollout {k}": "sleep 0.75" for k in range(12, 40)}
    drifts = {**SLEEPER, "options": {"rollout_s": 0.05, "train_s": 0.05, "does": later}}
    suffers = {**SLEEPER, "options": {"rollout_s": 0.05, "train_s": 0.05}}
    service.submit(
        {"id": "drifts", **drifts, "slo": 6.0, "iterations": 40}, {"id": "suffers", **suffers, "slo": 6.0, "iterations": 60}
    )
    jobs = service.until(lambda jobs: jobs["suffers"]["at_risk"] or over(jobs))
    assert jobs["suffers"]["slowdown"] > 6 and jobs["suffers"]["group"] == jobs["drifts"]["group"] == 0
    assert metrics_of(service)["rollmux_slo_slack", "suffers"] < 0
    jobs = service.until(lambda jobs: jobs["suffers"]["group"] not in (0, None) or over(jobs))
    assert jobs["suffers"]["group"] == 1
    service.until(lambda jobs: jobs["suffers"]["state"] == "done")
    told = service.ask("news", 0)
    assert any("drifts: takes longer than its profile says: rollout 0.8" in line for line in told), told
    assert any("suffers: its SLO is at risk" in line for line in told), told
    service.ask("cancel", "drifts")
    record = service.stop()
    known = [event.job for event in record.log if isinstance(event, Reprofiled) and event.job.id == "drifts"]
    assert known and known[-1].rollout.worst_case_s >= 0.8 and known[-1].slo == 6.0
    assert [event.job_id for event in record.log if isinstance(event, Moved)] == ["suffers"]
    assert [done.number for done in record.iterations if done.job_id == "suffers"] == [*range(60)]
    check_run(record)


def test_tails_that_share_nodes_are_counted_by_their_share(serve: Serving) -> None:
    service = serve(pairs=2, dispatch="round-robin,migrate=0.8")
    wide = {"class": "toy_jobs:Tailed", "rollout": {"nodes": 2}, "slo": 1000.0, "iterations": 5}
    service.submit({"id": "a", **wide}, {"id": "b", **wide})
    jobs = service.until(over)
    assert {job["state"] for job in jobs.values()} == {"done"}
    true_throughout(service.reports)
    record = service.stop()
    check_run(record)
    tails = [part for part in record.phases if any(span.tail for span in part.spans)]
    rollouts = [part for part in record.phases if part.phase == "rollout" and not part.profile]
    assert any(tail.start_s < part.start_s < tail.end_s for tail in tails for part in rollouts if part.job_id != tail.job_id)


def test_the_metrics_count_what_happened(serve: Serving) -> None:
    service = serve()
    service.submit({"id": "a", **SLEEPER, "iterations": 8}, {"id": "b", **SLEEPER, "options": {"does": {"init": "raise"}}})
    service.until(over)
    found = metrics_of(service)
    assert found["rollmux_iterations_total", "a"] == 8
    assert found["rollmux_jobs", "done"] == 1 and found["rollmux_jobs", "failed"] == 1
    assert found["rollmux_nodes", "rollout", "free"] == 1 and found["rollmux_queue_length",] == 0
    training, rollout = (found["rollmux_permits_total", pool] for pool in ("training", "rollout"))
    assert training in (8, 9)  # it may have been profiled before
    assert rollout == training + 1  # that of the other job, which failed in it
    assert found["rollmux_permit_latency_seconds_count", "rollout"] == training
    assert found["rollmux_permit_wait_seconds_count", "rollout"] == rollout
    assert 0 < found["rollmux_pool_utilization", "rollout"] < 1 and ("rollmux_slo_slack", "a") in found


def test_a_service_of_an_earlier_version_goes_on(serve: Serving, tmp_path: Path) -> None:
    service = serve("tests.runtime.service.toys:MoveOne", pairs=2, folder=copied("service", tmp_path))
    jobs = service.until(lambda jobs: jobs["waiting"]["state"] == "running" and jobs["waiting"]["iteration"] > 0)
    assert {name: (job["state"], job["iteration"]) for name, job in jobs.items() if name != "waiting"} == {
        "moved": ("done", 40),
        "stays": ("done", 50),
        "plain": ("done", 6),
    }
    record = service.stop()
    check_run(record)
    assert [event.job_id for event in record.log if isinstance(event, Moved)] == ["moved"]
