"""A world of processes in one thread of control: an event loop on a simulated clock, and threads that run one at a time.

Each process has a queue of what is ready, timers, a clock and a source of chance of its own. The world runs one turn of one process
after the other, in the order of their times; how long a turn takes is drawn. Within a process the order is that of asyncio. So
everything that happens follows from the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import warnings
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import count
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

_TURN_S = (0.00002, 0.00002, 0.0002, 0.002)  # that a turn of a process may take
_EXECUTOR_S = (0.0001, 0.001, 0.02)  # before work that is handed to a thread begins
MOST_TURNS = 200_000  # of a world; more is a loop that waits for nothing


class Dead(BaseException):
    """The process that this is part of is no more."""


class Handle:
    """Something that is to be done, as asyncio knows it."""

    __slots__ = ("arguments", "context", "is_cancelled", "work")

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...], context: Context | None = None) -> None:
        self.work, self.arguments, self.context = work, arguments, context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class Process:
    """A process of the world.

    Args:
        ahead_s: its clock is ahead of the world's by so much, at first. rate: its seconds in one of the world's.

    Attributes:
        steps: callbacks that it has run. dies_at: the step at which it is killed, instead of running it; 0: none.
        free_s: the world's time before which it does nothing; paused_until_s: the same, by pauses alone.
        signals: of SIGTERM, that it has got.
        ends: are called when it is no more.
    """

    def __init__(self, world: World, name: str, ahead_s: float = 0.0, rate: float = 1.0) -> None:
        self.world, self.name, self.ahead_s, self.rate = world, name, ahead_s, rate
        self.ready: deque[Handle] = deque()
        self.timers: list[tuple[float, int, Handle]] = []
        self.draw = Random(f"{world.seed} {name}")
        self.steps = self.dies_at = self.signals = 0
        self.free_s = self.paused_until_s = self._wakes_s = world.now_s
        self.dead = False
        self.ends: list[Callable[[], None]] = []
        self.threads: list[Strand] = []
        world.processes.append(self)
        world.every.append(self)

    def clock(self) -> float:
        """Its own time, seconds."""
        return self.world.now_s * self.rate + self.ahead_s

    def pause(self, seconds: float, sleeps: bool = False) -> None:
        """It does nothing for a while.

        Args:
            sleeps: its machine does, and its clock stands still.
        """
        until_s = self.world.now_s + seconds
        self.free_s, self.paused_until_s = max(self.free_s, until_s), max(self.paused_until_s, until_s)
        if sleeps:
            asleep_already_s = max(self._wakes_s, self.world.now_s)
            self.ahead_s -= max(until_s - asleep_already_s, 0.0) * self.rate
            self._wakes_s = max(self._wakes_s, until_s)

    def kill(self) -> None:
        """It is no more; where it was in the middle of something, that is never gone on with."""
        if self.dead:
            return
        self.dead = True
        self.ready.clear()
        self.timers.clear()
        self.world.processes.remove(self)
        self.world.note(f"{self.name} ends")
        for end in self.ends:
            end()

    def post(self, after_s: float, work: Callable[..., None], *arguments: Any) -> None:
        """Let something happen in it, so much later by its clock; nothing where it is no more then."""
        if not self.dead:
            world = self.world
            due_s = world.now_s * self.rate + self.ahead_s + after_s
            heapq.heappush(self.timers, (due_s, next(world.numbers), Handle(work, arguments)))


class World(asyncio.AbstractEventLoop):
    """The loop of all processes.

    Attributes:
        now_s: its time. current: the process whose turn it is. log: what has happened, a line each, where it is kept.
    """

    def __init__(self, seed: object, keeps_log: bool = False) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.processes: list[Process] = []
        self.every: list[Process] = []
        self.numbers = count()
        self.errors: list[str] = []
        self.log: list[str] | None = [] if keeps_log else None
        self.turns = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.current = self.outside = Process(self, "world")

    def note(self, line: str) -> None:
        """Something has happened."""
        if self.log is not None:
            self.log.append(f"{self.now_s:.6f} {line}")

    def in_process(self, process: Process, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do something as a process."""
        before, self.current = self.current, process
        try:
            return work(*arguments)
        finally:
            self.current = before

    def run(self, is_over: Callable[[], bool], until_s: float) -> bool:
        """Let time go by. Whether it was over before `until_s`."""
        asyncio._set_running_loop(self)
        try:
            while not is_over():
                process, due_s, now_s = None, until_s, self.now_s
                for one in self.processes:  # this is most of what the loop does
                    if (its_s := one.free_s) >= due_s:
                        continue
                    if one.ready:
                        if its_s < now_s:
                            its_s = now_s
                    else:
                        timers = one.timers
                        while timers and timers[0][2].is_cancelled:
                            heapq.heappop(timers)
                        if not timers:
                            continue
                        if (timer_s := (timers[0][0] - one.ahead_s) / one.rate) > its_s:
                            its_s = timer_s
                    if its_s < due_s:
                        process, due_s = one, its_s
                if process is None:
                    return False
                self.now_s = max(self.now_s, due_s)
                self._turn(process)
            return True
        finally:
            asyncio._set_running_loop(None)

    def close(self) -> None:
        """The world is over: what still runs is killed, and all threads leave their frames."""
        for process in [*self.processes]:
            process.kill()
        for process in self.every:
            self.current = process
            for strand in process.threads:
                strand.unwind()
        asyncio._set_running_loop(self)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that are made while others are closed
            for task in self.tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with contextlib.suppress(RuntimeError, Dead):  # it would wait while it is closed
                        task.get_coro().close()
            self.tasks.clear()
        asyncio._set_running_loop(None)

    def _turn(self, process: Process) -> None:
        self.current = process
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise AssertionError(f"a loop without an end in {process.name}")
        timers, ready = process.timers, process.ready
        last_s = self.now_s * process.rate + process.ahead_s + 1e-9
        while timers and timers[0][0] <= last_s:
            ready.append(heapq.heappop(timers)[2])
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle.is_cancelled:
                    continue
                process.steps += 1
                if process.steps == process.dies_at:
                    process.kill()
                    break
                context = handle.context
                try:
                    if context is None:
                        handle.work(*handle.arguments)
                    else:
                        context.run(handle.work, *handle.arguments)
                except SystemExit:
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": str(handle.work), "exception": error})
                if process.dead:
                    break
        except (Dead, SystemExit):
            process.kill()
        free_s = self.now_s + _TURN_S[int(process.draw.random() * len(_TURN_S))]
        if free_s > process.free_s:
            process.free_s = free_s
        self.current = self.outside

    # what asyncio asks of a loop

    def time(self) -> float:
        return self.current.clock()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle, process = Handle(callback, args, context), self.current
        if not process.dead:
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        process = self.current
        return self.call_at(self.now_s * process.rate + process.ahead_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle, process = Handle(callback, args, context), self.current
        if not process.dead:
            heapq.heappush(process.timers, (when, next(self.numbers), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do something in a thread that begins some time later."""
        future, process = self.create_future(), self.current

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                end, value = future.set_exception, error
            else:
                end, value = future.set_result, result
            self.call_soon(lambda: None if future.done() else end(value))

        begin = Strand(process, work).resume if _may_block(func) else lambda _: work()
        self.call_later(process.draw.choice(_EXECUTOR_S), begin, 0)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.current.dead and "was destroyed" not in str(context.get("message")):
            self.errors.append(f"{self.current.name}: {context.get('message')}: {error!r}")


def _may_block(work: Any) -> bool:
    """Whether work that was handed to a thread waits for other threads: the end of the one that makes commits."""
    return any("Commits" in getattr(part, "__qualname__", "") for part in getattr(work, "args", ()))


class Strand:
    """A thread of a process: it runs only while it has been resumed and has not blocked again, and all else stands still then.

    Args:
        work: what it does.
    """

    present: Strand | None = None  # that which runs

    def __init__(self, process: Process, work: Callable[[], Any]) -> None:
        self.process, self._work = process, work
        self._frames = greenlet(self._carry_out)
        self.blocks = 0  # how often it has blocked: who wakes it from an earlier time is too late
        self.over = False
        self.joining: list[Strand] = []
        process.threads.append(self)

    def resume(self, blocks: int) -> None:
        """Let it run until it blocks again; in the loop."""
        if self.over or blocks != self.blocks:
            return
        self._go_on()

    def _go_on(self) -> None:
        before, Strand.present = Strand.present, self
        self._frames.parent = getcurrent()
        self._frames.switch()
        Strand.present = before

    def wake(self, after_s: float = 0.0) -> None:
        """Let it go on, from where it blocks now or is about to."""
        self.process.post(after_s, self.resume, self.blocks)

    def block(self, timeout_s: float | None = None) -> None:
        """Wait for a `wake`; in its own frames.

        Raises:
            Dead: its process is no more.
        """
        if self.process.dead:
            raise Dead
        if timeout_s is not None:
            self.wake(max(0.0, timeout_s))
        self._frames.parent.switch()
        self.blocks += 1
        if self.process.dead:
            raise Dead

    def unwind(self) -> None:
        """Its process is no more: leave its frames."""
        while self._frames and not self.over:
            self._go_on()

    def _carry_out(self) -> None:
        """All that it does."""
        try:
            self._work()
        except Dead:
            pass
        except BaseException as error:
            if not self.process.dead:
                self.process.world.errors.append(f"{self.process.name}: a thread ends with {error!r}")
        self.over = True
        for other in self.joining:
            other.wake()
