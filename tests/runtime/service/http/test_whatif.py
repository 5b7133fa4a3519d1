"""What-if questions to a service: without a change its own expected times, with one as if it had been so, and nothing happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.placement.baselines import Solo
from policies.whatif import Change
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived, Lent, Resized
from rollmux_env.cluster.state import State
from runtime.service.tokens import Right, Tokens
from runtime.service.whatif import Present, _new_id, answer, of_journal
from tests.rollmux_env.scheduler.driver import make_cluster, make_job
from tests.runtime.service.http.conftest import Served

SECONDS = {"rollout": {"worst_case_s": 30.0, "nodes": 2}, "training": {"worst_case_s": 5.0, "nodes": 2}}
JOB = {"attach": True, "slo": 1.1, "iterations": 100, **SECONDS}


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on which one job runs and two wait."""
    one = Served(tmp_path_factory.mktemp("queue"), with_classes=False)
    jobs = [{"id": "runs", **JOB}, {"id": "long", **JOB}, {"id": "short", **JOB, "iterations": 5}]
    assert one.ask("POST", "/v1/jobs", jobs).status == 201
    one.until("/v1/status", lambda status: status["queue"] == ["long", "short"])
    yield one
    one.close()


def courses(side: dict[str, Any]) -> dict[str, Any]:
    return {job["job"]: job for job in side["jobs"]}


def test_without_a_change_both_sides_are_the_expected_times_of_the_service(queue: Served) -> None:
    before = queue.ask("GET", "/v1/events").value
    token = Tokens(queue.folder).make("ann", Right.LOOK)
    said = queue.ask("POST", "/v1/whatif", {}, token)
    assert said.status == 200 and said.value["before"] == said.value["after"] and said.value["changes"] == []
    jobs = {job["id"]: job["eta_s"] for job in queue.ask("GET", "/v1/status").value["jobs"] if job["state"] == "waiting"}
    assert {job_id: courses(said.value["before"])[job_id]["admitted_s"] for job_id in jobs} == jobs
    assert None not in jobs.values()
    assert queue.ask("GET", "/v1/events").value == before


def test_a_change_is_followed_from_the_present_on(queue: Served) -> None:
    order = queue.ask("POST", "/v1/whatif", {"order": "shortest"}).value
    before, after = courses(order["before"]), courses(order["after"])
    assert after["short"]["admitted_s"] == before["long"]["admitted_s"] < before["short"]["admitted_s"]
    assert order["changes"] == ["policy rollmux,order=shortest instead of rollmux"]
    nodes = queue.ask("POST", "/v1/whatif", {"nodes": {"rollout": "+2", "training": "+2"}, "without": ["short"]}).value
    now = courses(nodes["after"])
    assert now.keys() == {"runs", "long"} and now["long"]["wait_h"] < 0.01
    arrives = queue.ask("POST", "/v1/whatif", {"arrives": [{"id": "more", **JOB, "attach": None}], "since_s": 3600.0})
    assert arrives.status == 422
    entry = {key: value for key, value in JOB.items() if key != "attach"} | {"arrival_s": 60}
    more = queue.ask("POST", "/v1/whatif", {"arrives": [{"id": "more", **entry}], "since_s": 3600.0}).value
    assert courses(more["before"]).keys() == {*before, "runs.2", "long.2", "short.2"}
    assert courses(more["after"]).keys() == {*courses(more["before"]), "more"}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"policy": "json:JSONEncoder"}, 403),
        ({"policy": "learned:/etc/passwd"}, 403),
        ({"order": "json:JSONEncoder"}, 403),
        ({"policy": "no-such"}, 422),
        ({"policy": "solo,switches=true"}, 422),
        ({"nodes": {"training": "many"}}, 422),
        ({"without": ["nobody"]}, 422),
        ({"nodes": {"training": 3}}, 400),
    ],
)
def test_what_cannot_be_asked_is_refused(queue: Served, asked: dict[str, Any], status: int) -> None:
    refused = queue.ask("POST", "/v1/whatif", asked)
    assert refused.status == status and "\n" not in refused.value["error"]


def test_lent_nodes_count_as_nodes_of_the_cluster() -> None:
    state = State(make_cluster(2), observed=True)
    for event in (Arrived(0.0, make_job("a", nodes=2)), Resized(0.0, 1, 1), Lent(0.0, {"guest": ""}, 1, 1)):
        apply(state, event)
    present = Present("here", "solo", Solo(), 0, state, 0.0, (), ("guest",), None, lambda _: [])
    more = answer(present, Change({"rollout": "+1"}))
    assert more.changes == ("rollout: 3 nodes instead of 2",)
    assert [side.jobs[0].admitted_s for side in (more.before, more.after)] == [0.0, 0.0]
    fewer = answer(present, Change({"rollout": "-1"}))
    assert fewer.changes == ("rollout: 1 nodes instead of 2",) and fewer.after.jobs[0].admitted_s is None


def test_jobs_that_arrive_again_have_ids_of_their_own() -> None:
    long = "x" * 64
    assert [_new_id(long, {long}), _new_id(long, {long, "x" * 62 + ".2"})] == ["x" * 62 + ".2", "x" * 62 + ".3"]


def test_a_journal_is_asked_as_its_service_was(queue: Served, tmp_path: Path) -> None:
    present = of_journal(queue.folder, "queue")
    live = queue.ask("POST", "/v1/whatif", {"order": "shortest"}).value
    past = answer(present, Change(order="shortest")).as_dict()
    for side in ("before", "after"):
        own, other = courses(live[side]), courses(past[side])
        assert {job_id: job["admitted_s"] for job_id, job in own.items()} == {
            job_id: pytest.approx(job["admitted_s"]) for job_id, job in other.items()
        }
    other_policy = answer(present, Change(policy="solo,switches=true")).as_dict()
    assert other_policy["after"]["policy"] == "solo,switches=true" and other_policy["after"]["figures"]["unknown"] == 0
