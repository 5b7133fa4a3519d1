"""Who asks for something stands in a line in which users take turns; who keeps or frees what it has does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmux_env.errors import TooMany
from runtime.service.http import app
from runtime.service.http.app import RequestQueue
from runtime.service.tokens import Right
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_leases import attach
from tests.runtime.service.http.test_strangers import request


def test_users_take_turns_however_much_one_asks() -> None:
    order: list[str] = []

    async def ask(line: RequestQueue, user: str) -> None:
        await line.turn(user)
        order.append(user)

    async def main() -> None:
        line = RequestQueue()
        await asyncio.gather(*(ask(line, user) for user in ["loud"] * 200 + ["ann", "bob"] * 5))

    asyncio.run(main())
    assert order[: app.TOGETHER] == ["loud"] * app.TOGETHER  # nobody else was there
    behind = order[app.TOGETHER :]
    assert [user for user in behind[:15] if user != "loud"] == ["ann", "bob"] * 5
    assert behind.count("loud") == 200 - app.TOGETHER


def test_a_full_line_refuses_and_has_room_again_when_it_has_moved() -> None:
    async def main() -> None:
        line = RequestQueue(most=30, most_of_a_user=20)
        waiting = [asyncio.ensure_future(line.turn(user)) for user in ["ann"] * (app.TOGETHER + 20) + ["bob"] * 10]
        refused = [asyncio.ensure_future(line.turn(user)) for user in ("ann", "carl")]
        await asyncio.gather(*waiting)
        errors = await asyncio.gather(*refused, return_exceptions=True)
        assert [type(error) for error in errors] == [TooMany, TooMany]
        assert "20 requests of this user wait" in str(errors[0]) or "30 requests wait" in str(errors[0])
        await line.turn("ann")

    asyncio.run(main())


def test_who_has_gone_takes_no_turn_from_others() -> None:
    async def main() -> int:
        line, turns = RequestQueue(), 0
        every = [asyncio.ensure_future(line.turn("ann")) for _ in range(10 * app.TOGETHER)]
        await asyncio.sleep(0)
        for task in every[app.TOGETHER : -1]:
            task.cancel()
        while not every[-1].done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(main()) < 6


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path, most_open=3)
    yield one
    one.close()


def test_a_lease_is_kept_and_given_back_where_there_is_no_room_for_those_who_ask(small: Served) -> None:
    ann = small.tokens.make("ann", Right.ATTACH)
    lease = attach(small, "anns", ann)
    clients = [small.raw() for _ in range(3)]
    for client in clients:
        client.sendall(request(small, "GET /v1/events?after=1000000&wait_s=30"))
    while small.ask("GET", "/v1/status").status != 429:
        pass
    assert small.ask("POST", f"/v1/leases/{lease}/heartbeat", {}, ann).value == {"stop": False}
    refused = small.ask("POST", f"/v1/leases/{lease}/acquire", {"phase": "rollout", "iteration": 0}, ann)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert small.ask("DELETE", f"/v1/leases/{lease}?done=true", token=ann).status == 200
    for client in clients:
        client.close()


def test_heartbeats_are_answered_while_the_line_does_not_move(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = small.tokens.make("ann", Right.ATTACH)
    lease = attach(small, "anns", ann)

    def stands(line: RequestQueue) -> None:
        raise TooMany("the line does not move")

    monkeypatch.setattr(RequestQueue, "_soon", stands)
    assert small.ask("GET", "/v1/status").status == 429
    for _ in range(3):
        assert small.ask("POST", f"/v1/leases/{lease}/heartbeat", {}, ann).status == 200
