"""What strangers, broken clients and slow ones send: it is refused in JSON or ended, and others are served meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.service.http import server
from runtime.service.tokens import Right
from tests.runtime.service.http.conftest import Served
from tests.runtime.service.http.test_jobs import ATTACHED

GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # the beginning of TLS
    b"\x00" * 300 + b"\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n\r\n",  # no host
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n",
)


def request(served: Served, line: str, *headers: str, token: str | None = None) -> bytes:
    """The head of a request with a token."""
    bearer = f"Authorization: Bearer {served.token if token is None else token}"
    return "\r\n".join((f"{line} HTTP/1.1", "Host: x", bearer, *headers, "", "")).encode()


def answer_to(served: Served, data: bytes) -> tuple[int, object]:
    """Status and JSON of the answer to what is sent on a connection of its own, which the service then closes."""
    with served.raw() as client:
        client.sendall(data)
        return parsed(client)


def parsed(client: socket.socket) -> tuple[int, object]:
    file = client.makefile("rb")
    status = int(file.readline().split()[1])
    length = 0
    while (line := file.readline().strip().lower()) != b"":
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, json.loads(file.read(length))


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_is_refused_in_json(served: Served, data: bytes) -> None:
    status, value = answer_to(served, data)
    assert (status, value) == (400, {"error": "this is no HTTP request"})
    assert served.ask("GET", "/healthz").status == 200


def test_nobody_without_a_token_comes_in(served: Served) -> None:
    for path in ("/v1/status", "/openapi.json", "/metrics", "/v1/jobs/x", "/no/such/path", "//healthz", "/healthz/"):
        for data in (
            f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
            request(served, f"GET {path}", token="wrong"),
            request(served, f"GET {path}", f"Authorization: Bearer {served.token}"),  # twice
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {served.token}\r\n\r\n".encode(),
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer\r\n\r\n".encode(),
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer é\r\n\r\n".encode(),
        ):
            assert answer_to(served, data)[0] == 401, data
    revoked = served.tokens.make("ann", Right.OPERATE)
    assert served.ask("GET", "/v1/status", token=revoked).status == 200
    served.tokens.revoke(next(token.id for token in served.tokens.list() if token.user == "ann"))
    answer = served.ask("GET", "/v1/status", token=revoked)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="rollmux"')
    assert served.ask("GET", "/healthz", token="").value == {"ok": True}


def test_unknown_paths_and_methods_are_said_to_be_so(served: Served) -> None:
    answer = served.ask("GET", "/v1/nothing")
    assert (answer.status, answer.value) == (404, {"error": "there is no such path"})
    answer = served.ask("PUT", "/v1/status")
    assert (answer.status, answer.value) == (405, {"error": "this path has no such method"})
    answer = served.ask("GET", "/v1/events?after=1&after=2")
    assert (answer.status, answer.value) == (400, {"error": "a parameter is given twice"})
    answer = served.ask("GET", "/v1/events?after=-1")
    assert (answer.status, answer.value) == (400, {"error": "after: must be at least 0, not '-1'"})
    answer = served.ask("GET", "/v1/events?afte=1")
    assert (answer.status, answer.value) == (400, {"error": "afte: is not a key of this request; did you mean after?"})


def test_a_body_that_is_too_large_is_refused_and_changes_nothing(served: Served) -> None:
    before = len(served.ask("GET", "/v1/status").value["jobs"])
    large = (
        b'{"id": "large", "class": "json:JSONDecoder", "slo": 2, "iterations": 1, "options": {"x": "' + b"x" * (1 << 20) + b'"}}'
    )
    answer = served.ask("POST", "/v1/jobs", large)
    assert (answer.status, answer.value) == (413, {"error": "a body has 1048576 bytes at most"})
    head = request(served, "POST /v1/jobs", "Content-Length: 999999999999")
    assert answer_to(served, head)[0] == 413  # without a byte of it
    with served.raw() as client:
        client.sendall(request(served, "POST /v1/jobs", "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(17):
            client.sendall(chunk)
        assert parsed(client)[0] == 413
    assert len(served.ask("GET", "/v1/status").value["jobs"]) == before


def test_headers_that_are_too_large_are_refused(served: Served) -> None:
    limit = {"error": "the headers of a request have 16384 bytes at most"}
    for size in (16_384, 40_000, 1 << 20):
        with served.raw() as client:
            try:
                client.sendall(request(served, "GET /healthz", f"X: {'x' * size}"))
                assert parsed(client) == (431, limit)
            except (ConnectionResetError, BrokenPipeError):  # it was closed while we still sent
                assert size > 40_000
    assert answer_to(served, request(served, "GET /healthz", f"X: {'x' * 16_000}"))[0] == 200


def test_connections_without_a_request_are_closed_and_hinder_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEADERS_S", 0.3)
    halves = (b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"POST /v1/jobs HTTP/1.1\r\n")
    clients = [served.raw() for _ in range(40)]
    try:
        for k, client in enumerate(clients):
            client.sendall(halves[k % len(halves)])
        assert served.ask("GET", "/v1/status").status == 200
        assert [client.recv(100) for client in clients] == [b""] * len(clients)
    finally:
        for client in clients:
            client.close()


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.service.http.endpoint._BODY_S", 0.2)
    assert answer_to(served, request(served, "POST /v1/jobs", "Content-Length: 10") + b"{")[0] == 408


def test_a_defect_is_said_to_be_one_and_ends_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service, "report", lambda: 1 / 0)
    answer = served.ask("GET", "/v1/status")
    assert (answer.status, answer.value) == (500, {"error": "ZeroDivisionError: a defect of RollMux; the service continues"})
    monkeypatch.undo()
    assert served.ask("GET", "/v1/status").status == 200


def test_who_reads_nothing_hinders_nobody(served: Served) -> None:
    with served.raw() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(request(served, "GET /openapi.json") * 200)
        assert served.ask("GET", "/v1/status").status == 200
        assert parsed(client)[0] == 200  # and is served when it reads
    assert served.ask("GET", "/v1/status").status == 200


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path, most_open=3)
    yield one
    one.close()


def test_more_open_requests_than_there_is_room_for_are_refused_until_some_end(small: Served) -> None:
    clients = [small.raw() for _ in range(3)]
    for client in clients:
        client.sendall(request(small, "GET /v1/events?after=1000000&wait_s=30"))
    while (answer := small.ask("GET", "/v1/status")).status == 200:
        pass
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert answer.value == {"error": "3 requests are open; there is room for no more"}
    clients.pop().close()  # its request ends with it
    while small.ask("GET", "/v1/status").status != 200:
        pass
    for client in clients:
        client.close()


def test_more_connections_than_there_is_room_for_end_those_that_are_idle(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has been idle for longest goes; those at work stay, and some of each lease."""
    entry = {"id": "holds", **ATTACHED, "slo": 100}
    assert small.ask("POST", "/v1/jobs", entry).status == 201
    lease = small.ask("POST", "/v1/jobs/holds/attach", {"wait_s": 30}).value["lease"]
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(server, "MOST_KEPT", 1)
    beat = request(small, f"POST /v1/leases/{lease}/heartbeat", "Content-Length: 2") + b"{}"
    with small.raw() as holder:
        holder.sendall(beat)
        assert parsed(holder)[0] == 200
        with small.raw() as one:
            one.sendall(beat)
            assert parsed(one)[0] == 200
            with small.raw() as two:
                assert one.recv(1) == b""
                for client in (holder, two):
                    client.sendall(request(small, "GET /healthz"))
                    assert parsed(client)[0] == 200
    assert small.ask("DELETE", f"/v1/leases/{lease}?done=true").status == 200


def test_one_address_has_so_many_connections_at_most(small: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_OF_A_PEER", 1)
    with small.raw() as one, small.raw() as two:
        assert one.recv(1) == b""
        two.sendall(request(small, "GET /healthz"))
        assert parsed(two)[0] == 200


def test_a_key_that_is_given_twice_is_refused_in_bodies_of_any_size(small: Served) -> None:
    for body in (b'{"id": "a", "id": "b"}', b'{"id": "a", "x": "' + b"y" * 100_000 + b'", "id": "b"}'):
        answer = small.ask("POST", "/v1/jobs", body)
        assert (answer.status, answer.value) == (400, {"error": "the key id is given twice"})
    answer = small.ask("POST", "/v1/leases/none/heartbeat", b'{"pids": [], "pids": [1]}')
    assert answer.status in (400, 404)
    large = small.ask("POST", "/v1/jobs", b'{"id": "a", "x": ' + b"[" * 100_000)
    assert large.status == 400 and "the body is not JSON" in large.value["error"]
