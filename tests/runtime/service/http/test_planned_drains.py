"""Drains that begin later: at a time, or early enough for a deadline, also after a restart."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator import planned_drains
from runtime.service.report import past_report
from runtime.service.service import RunService
from tests.conftest import Command
from tests.runtime.pretend import continued_plan
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_leases import attach

NOW_S = 2e9


def test_a_drain_begins_at_its_time_or_a_period_before_its_deadline(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [NOW_S]
    monkeypatch.setattr(planned_drains, "time", lambda: clock[0])
    served = Served(tmp_path / "service", with_classes=False)
    try:
        monkeypatch.setenv("ROLLMUX_URL", served.url)
        monkeypatch.setenv("ROLLMUX_TOKEN", served.token)
        attach(served, "here", movable=True)
        (node,) = (name for name in served.ask("GET", "/v1/jobs/here").value["nodes"] if name.startswith("rollout"))
        other = {"rollout-0": "rollout-1", "rollout-1": "rollout-0"}[node]
        drain, plans = f"/v1/nodes/{node}/drain", served.service.driver.lifecycle.planned_drains
        for query in ("starts_s=2&deadline_s=1", "starts_s=1e300", "deadline_s=nan", "starts_s=-1", "starts_s=soon"):
            assert served.ask("POST", f"{drain}?{query}").status == 400
        assert served.ask("POST", f"/v1/nodes/rollout-9/drain?starts_s={NOW_S + 9}").status == 404
        answer = served.ask("POST", f"{drain}?deadline_s={NOW_S + 1000}").value
        times = {"starts_s": NOW_S + 1000 - 60 - 4, "deadline_s": NOW_S + 1000}
        assert answer == {"node": node, "drained": False, "waits_for": []} | times
        status, out, err = command("drain", other, "--starts", datetime.fromtimestamp(NOW_S + 500).isoformat())
        assert (status, err) == (0, "") and out.startswith(f"{other} is drained from 20")
        report = served.ask("GET", "/v1/status").value
        assert [plan["node"] for plan in report["drains"]] == [other, node] and report["pools"]["rollout"]["draining"] == 0
        assert f"{other} is drained from 20" in command("status")[1]
        assert command("undrain", other)[0] == 0
        served.in_loop(plans.look)
        assert [*served.service.run.drain_plans] == [node]
        assert command("drain", other, "--deadline", "soon")[0] == 2
    finally:
        served.close()

    (plan,) = past_report(served.folder)["drains"]
    assert (plan["node"], plan["starts_s"], plan["deadline_s"]) == (node, None, NOW_S + 1000)

    async def again() -> dict[str, Any]:
        service = RunService(continued_plan(served.folder))
        await service.serve(None)
        drains = service.driver.lifecycle.planned_drains
        assert service.run.drain_plans[node].deadline_s == NOW_S + 1000
        clock[0] += 940
        drains.look()
        report = await service.report()
        await service.stop()
        await service.ended()
        return report

    report = asyncio.run(again())
    (plan,) = report["drains"]
    assert (plan["starts_s"], plan["jobs"], plan["waits_for"], plan["overdue"]) == (None, ["here"], [], False)
    assert report["pools"]["rollout"]["draining"] == 1

    async def once_more() -> None:
        service = RunService(continued_plan(served.folder))
        await service.serve(None)
        drains = service.driver.lifecycle.planned_drains
        drains.look()
        assert [*service.run.drain_plans] == [node] and service.run.nodes.drained == {node}
        drains.undrain(node)
        assert not service.run.drain_plans and not service.run.nodes.drained
        await service.stop()
        await service.ended()

    asyncio.run(once_more())
