"""What commands have in common that print until they are ended."""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import typer

_STOPPED = 130
_LOOKS_S = 0.2


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside, also where it waits for an answer, with status 130 and without a word."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_STOPPED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pause(seconds: float) -> None:
    """Wait; not longer than the reader of standard output is there.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # hang-ups and errors are always reported
    until_s = monotonic() + seconds
    while (left_s := until_s - monotonic()) > 0:
        if output.poll(1000 * min(left_s, _LOOKS_S)):
            raise BrokenPipeError
