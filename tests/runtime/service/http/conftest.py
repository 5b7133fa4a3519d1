"""Services over HTTP whose jobs are tasks of the same loop, and what asks them."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.runtime.pretend import PATIENCE_S, Listening, Pretended, plan_of


class Answer(NamedTuple):
    """Status, value of the JSON or text, and headers."""

    status: int
    value: Any
    headers: dict[str, str]


class Served(Listening):
    """A service, and clients of it.

    Args:
        with_classes: it runs jobs with a class, as tasks. more: for the app.
    """

    def __init__(self, folder: Path, with_classes: bool = True, **more: Any) -> None:
        super().__init__(plan_of(folder, []), Pretended() if with_classes else None, **more)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
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
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """Look again and again until something holds of an answer."""
        while not holds(value := self.ask("GET", path).value):
            pass
        return value


Serving = Callable[..., Served]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One without jobs, the same for the tests of a module."""
    one = Served(tmp_path_factory.mktemp("service"))
    yield one
    one.close()
