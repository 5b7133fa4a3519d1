"""Rights over the queue, and quotas that are set while a service runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.keys.queue import Quota
from runtime.journal.audit import audit
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts
from runtime.report.usage import FIGURES, past_usage
from runtime.service.figures import RunFigures
from runtime.service.forecast import NOTHING_KNOWN
from runtime.service.quotas import UserQuotas, cluster_differences, user_reports
from runtime.service.report import Reports, past_report
from runtime.service.service import RunService
from runtime.service.tokens import Right
from tests.conftest import Command
from tests.runtime.pretend import PAIRS, cluster_with, continued_plan
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import ATTACHED

MEASURED = {"rollout": {"host_memory_gb": 1.0}, "training": {"host_memory_gb": 1.0}, "profile": {"iterations": 1}}
ALONE = ATTACHED | {"slo": 1.0, "rollout": {"worst_case_s": 3.0, "host_memory_gb": 1.0}}  # two together would be slower


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Served]:
    """A service of its own, on two pairs of nodes."""
    one = Served(tmp_path / "service", with_classes=False)
    yield one
    one.close()


def place(served: Served, job_id: str, **more: Any) -> Any:
    """Attach a job, and return the answer without waiting for a place."""
    served.ask("POST", "/v1/jobs", {"id": job_id, **ALONE, **more})
    return served.ask("POST", f"/v1/jobs/{job_id}/attach", {"wait_s": 0}).value


def set_quota(served: Served, user: str, **limits: float) -> None:
    answer = served.ask("POST", "/v1/quotas", {"user": user, "quota": limits})
    assert (answer.status, answer.value["quotas"][user]) == (200, limits), answer


def test_what_ranks_a_job_takes_a_right_of_the_token(served: Served) -> None:
    ann, boss = served.tokens.make("ann", Right.ATTACH), served.tokens.make("boss", Right.ATTACH, priority=3)
    cases: tuple[tuple[str, dict[str, Any], int, str], ...] = (
        (ann, {"priority": 1}, 403, "priority: 1 is above 0, the highest priority of this token"),
        (ann, {"weight": 1.5}, 403, "weight: 1.5 takes the right to operate"),
        (boss, {"priority": 2**31}, 403, "is above 3"),
        (ann, {"estimate": {"iterations": 1}}, 403, "estimate.iterations: 1 is below iterations, which is"),
        (ann, {"estimate": {"iterations": 10**6}}, 201, ""),
        (ann, MEASURED | {"iterations": 60, "profile": {"iterations": 50}}, 403, "profile.iterations: 50 takes the right"),
        (ann, {"priority": -5}, 201, ""),
        (boss, {"priority": 3}, 201, ""),
        (served.token, {"priority": 9, "weight": 9.0, "estimate": {"iterations": 1}}, 201, ""),
    )
    for number, (token, keys, status, said) in enumerate(cases):
        answer = served.ask("POST", "/v1/jobs", {"id": f"ranked-{number}", **ATTACHED, **keys}, token)
        assert answer.status == status and said in answer.value.get("error", ""), answer


def test_quotas_hold_from_the_moment_they_are_set_and_over_a_restart(shared: Served) -> None:
    set_quota(shared, "ann", nodes=2)
    assert "lease" in place(shared, "a", user="ann")
    assert not place(shared, "b", user="ann")["placed"]
    shared.until("/v1/jobs/b", lambda job: job["reason"].startswith("user ann holds 2 of 2 nodes"))
    set_quota(shared, "ann", nodes=4, node_hours=0)
    waits = shared.until("/v1/jobs/b", lambda job: job["reason"].startswith("user ann has used "))
    assert waits["reason"].endswith(" of 0 node-hours of this month")
    set_quota(shared, "ann", nodes=4)
    assert "lease" in shared.ask("POST", "/v1/jobs/b/attach", {"wait_s": 0}).value
    set_quota(shared, "*", jobs=1, run_hours=2)
    budget = {"budget": {"hours": 2}}
    for job_id, user, keys, status, said in (
        ("c", "bob", {}, 422, "job c: budget.hours: is missing; user bob has a quota of 2 h for a job"),
        ("c", "bob", {"budget": {"hours": 3}}, 422, "job c: budget.hours: 3 is too long"),
        ("c", "bob", budget, 201, ""),
        ("d", "bob", budget, 429, "job d: user bob has 1 jobs, and a quota of 1"),
        ("d", "ann", {}, 201, ""),
    ):
        answer = shared.ask("POST", "/v1/jobs", {"id": job_id, "user": user, **ALONE, **keys})
        assert answer.status == status and (not said or said in answer.value["error"]), answer
    users = {one["user"]: one for one in shared.ask("GET", "/v1/status").value["users"]}
    assert {name: (one["jobs"], one["nodes"], one["quota"]) for name, one in users.items()} == {
        "ann": (3, 3.0, {"nodes": 4}),
        "bob": (1, 0.0, {"jobs": 1, "run_hours": 2.0}),
    }
    shared.close()
    facts = read_facts(shared.folder / JOURNAL)
    assert audit(facts).problems == () and replay_journal(facts).lines == ()
    quotas = {"ann": {"nodes": 4}, "*": {"jobs": 1, "run_hours": 2.0}}
    past = past_report(shared.folder)
    assert past["quotas"] == quotas and {one["user"]: one["jobs"] for one in past["users"]} == {"ann": 3, "bob": 1}

    async def again() -> dict[str, Any]:
        service = RunService(continued_plan(shared.folder))
        await service.serve(None)
        report = await service.report()
        await service.stop()
        await service.ended()
        return report

    assert asyncio.run(again())["quotas"] == quotas


def test_a_lower_quota_lets_jobs_wait_and_fails_none(shared: Served) -> None:
    bobs, anns = place(shared, "a", user="bob")["lease"], place(shared, "b", user="ann")["lease"]
    assert not place(shared, "c", user="ann")["placed"]
    set_quota(shared, "ann", nodes=0)
    shared.ask("DELETE", f"/v1/leases/{anns}")  # her script begins again
    shared.until("/v1/jobs/b", lambda job: job["state"] == "waiting")
    shared.ask("DELETE", f"/v1/leases/{bobs}?done=true")
    shared.until("/v1/jobs/a", lambda job: job["state"] == "done")
    shared.until("/v1/jobs/c", lambda job: job["reason"] == "user ann holds 0 of 0 nodes")
    assert not shared.ask("POST", "/v1/jobs/b/attach", {"wait_s": 0}).value["placed"]
    answer = shared.ask("POST", "/v1/jobs", {"id": "d", "user": "ann", **ALONE})
    assert (answer.status, answer.value["error"]) == (422, "job d: asks for 2 nodes; user ann has a quota of 0")
    set_quota(shared, "ann", nodes=4)
    assert all("lease" in shared.ask("POST", f"/v1/jobs/{job_id}/attach", {"wait_s": 5}).value for job_id in "bc")


def test_quotas_and_other_jobs_are_heeded_while_a_job_is_measured(shared: Served) -> None:
    set_quota(shared, "ann", node_hours=0)
    unknown = {"id": "a", **ATTACHED, **MEASURED, "iterations": 3, "user": "ann"}
    assert shared.ask("POST", "/v1/jobs", unknown).status == 201
    answer = shared.ask("POST", "/v1/jobs/a/attach", {"wait_s": 0}).value
    assert answer == {"placed": False, "reason": "user ann has used 0 of 0 node-hours of this month", "position": None}
    assert shared.ask("GET", "/v1/jobs/a").value["reason"] == f"it waits to be profiled: {answer['reason']}"
    set_quota(shared, "ann", nodes=2)
    assert "lease" in shared.ask("POST", "/v1/jobs/a/attach", {"wait_s": 5}).value
    assert "lease" in place(shared, "b", user="bob")
    users = shared.until("/v1/usage?by=user", lambda usage: len(usage["rows"]) == 2)["rows"]
    assert [one["user"] for one in users] == ["ann", "bob"] and all(one["node_hours"] > 0 for one in users)
    shared.close()
    assert past_usage(shared.folder, ("user",))[0]["usd"] >= users[0]["usd"] == users[0]["alone_usd"] > 0
    assert audit(read_facts(shared.folder / JOURNAL)).problems == replay_journal(read_facts(shared.folder / JOURNAL)).lines == ()


def test_usage_is_that_of_the_journal_live_and_afterwards(command: Command, shared: Served) -> None:
    ask = {"phase": "rollout", "iteration": 0}
    lease = place(shared, "a", user="ann")["lease"]
    for phase in ("rollout", "training"):
        assert shared.ask("POST", f"/v1/leases/{lease}/acquire", ask | {"phase": phase}).value["granted"]
        assert shared.ask("POST", f"/v1/leases/{lease}/release", ask | {"phase": phase}).status == 200
    shared.ask("DELETE", f"/v1/leases/{lease}?done=true")
    looks = shared.tokens.make("eve", Right.LOOK)
    answer = shared.ask("GET", "/v1/usage?by=user,month", token=looks)
    assert answer.status == 200 and [row["user"] for row in answer.value["rows"]] == ["ann"], answer
    assert shared.ask("GET", "/v1/usage?by=gpu", token=looks).value["error"].endswith("{0,2}$', not 'gpu'")
    (row,) = shared.ask("GET", "/v1/usage?by=job").value["rows"]
    assert row["jobs"] == row["iterations"] == 1 and row["node_hours"] == row["usd"] / 1 > 0 and row["alone_usd"] > 0
    shared.close()
    assert past_usage(shared.folder, ("job",)) == [row]
    (charged,) = past_report(shared.folder)["jobs"]
    assert charged["usd"] == row["usd"]
    status, out, err = command("usage", "--by", "job", "--csv", "--at", str(shared.folder))
    assert (status, err) == (0, "") and out == f"job,{','.join(FIGURES)}\na,{','.join(str(row[key]) for key in FIGURES)}\n"
    status, out, err = command("usage", "--at", str(shared.folder))
    assert status == 0 and "ann" in out and "node-hours" in out and "-0.00" not in out
    assert command("usage", "--by", "user,user")[::2] == (2, "rollmux: --by user,user: user is given twice\n")


def test_a_phase_or_a_wait_that_has_lasted_long_is_in_the_figures_before_it_ends(shared: Served) -> None:
    for job_id in "abc":
        place(shared, job_id, user="ann")

    def hour_later() -> tuple[dict[str, Any], dict[str, Any], float]:
        service, log = shared.service, shared.service.run.log
        log.zero_s -= 3600.0
        try:
            rows = {row["job"]: row for row in service.quotas.usage()}
            (user,) = user_reports(service.run.scheduler.state, {}, log.now())
            reports = Reports(service.driver.leases.ledger, RunFigures())
            return rows, user, reports.job(service.handle_of("a"), NOTHING_KNOWN)["usd"]
        finally:
            log.zero_s += 3600.0

    rows, user, usd = shared.in_loop(hour_later)
    about = pytest.approx  # the figures are of moments after each other
    assert rows["a"]["node_hours"] >= 1.5 and rows["a"]["usd"] == about(usd, rel=0.01) and rows["c"]["wait_h"] >= 1.0
    assert user["node_hours"] == about(rows["a"]["node_hours"] + rows["b"]["node_hours"], rel=0.01)


def test_only_operators_set_quotas_and_bad_ones_are_refused(served: Served) -> None:
    ann = served.tokens.make("ann", Right.ATTACH)
    for body, token, status, said in (
        ({"user": "ann", "quota": {"nodes": 100}}, ann, 403, "right"),
        ({"user": "ann", "quota": {"nodes": -1}}, None, 400, "quota.nodes: must be at least 0"),
        ({"user": "a b", "quota": {}}, None, 400, "user: may hold"),
        ({"user": "ann", "quota": {"gpus": 1}}, None, 400, "quota.gpus"),
    ):
        answer = served.ask("POST", "/v1/quotas", body, token)
        assert answer.status == status and said in answer.value["error"], answer


def test_a_calendar_month_begins_again(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lease" in place(shared, "a", user="ann")
    quotas: UserQuotas = shared.service.quotas
    month = quotas.month
    monkeypatch.setattr("runtime.service.quotas.time", lambda: 4e9)
    shared.in_loop(lambda: shared.service.run.spawn(quotas.follow_calendar()))
    shared.until("/v1/events", lambda answer: any(one["kind"] == "MonthBegun" for one in answer["events"]))
    assert quotas.month == "2096-10" > month
    shared.close()
    assert replay_journal(read_facts(shared.folder / JOURNAL)).lines == ()


def test_the_commands_set_list_and_unset(command: Command, shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_URL", shared.url)
    monkeypatch.setenv("ROLLMUX_TOKEN", shared.token)
    assert command("quota", "set", "ann", "nodes=4", "node_hours=2.5") == (0, "ann: nodes=4 node_hours=2.5\n", "")
    assert command("quota", "set", "ann", "nodes=none", "weight=2") == (0, "ann: weight=2 node_hours=2.5\n", "")
    status, out, err = command("quota", "list")
    assert (status, err) == (0, "") and "0.0 of 2.5" in out and "ann: weight=2 node_hours=2.5" in out
    assert command("quota", "unset", "ann") == (0, "ann: none of its own\n", "")
    for argument, said in (("gpus=3", "must be one of nodes, usd_per_hour"), ("nodes=x", "needs a number after nodes=, or none")):
        status, out, err = command("quota", "set", "ann", argument)
        assert (status, out) == (2, "") and said in err and err.count("\n") == 1


def test_a_cluster_file_that_differs_from_the_journal_is_said_to() -> None:
    held = cluster_with(PAIRS)
    file = held.model_copy(update={"quotas": {"ann": Quota(nodes=4)}, "migration_s": 7.0})
    assert [*cluster_differences(file, held.with_quota("ann", Quota(nodes=2)).with_quota("bob", Quota()))] == [
        "quotas.ann: nodes=4 in the file, nodes=2 in the journal",
        "quotas.bob: none in the file, no limit in the journal",
        "migration_s: 7.0 in the file, 0.0 in the journal",
    ]
