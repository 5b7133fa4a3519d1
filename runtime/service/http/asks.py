"""Queues of requests that ask for nodes or reports: an overloaded service refuses them before it fails the owners of leases.

Requests that keep or free nodes (a heartbeat, a release) do not wait in them. Users take turns, however many requests each has.
"""

from __future__ import annotations

import asyncio
from collections import deque

from rollmux_env.errors import TooMany

MOST_WAITING = 4000
MOST_OF_A_USER = 1000
TOGETHER = 16  # requests in one turn of the loop: some milliseconds


class RequestQueue:
    """Round-robin queue: it lets `TOGETHER` requests pass in each turn of the event loop, one user after the other.

    Args:
        most: Largest number of waiting requests.
        most_of_a_user: Largest number of waiting requests of one user.
    """

    def __init__(self, most: int = MOST_WAITING, most_of_a_user: int = MOST_OF_A_USER) -> None:
        self._most, self._most_of_a_user = most, most_of_a_user
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # waiting requests by user; the first user is next
        self._waiting, self._left, self._is_due = 0, TOGETHER, False

    async def turn(self, user: str) -> None:
        """Wait until a request of a user may pass.

        Args:
            user: Name of the user.

        Raises:
            TooMany: If too many requests wait already; one line.
        """
        if self._left and not self._lines:
            self._left -= 1
            self._soon()
            return
        if self._waiting >= self._most:
            raise TooMany(f"{self._most} requests wait for their turn; there is room for no more")
        line = self._lines.setdefault(user, deque())
        if len(line) >= self._most_of_a_user:
            raise TooMany(f"{self._most_of_a_user} requests of this user wait for their turn; there is room for no more")
        waits = asyncio.get_running_loop().create_future()
        line.append(waits)
        self._waiting += 1
        self._soon()
        await waits

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Let waiting requests pass in another turn of the loop."""
        self._is_due, self._left = False, TOGETHER
        while self._left and self._lines:
            user = next(iter(self._lines))
            line = self._lines.pop(user)
            waits = line.popleft()
            self._waiting -= 1
            if line:
                self._lines[user] = line
            if not waits.done():  # a request that is done was cancelled: its client has disconnected
                waits.set_result(None)
                self._left -= 1
        if self._lines:
            self._soon()
