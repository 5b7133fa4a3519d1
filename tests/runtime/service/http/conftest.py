"""Services over HTTP in a thread of this process, without Ray: their jobs are tasks of the same loop."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runtime.service.address import Listen
from runtime.service.http.app import make_app
from runtime.service.http.server import HttpServer, bind
from runtime.service.operations_log import OperationsLog
from runtime.service.service import Service
from runtime.service.tokens import Right, Tokens
from tests.runtime.execution.pretend import Pretended, plan_of

_PATIENCE_S = 60.0


class Answer(NamedTuple):
    """Status, value of the JSON or text, and headers."""

    status: int
    value: Any
    headers: dict[str, str]


class Served:
    """A service that listens, and clients of it.

    Args:
        with_classes: it runs jobs with a class, as tasks. more: for the app.
    """

    def __init__(self, folder: Path, with_classes: bool = True, **more: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.tokens = Tokens(folder)
        self.token = self.tokens.make("", Right.OPERATE)
        self.service = Service(replace(plan_of(folder, [{"id": "none", "iterations": 1}]), specs=()))
        self._begun: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(Pretended() if with_classes else None, more),)
        )
        self._thread.start()
        self._begun.result(_PATIENCE_S)

    async def _serve(self, processes: Pretended | None, more: dict[str, Any]) -> None:
        try:
            await self.service.serve(processes)
            if processes is not None:
                processes.driver = self.service.driver
            app = make_app(self.service, self.tokens, OperationsLog(self.folder), **more)
            self.server = HttpServer(app, await bind(Listen()))
            await self.server.begin()
            self._stops = asyncio.Event()
        except BaseException as error:
            self._begun.set_exception(error)
            raise
        self._begun.set_result(None)
        await self._stops.wait()
        await self.server.close()
        await self.service.stop()
        await self.service.ended()

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers["Content-Type"] == "application/json"
            return Answer(response.status, json.loads(text) if is_json else text, dict(response.headers))
        finally:
            connection.close()

    def raw(self) -> socket.socket:
        """A connection on which nothing has been said."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_S)

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Look again and again until something holds of an answer."""
        while not holds(value := self.ask("GET", path).value):
            pass
        return value

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stops.set)
        self._thread.join(_PATIENCE_S)
        self._loop.close()


Serving = Callable[..., Served]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One without jobs, the same for the tests of a module."""
    one = Served(tmp_path_factory.mktemp("service"))
    yield one
    one.close()
