"""No Ctrl-C and no SIGTERM is lost, whatever others make of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import pytest

from runtime.presses import allowing, heard, look, undisturbed


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_press_ends_what_is_under_way_even_if_somebody_has_swallowed_it(number: int) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), heard():
        with contextlib.suppress(KeyboardInterrupt):
            press(number)
        look()
        raise AssertionError("not reached")
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    with heard():
        look()  # that one is over


def test_a_press_is_heard_while_somebody_else_has_the_handler_and_after_it() -> None:
    with pytest.raises(KeyboardInterrupt), heard():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        press(signal.SIGTERM)
        look()
    with pytest.raises(KeyboardInterrupt), heard():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
        press(signal.SIGTERM)
    with pytest.raises(SystemExit), heard():
        sys.exit(1)  # nobody has pressed


def test_presses_that_are_allowed_are_counted_and_the_next_one_ends_it() -> None:
    with heard(), pytest.raises(KeyboardInterrupt):
        with allowing(1) as presses:
            assert presses() == 0
            press()
            assert presses() == 1
            with undisturbed():
                press()
                press(signal.SIGTERM)
            assert presses() == 3
            look()
        raise AssertionError("not reached")
