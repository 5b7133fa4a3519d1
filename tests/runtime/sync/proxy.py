"""Somebody on the way: passes on what goes through, remembers it, and may change it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from runtime.sync.wire import Address

Change = Callable[[bytes, int], bytes]
"""Given bytes and how many came before them this way, what goes on instead."""


def unchanged(data: bytes, before: int) -> bytes:
    return data


def flipped(at: int) -> Change:
    """One bit of the byte at a place is another one."""

    def change(data: bytes, before: int) -> bytes:
        place = at - before
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] if 0 <= place < len(data) else data

    return change


class Proxy:
    """Stands before an inbox, for one connection.

    Args:
        forth, back: what becomes of the bytes to the inbox, and of those from it.

    Attributes:
        seen: all that has gone through, either way.
    """

    def __init__(self, inbox: Address, forth: Change = unchanged, back: Change = unchanged) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._server.getsockname()
        self.seen = b""
        self._threads = ThreadPoolExecutor(3)
        self._threads.submit(self._serve, inbox, forth, back)

    def close(self) -> None:
        self._server.close()
        self._threads.shutdown()

    def _serve(self, inbox: Address, forth: Change, back: Change) -> None:
        source, to = self._server.accept()[0], socket.create_connection(inbox)
        ways = [self._threads.submit(self._pass, source, to, forth), self._threads.submit(self._pass, to, source, back)]
        for way in ways:
            way.result()
        source.close()
        to.close()

    def _pass(self, source: socket.socket, to: socket.socket, change: Change) -> None:
        before = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                to.sendall(change(data, before))
                before += len(data)
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
