"""Waiting in commands that follow a service until the user ends them."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import typer

STOPPED = 130


_LOOKS_S = 0.2


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the block, even while it waits for an answer, with status 130 and no message."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pause(seconds: float) -> None:
    """Wait, and raise an error as soon as the reader of standard output is gone.

    Raises:
        BrokenPipeError: If standard output is closed on the other end.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # hang-ups and errors are always reported
    until_s = monotonic() + seconds
    while (left_s := until_s - monotonic()) > 0:
        if output.poll(1000 * min(left_s, _LOOKS_S)):
            raise BrokenPipeError
