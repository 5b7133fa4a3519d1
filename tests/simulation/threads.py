"""What `threading`, `queue` and `time` are to code that runs in the world: their waits let the world go on."""

from __future__ import annotations

import time as clocks
from collections import deque
from collections.abc import Callable
from queue import Full
from typing import Any

from tests.simulation.loop import Dead, Process, Strand

_DAY_S = 1.7e9  # of the time of day at which a world begins
_READS_S = 1e-6  # that reading a clock takes: no two readings are the same


def here() -> Strand:
    """The thread that asks."""
    assert Strand.present is not None, "the loop itself waits"
    return Strand.present


class Waited:
    """Something that threads of a process wait for."""

    def __init__(self) -> None:
        self._waiting: list[Strand] = []

    def _until(self, holds: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until something holds; whether it does."""
        if holds():
            return True
        strand = here()
        clock = strand.process.clock
        until_s = None if timeout_s is None else clock() + timeout_s
        while not holds():
            left_s = None if until_s is None else until_s - clock()
            if left_s is not None and left_s <= 0:
                return False
            self._waiting.append(strand)
            strand.block(left_s)
        return True

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for strand in waiting:
            strand.wake()


class Event(Waited):
    """As of `threading`."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._changed()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._until(self.is_set, timeout)


class Semaphore(Waited):
    """As of `threading`."""

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        self._value = value

    def acquire(self) -> bool:
        self._until(lambda: self._value > 0, None)
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._changed()


class SimpleQueue(Waited):
    """As of `queue`."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[Any] = deque()

    def put(self, part: Any) -> None:
        self._parts.append(part)
        self._changed()

    def get(self) -> Any:
        self._until(lambda: bool(self._parts), None)
        return self._parts.popleft()


class BoundedQueue(SimpleQueue):
    """The class `Queue` of `queue`."""

    def __init__(self, maxsize: int) -> None:
        super().__init__()
        self._most = maxsize

    def put_nowait(self, part: Any) -> None:
        if len(self._parts) >= self._most:
            raise Full
        self.put(part)


class Thread:
    """As of `threading`; it belongs to the process in whose turn it was made."""

    def __init__(self, target: Callable[..., Any], name: str = "", args: tuple[Any, ...] = (), daemon: bool = False) -> None:
        self._strand = Strand(present_process(), lambda: target(*args))

    def start(self) -> None:
        self._strand.wake()

    def is_alive(self) -> bool:
        return not self._strand.over

    def join(self, timeout: float | None = None) -> None:
        strand = here()
        if not self._strand.over:
            self._strand.joining.append(strand)
            strand.block(timeout)


class Threading:
    """The names of `threading` that are used."""

    Event, Semaphore, Thread = Event, Semaphore, Thread

    @staticmethod
    def current_thread() -> Strand:
        return here()


class Time:
    """The names of `time` that are used."""

    @staticmethod
    def monotonic() -> float:
        process = present_process()
        world = process.world
        world.now_s += _READS_S
        return world.now_s * process.rate + process.ahead_s

    @staticmethod
    def time() -> float:
        """Return the time of day on an owner's machine, seconds; it never jumps there."""
        return _DAY_S + present_process().world.now_s

    @staticmethod
    def sleep(seconds: float) -> None:
        here().block(seconds)

    localtime, strftime = clocks.localtime, clocks.strftime


class Queue:
    """The names of `queue` that are used."""

    SimpleQueue = SimpleQueue


class Chance:
    """The names of `random` and `secrets` that are used: the chance of the process that asks."""

    @staticmethod
    def uniform(low: float, high: float) -> float:
        return present_process().draw.uniform(low, high)

    @staticmethod
    def token_hex(count: int) -> str:
        return f"{present_process().draw.getrandbits(8 * count):0{2 * count}x}"


_world: list[Any] = []


def present_process() -> Process:
    """The process whose turn it is; raises Dead where it is no more."""
    process: Process = _world[-1].current
    if process.dead:
        raise Dead
    return process


def enter(world: Any) -> None:
    """From now on a world is the one that is asked."""
    _world[:] = [world]
