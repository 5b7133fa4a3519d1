"""Where a service listens, and with what: the same as before where it goes on, and not beyond this machine unless that is said."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from runtime.service.address import HTTP, Listen, Listening, listening_of, parse_listen, remember
from runtime.service.http.server import bind
from runtime.service.tokens import Holder, Right, Tokens


def test_host_and_port_are_read_as_written() -> None:
    assert parse_listen(None, False) is None
    assert parse_listen("127.0.0.1:8800", False) == Listen("127.0.0.1", 8800)
    assert parse_listen("[::1]:0", False) == Listen("::1", 0)
    assert str(Listen("::1", 1)) == "[::1]:1" and str(Listen("localhost", 1)) == "localhost:1"


@pytest.mark.parametrize("text", ["", "8800", "127.0.0.1", "127.0.0.1:", ":8800", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--http .*: must be HOST:PORT, as 127\.0\.0\.1:8800$"):
        parse_listen(text, False)


def test_beyond_loopback_nothing_listens_unless_that_is_said() -> None:
    for text in ("0.0.0.0:0", "[::]:0", "192.0.2.1:80"):
        with pytest.raises(InputError, match="--listen-beyond-loopback allows it"):
            parse_listen(text, False)
    assert parse_listen("0.0.0.0:0", True) == Listen("0.0.0.0", 0, True)
    with pytest.raises(InputError, match=r"^--http no-such-host\.invalid:1: "):
        parse_listen("no-such-host.invalid:1", True)


def test_a_service_listens_with_the_same_again(tmp_path: Path) -> None:
    first = listening_of(tmp_path, None, False)
    assert first.where == Listen() and Tokens(tmp_path).holder(first.token) == Holder("", Right.OPERATE)
    remember(tmp_path, replace(first, where=Listen(port=8801)))
    assert (tmp_path / HTTP).stat().st_mode & 0o777 == 0o600
    assert listening_of(tmp_path, None, False) == Listening(Listen(port=8801), first.token)
    assert listening_of(tmp_path, Listen(port=9), False) == Listening(Listen(port=9), first.token)
    Tokens(tmp_path).revoke(Tokens(tmp_path).list()[0].id)  # a token that was revoked does not come back
    second = listening_of(tmp_path, None, False)
    assert second.where.port == 8801 and second.token != first.token
    (tmp_path / HTTP).write_text("{")
    assert listening_of(tmp_path, None, False).where == Listen()


def test_leave_to_listen_beyond_loopback_does_not_outlive_the_flag(tmp_path: Path) -> None:
    remember(tmp_path, Listening(Listen("0.0.0.0", 8801, True), "x"))
    with pytest.raises(InputError, match="--listen-beyond-loopback allows it"):
        listening_of(tmp_path, None, False).where.resolve()
    assert listening_of(tmp_path, None, True).where == Listen("0.0.0.0", 8801, True)


def test_a_port_that_somebody_has_is_waited_for_and_then_refused() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            where = Listen(port=other.getsockname()[1])
            with pytest.raises(InputError, match=rf"^--http {where}: Address already in use$"):
                await bind(where)
            waiting = asyncio.ensure_future(bind(where, 30.0))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        with await waiting as taken:
            assert taken.getsockname()[1] == where.port
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(main())
