"""What commands have in common that print until they are ended."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

_STOPPED = 130


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside, with status 130 and without a word."""
    from runtime.presses import heard

    try:
        with heard():
            yield
    except KeyboardInterrupt:
        raise typer.Exit(_STOPPED) from None


def pause(seconds: float) -> None:
    """Wait; not longer than the reader of standard output is there.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # hang-ups and errors are always reported
    if output.poll(1000 * seconds):
        raise BrokenPipeError
