"""No Ctrl-C and no SIGTERM is lost, whatever others make of it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from runtime.signals import allowing, check_signals, listening, masked, shielded


def press(number: int = signal.SIGINT) -> None:
    """To this thread: pytest's others would take what this one has masked."""
    signal.pthread_kill(threading.get_ident(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_press_ends_what_is_under_way_even_if_somebody_has_swallowed_it(number: int) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), listening():
        with contextlib.suppress(KeyboardInterrupt):
            press(number)
        check_signals()
        raise AssertionError("not reached")
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    with listening():
        check_signals()  # that one is over


def test_a_press_is_heard_while_somebody_else_has_the_handler_and_after_it() -> None:
    with pytest.raises(KeyboardInterrupt), listening():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        press(signal.SIGTERM)
        check_signals()
    with pytest.raises(KeyboardInterrupt), listening():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
        press(signal.SIGTERM)
    with pytest.raises(SystemExit), listening():
        sys.exit(1)  # nobody has pressed


def test_nobody_who_takes_the_handlers_meets_a_press_while_they_are_masked() -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), listening():
        with masked():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, frame: sys.exit(1))
                press(number)
        with allowing(2) as interrupts:
            check_signals()
            assert interrupts() == 2
            press()
            with contextlib.suppress(KeyboardInterrupt):
                check_signals()
                raise AssertionError("not reached")
        check_signals()
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_mask_and_handlers_are_restored_also_where_a_handler_raises_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python runs the handlers that are due before it installs another one; a press that another thread has taken is due then."""

    def state() -> tuple[Any, ...]:
        return signal.pthread_sigmask(signal.SIG_BLOCK, ()), *map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))

    before, install, calls = state(), signal.signal, list[int]()

    def interrupted(number: int, handler: Any) -> Any:
        calls.append(number)
        if len(calls) == 1:
            sys.exit(1)
        return install(number, handler)

    with pytest.raises(SystemExit), masked():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        monkeypatch.setattr(signal, "signal", interrupted)
    monkeypatch.undo()
    assert state() == before


@pytest.mark.parametrize("listens", [False, True])
def test_a_child_that_is_started_under_the_mask_can_be_ended(listens: bool) -> None:
    """Else Ray waits for a second for each of its processes when it ends them."""
    with listening() if listens else contextlib.nullcontext():
        with masked():
            child = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: None)  # as Ray starts its own
        child.terminate()
        try:
            assert child.wait(60) == -signal.SIGTERM
        finally:
            child.kill()
            child.wait()


def test_a_press_that_nobody_has_looked_for_is_answered_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), listening():
        press()
    with listening(), allowing(1):
        press()  # which has been answered by who allowed for it


def test_a_press_in_a_hook_of_a_fork_raises_nothing_there_and_one_of_the_child_is_its_own() -> None:
    program = """
        import os, signal, subprocess
        from runtime.signals import listening, check_signals, masked
        pressed, ended = False, False
        os.register_at_fork(before=lambda: pressed and os.kill(os.getpid(), signal.SIGINT))
        os.register_at_fork(after_in_child=lambda: ended and os.kill(os.getpid(), signal.SIGTERM))
        begin = lambda: subprocess.run(["true"], preexec_fn=lambda: None).returncode
        with listening():
            ended = True
            assert begin() == -signal.SIGTERM
            with masked():
                assert begin() == -signal.SIGTERM
            check_signals()
            pressed, ended = True, False
            assert begin() == 0
            try:
                check_signals()
            except KeyboardInterrupt:
                os._exit(3)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")


def test_presses_that_are_allowed_are_counted_and_the_next_one_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt), listening():
        with allowing(1) as interrupts:
            assert interrupts() == 0
            press()
            assert interrupts() == 1
            with shielded():
                press()
                press(signal.SIGTERM)
            assert interrupts() == 3
            check_signals()
        raise AssertionError("not reached")


def test_a_signal_to_our_group_does_not_reach_those_that_are_started_meanwhile() -> None:
    program = """
        import os, signal, subprocess
        from runtime.signals import check_signals, listening
        with listening():
            with subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: None) as child:
                os.killpg(0, signal.SIGTERM)
                try:
                    check_signals()
                except KeyboardInterrupt:
                    assert child.poll() is None and os.getsid(child.pid) == child.pid
                    child.kill()
                    os._exit(3)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stderr) == (3, "")
