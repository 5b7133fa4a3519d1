"""Waiting for something to change, without looking again and again."""

from __future__ import annotations

import asyncio
import contextlib


class Bell:
    """Wakes all who wait. Who has been woken looks at what it waits for, and may wait again."""

    def __init__(self) -> None:
        self._rings = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it rings, or for so long, seconds; None: without end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rings.wait(), None if timeout_s is None else max(0.0, timeout_s))

    def ring(self) -> None:
        """Something has changed."""
        self._rings.set()
        self._rings = asyncio.Event()
