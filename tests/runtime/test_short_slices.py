"""Short slices change nothing but the slice of the thread that asks for them."""

from __future__ import annotations

import os
import threading

from runtime.short_slices import ask_for_short_slices


def test_a_thread_that_asks_for_short_slices_keeps_its_policy_and_its_nice_level() -> None:
    seen = []

    def ask() -> None:
        thread = threading.get_native_id()
        before = os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)
        granted = ask_for_short_slices()
        seen.append((before, (os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)), granted))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ((before, after, granted),) = seen
    assert before == after and before[0] == os.SCHED_OTHER and isinstance(granted, bool)


def test_a_thread_of_another_policy_is_left_alone() -> None:
    seen = []

    def ask() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        seen.append((ask_for_short_slices(), os.sched_getscheduler(0)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [(False, os.SCHED_BATCH)]
