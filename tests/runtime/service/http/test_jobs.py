"""Jobs over HTTP: submitted, looked at, ended; by whoever may."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from runtime.jobs.spec import job_of
from runtime.journal.write import read_run
from runtime.service.client import ServiceClient
from runtime.service.operations_log import OPERATIONS
from runtime.service.service import RunService
from runtime.service.tokens import Right
from tests.runtime.pretend import NODES, job, plan_of, specs_of
from tests.runtime.service.http.conftest import Served

JOB = {"class": "json:JSONDecoder", "slo": 1000, "iterations": 3}
KEYS = {
    "id", "user", "priority", "state", "reason", "position", "eta_s", "group", "nodes", "phase", "iteration", "iterations",
    "slowdown", "slo", "usd", "metrics", "profile",
}  # fmt: skip


def test_a_job_is_in_the_journal_when_it_is_answered_and_runs(served: Served) -> None:
    made = served.ask("POST", "/v1/jobs", {"id": "one", **JOB})
    assert made.status == 201 and made.value["id"] == "one" and made.value.keys() >= KEYS
    assert "one" in {fact.spec.id for fact in read_run(served.folder).submitted}
    job = served.until("/v1/jobs/one", lambda job: job["state"] == "done")
    assert (job["iteration"], job["iterations"], job["metrics"]) == (3, 3, {"count": 3.0})
    again = served.ask("POST", "/v1/jobs", {"id": "one", **JOB})
    assert again.status == 409 and again.value == {
        "error": "job one: this service has had a job of that name; "
        "names can be used again once its journal is rolled over without jobs"
    }


def test_a_job_that_cannot_be_is_said_to_be_so_in_one_line(served: Served) -> None:
    for wrong, value, problem in (
        ("slo", 0.5, "slo: must be at least 1, not 0.5"),
        ("rollout", {"nodes": 9}, "job bad: rollout.nodes: asks for 9 nodes; there are 2 of this pool left"),
        ("class", "no_such_module:X", f"job bad.class: there is no module 'no_such_module' in {served.folder}, or installed"),
        ("id", 3, "id: must be text, not the number 3: quote it"),
        ("slow", 2, "slow: is not a key of this file format; did you mean slo?"),
    ):
        answer = served.ask("POST", "/v1/jobs", {"id": "bad", **JOB, wrong: value})
        assert (answer.status, answer.value) == (422, {"error": problem})
    for body in (b"", b"{", b"[]", b"nothing", b'{"id": "\\ud800"}', b'{"slo": NaN}', b"[" * 100_000):
        assert served.ask("POST", "/v1/jobs", body).status == 400, body[:20]
    assert served.ask("GET", "/v1/jobs/bad").status == 404


def test_a_service_on_one_device_takes_jobs(tmp_path: Path) -> None:
    """Its rollouts run on training nodes: no rollout node is missing."""
    service = RunService(plan_of(tmp_path, [], NODES[2:3]))

    async def submitted() -> list[str]:
        await service.serve(None)
        await service.submit(specs_of(job("one")))
        await service.stop()
        await service.ended()
        return [fact.spec.id for fact in read_run(tmp_path).submitted]

    assert asyncio.run(submitted()) == ["one"]


def test_permits_are_counted_from_none(tmp_path: Path) -> None:
    """An alert about no permits compares a counter, which has to be there before the first one, also after a restart."""
    served = Served(tmp_path / "service")
    try:
        lines = served.ask("GET", "/metrics").value.splitlines()
    finally:
        served.close()
    assert {'rollmux_permits_total{pool="rollout"} 0.0', 'rollmux_permits_total{pool="training"} 0.0'} <= {*lines}


def test_a_job_ends_when_it_is_deleted_and_only_once(served: Served) -> None:
    served.ask("POST", "/v1/jobs", {"id": "gone", **JOB, "arrival_s": 1e6})
    job = served.ask("GET", "/v1/jobs/gone").value
    assert (job["state"], job["reason"]) == ("waiting", "it has not arrived yet")
    answer = served.ask("DELETE", "/v1/jobs/gone")
    assert (answer.status, answer.value["state"]) == (202, "cancelled")
    assert 0 < answer.value["ended_s"] <= served.ask("GET", "/v1/status").value["now_s"]
    again = served.ask("DELETE", "/v1/jobs/gone")
    assert again.status == 409 and again.value["error"] == "job gone: has ended already: cancelled"
    assert served.ask("DELETE", "/v1/jobs/nobody").status == 404


def test_who_may_look_may_do_nothing_else_and_who_may_attach_nothing_to_others(served: Served) -> None:
    looks, attaches = served.tokens.make("ann", Right.LOOK), served.tokens.make("ben", Right.ATTACH)
    assert served.ask("GET", "/v1/status", token=looks).status == 200
    answer = served.ask("POST", "/v1/jobs", {"id": "x", **JOB}, looks)
    assert (answer.status, answer.value) == (403, {"error": "this token has the right to look, not to attach"})
    answer = served.ask("POST", "/v1/jobs", {"id": "x", **JOB}, attaches)
    assert answer.status == 403 and "takes the right to operate" in answer.value["error"]
    served.ask("POST", "/v1/jobs", {"id": "anns", **JOB, "user": "ann", "arrival_s": 1e6})
    answer = served.ask("DELETE", "/v1/jobs/anns", token=attaches)
    assert (answer.status, answer.value) == (403, {"error": "job anns: is another user's"})
    log = [json.loads(line) for line in (served.folder / OPERATIONS).read_text().splitlines()]
    refused = {"user": "ben", "operation": "cancel", "subject": "anns", "outcome": "job anns: is another user's"}
    assert refused in [{key: entry[key] for key in refused} for entry in log]


def test_the_status_has_every_job_group_and_pool(served: Served) -> None:
    status = served.ask("GET", "/v1/status").value
    keys = {"now_s", "policy", "dispatch", "stopping", "usd_per_hour", "pools", "groups", "jobs"}
    assert status.keys() >= keys and status["pools"]["rollout"].keys() >= {"nodes", "busy", "idle", "free", "utilization"}
    assert all(job.keys() >= KEYS for job in status["jobs"])


ATTACHED: dict[str, Any] = {
    "attach": True,
    "slo": 1.1,
    "iterations": 10,
    "rollout": {"worst_case_s": 2.0, "host_memory_gb": 1.0},
} | {"training": {"worst_case_s": 2.0, "host_memory_gb": 1.0}}


def test_a_dry_run_says_what_would_become_of_a_job_and_changes_nothing(served: Served) -> None:
    before = served.ask("GET", "/v1/events").value
    answer = served.ask("POST", "/v1/jobs?dry_run=true", {"id": "dry", **ATTACHED})
    assert answer.status == 200 and answer.value == {
        "fits": True,
        "strategy": "isolated",
        "group": answer.value["group"],
        "delta_usd_per_hour": 2.0,
        "period_s": 4.0,
        "slowdown": {"dry": 1.0},
        "position": None,
        "eta_s": answer.value["eta_s"],
        "done_eta_s": answer.value["eta_s"] + 10 * 4.0,
        "reason": "",
    }
    assert "dry" not in (served.folder / OPERATIONS).read_text()
    unknown = served.ask("POST", "/v1/jobs?dry_run=true", {"id": "dry", **JOB, "class": "json:JSONEncoder"}).value
    assert (unknown["fits"], unknown["reason"]) == (False, "it is not known yet how long its phases take: it is profiled first")
    assert served.ask("POST", "/v1/jobs?dry_run=true", {"id": "one", **JOB}).status == 409
    attaches = served.tokens.make("ben", Right.ATTACH)
    above = served.ask("POST", "/v1/jobs?dry_run=true", {"id": "dry", **ATTACHED, "priority": 1}, token=attaches)
    assert above.status == 403 and "the highest priority of this token" in above.value["error"], "as without dry_run"
    service = ServiceClient(served.server.url, served.token)
    (same,) = service.preview([job_of({"id": "dry", **ATTACHED})])
    service.close()
    unknown_s = {"eta_s": None, "done_eta_s": None}
    assert same | unknown_s == answer.value | unknown_s
    assert served.ask("GET", "/v1/events").value == before and served.ask("GET", "/v1/jobs/dry").status == 404


def test_a_dry_run_of_two_says_of_the_second_what_becomes_of_it_beside_the_first(served: Served) -> None:
    two = [
        {"id": name, **ATTACHED, "training": {**ATTACHED["training"], "worst_case_s": 3.0, "nodes": 2}}
        for name in ("first", "second")
    ]
    alone = [served.ask("POST", "/v1/jobs?dry_run=true", job).value for job in two]
    first, second = served.ask("POST", "/v1/jobs?dry_run=true", two).value
    assert all(answer["fits"] for answer in alone) and first["fits"]
    assert (second["fits"], second["position"]) == (False, 1) and second["eta_s"] > first["eta_s"] and second["reason"]
    assert served.ask("POST", "/v1/jobs?dry_run=true", [two[0], two[0]]).status == 409


def test_several_jobs_are_taken_together_or_not_at_all(served: Served) -> None:
    two = [{"id": f"two{k}", **JOB, "arrival_s": 1e6} for k in range(2)]
    assert served.ask("POST", "/v1/jobs", [*two, two[0]]).status == 409
    assert served.ask("POST", "/v1/jobs", [*two, {"id": "bad"}]).status == 422
    assert served.ask("POST", "/v1/jobs", []).status == 400
    assert served.ask("GET", "/v1/jobs/two0").status == 404
    answer = served.ask("POST", "/v1/jobs", two)
    assert answer.status == 201 and [job["id"] for job in answer.value] == ["two0", "two1"]
