"""What commands have in common that print until they are ended."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import typer

_STOPPED = 130
_LOOKS_S = 0.2


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside, with status 130 and without a word."""
    from runtime.signals import listening

    try:
        with listening():
            yield
    except KeyboardInterrupt:
        raise typer.Exit(_STOPPED) from None


def pause(seconds: float) -> None:
    """Wait; not longer than the reader of standard output is there, or until the user presses Ctrl-C.

    Raises:
        BrokenPipeError: nobody reads any more.
        KeyboardInterrupt: see `runtime.signals.check_signals`.
    """
    from runtime.signals import check_signals

    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # hang-ups and errors are always reported
    until_s = monotonic() + seconds
    while (left_s := until_s - monotonic()) > 0:
        if output.poll(1000 * min(left_s, _LOOKS_S)):
            raise BrokenPipeError
        check_signals()
