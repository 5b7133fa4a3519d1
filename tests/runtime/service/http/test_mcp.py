"""A model asks a service through the SDK's own client: it reads, with the user's rights, and writes only where it may."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.service.mcp_server import Tools, make_server
from runtime.service.tokens import Right, Tokens
from tests.runtime.service.http.conftest import Served

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

SECONDS = {"rollout": {"worst_case_s": 30.0, "nodes": 2}, "training": {"worst_case_s": 5.0, "nodes": 2}}
ENTRY = {"id": "one", "attach": True, "slo": 1.1, "iterations": 10, **SECONDS}


def means(served: Served, monkeypatch: pytest.MonkeyPatch, right: Right) -> None:
    """Let the environment name a service, with a token of a user."""
    monkeypatch.setenv("ROLLMUX_URL", served.url)
    monkeypatch.setenv("ROLLMUX_TOKEN", Tokens(served.folder).make("ann", right))


def asked(*calls: tuple[str, dict[str, Any]], writes: bool = False) -> tuple[dict[str, bool | None], list[Any]]:
    """Call tools, and return which there are, each with whether it only reads, and the answers or lines of refusal."""

    async def ask() -> tuple[dict[str, bool | None], list[Any]]:
        async with Client(make_server(None, writes)) as client:
            listed = (await client.list_tools()).tools
            tools = {tool.name: tool.annotations.read_only_hint for tool in listed if tool.annotations is not None}
            return tools, [answer_of(await client.call_tool(name, arguments)) for name, arguments in calls]

    return asyncio.run(ask())


def answer_of(result: Any) -> Any:
    if result.is_error or result.structured_content is None:
        return result.content[0].text
    found = result.structured_content
    return found["result"] if found.keys() == {"result"} else found


def test_it_reads_with_the_users_own_rights(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    means(served, monkeypatch, Right.ATTACH)
    tools, answers = asked(
        ("submit", {"jobs": [ENTRY]}),
        ("dry_run", {"jobs": [ENTRY]}),
        ("what_if", {"arrives": [{"id": "x", "arrival_s": 0, "slo": 2, "iterations": 3, **SECONDS}]}),
        ("explain_job", {"job": "nobody"}),
        ("status", {}),
        ("bench", {"file": "queue", "policies": ["json:JSONEncoder"]}),
    )
    assert tools == dict.fromkeys(("status", "explain_job", "dry_run", "what_if", "bench"), True)
    refused, dry, what_if, unknown, status, own = answers
    assert "submit" in refused and dry[0]["fits"] is True
    assert what_if["changes"] == ["also arriving: x"] and what_if["after"]["jobs"][0]["wait_h"] == 0
    assert "job nobody: this service has no such job" in unknown
    assert status["jobs"] == [] and "policy json:JSONEncoder: must be one that comes with RollMux" in own.replace("'", "")


def test_it_writes_where_it_is_told_and_the_token_may(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    means(served, monkeypatch, Right.LOOK)
    tools, (refused,) = asked(("submit", {"jobs": [ENTRY]}), writes=True)
    assert tools["submit"] is False and tools["cancel"] is False
    assert "this token has the right to look, not to attach" in refused
    means(served, monkeypatch, Right.ATTACH)
    calls = (("submit", {"jobs": [ENTRY]}), ("explain_job", {"job": "one"}), ("cancel", {"job": "one"}))
    _, (submitted, job, cancelled) = asked(*calls, writes=True)
    assert (submitted, cancelled) == ("submitted: one", "cancelled: one") and job["id"] == "one"


def test_the_jobs_that_have_ended_last_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that were submitted last: the first of these has ended last."""
    jobs = [{"id": f"e{k}", "state": "done", "ended_s": k or 99.0} for k in range(25)]
    service = SimpleNamespace(status=lambda: {"jobs": [*jobs, {"id": "runs", "state": "running", "ended_s": None}]})
    monkeypatch.setattr(Tools, "_service", lambda _: nullcontext(service))
    shown = [job["id"] for job in Tools(None).status()["jobs"]]
    assert shown == ["runs", *(f"e{k}" for k in range(6, 25)), "e0"]


@pytest.mark.long
def test_the_command_serves_over_its_standard_streams() -> None:
    async def ask() -> Any:
        command = StdioServerParameters(command=sys.executable, args=["-m", "rollmux", "mcp"])
        async with Client(stdio_client(command)) as client:
            return answer_of(await client.call_tool("bench", {"file": "queue", "policies": ["solo", "rollmux"]}))

    benched = asyncio.run(ask())
    assert [row["policy"] for row in benched["summary"]] == ["solo", "rollmux"], json.dumps(benched)[:500]
