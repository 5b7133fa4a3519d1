"""One browser for all tests of pages, and a server of answers that no well-behaved service gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runtime.service.page import page_html

TOKEN = "a-token"
PREFIX = "/team/"  # as behind a proxy
Entries = Callable[[int], list[dict[str, Any]]]


class Answering:
    """Answers as it is told.

    Attributes:
        status: what `/v1/status` says. entries: those of the journal after a number. gone: connections are dropped.
        asked: numbers after which entries were asked for. what_if: what `/v1/whatif` says.
    """

    def __init__(self, status: dict[str, Any], entries: Entries) -> None:
        self.status, self.entries, self.gone = status, entries, False
        self.asked: list[int] = []
        self.usage: list[dict[str, Any]] = []
        self.what_if: dict[str, Any] = {}
        self._ending = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                return

            def do_GET(self) -> None:
                owner.answer(self)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                owner._send(self, json.dumps(owner.what_if), "application/json")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # a browser goes as it likes
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{PREFIX}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        url = urlsplit(request.path)
        path = f"/{url.path.removeprefix(PREFIX)}"
        if self.gone:
            request.close_connection = True
        elif path == "/":
            self._send(request, page_html(), "text/html; charset=utf-8")
        elif request.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(request, '{"error": "no"}', "application/json", 401)
        elif path == "/v1/status":
            self._send(request, json.dumps(self.status), "application/json")
        elif path == "/v1/usage":
            self._send(request, json.dumps({"by": ["user", "month"], "rows": self.usage}), "application/json")
        else:
            self._events(request, parse_qs(url.query))

    def _events(self, request: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> None:
        number = int(query["after"][0])
        self.asked.append(number)
        found = self.entries(number)
        if not found and float(query["wait_s"][0]):
            self._ending.wait(0.2)
        if self.gone:
            request.close_connection = True
        else:
            self._send(request, json.dumps({"events": found}), "application/json")

    def _send(self, request: BaseHTTPRequestHandler, text: str, kind: str, status: int = 200) -> None:
        data = text.encode()
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def close(self) -> None:
        """End it."""
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


Answers = Callable[[dict[str, Any], Entries], Answering]


@pytest.fixture
def answering() -> Iterator[Answers]:
    made: list[Answering] = []

    def make(status: dict[str, Any], entries: Entries) -> Answering:
        made.append(Answering(status, entries))
        return made[-1]

    yield make
    for one in made:
        one.close()
