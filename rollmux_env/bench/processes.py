"""Spreads work over processes, with reports of progress and a limit of time."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from rollmux_env.errors import InputError, PlanError
from rollmux_env.validation_errors import one_line

Report = Callable[[int, int, int], None]
Item = TypeVar("Item")
Found = TypeVar("Found")
_LOOKS_S = 0.5  # seconds between two checks of the workers' progress
_UNGUARDED = 78  # exit status of a worker that tried to start workers itself


def spread(
    work: Callable[[Item, Callable[[int, int], None]], Found],
    items: Sequence[Item],
    workers: int = 1,
    report: Report = lambda index, phases, departed: None,
    limit_s: float | None = None,
    name: Callable[[Item], str] = str,
) -> Iterator[tuple[int, Found]]:
    """Do work on items, in several processes, and yield (index, result) as they end.

    Args:
        work: Function of a module that takes an item and a callback for progress, which takes two numbers.
        items: Items to work on.
        workers: Number of processes; 1 does the work in this process, one item after the other.
        report: Callback for progress: index of the item, and the two numbers.
        limit_s: Longest time that an item may take, in seconds, or None. Items with a limit run in separate processes.
        name: Function that returns the name of an item for error messages.

    Raises:
        InputError: If there is no worker, one was killed, or they cannot import the calling script. Errors of `work` are passed on;
            other work is then stopped, as by an interrupt.
        PlanError: If an item took longer than `limit_s`.
    """
    if workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    if limit_s is None and (workers == 1 or len(items) == 1):
        for index, item in enumerate(items):
            yield index, work(item, partial(report, index))
        return
    _check_script(workers)
    _check_sendable(workers, (work, *items[:1]))
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    counts = context.Array("d", 3 * len(items), lock=False)
    pool = ProcessPoolExecutor(min(workers, len(items)), mp_context=context, initializer=_begin, initargs=(counts,))
    try:
        waiting = {pool.submit(_count, work, index, item): index for index, item in enumerate(items)}
        workers_here = set(multiprocessing.active_children()) - others
        while waiting:
            done, _ = wait(waiting, timeout=_LOOKS_S, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
            for index in waiting.values():
                if _is_late(counts, index, report, limit_s):
                    raise PlanError(f"{name(items[index])}: it took longer than --time-limit {limit_s:g} s")
    except BrokenProcessPool:
        pool.shutdown(cancel_futures=True)  # the exit status of each process is known only afterwards
        raise _why_broken(workers, {process.exitcode for process in workers_here}) from None
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _check_script(workers: int) -> None:
    """Check that processes can import the calling script again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # this is a worker that imports the calling script
        raise SystemExit(_UNGUARDED)
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not os.path.exists(script):
        raise InputError(f"workers={workers}: each process imports the script again, and this one is no file; save it first")


def _check_sendable(workers: int, sent: object) -> None:
    """Check that processes can be sent the work, such as a user's class, which has to be at the top level of a module."""
    try:
        pickle.dumps(sent)
    except Exception as error:
        raise InputError(f"workers={workers}: {one_line(str(error))}; define it at the top level of a module") from None


def _why_broken(workers: int, statuses: Collection[int | None]) -> InputError:
    """Return the error that tells why a process has ended too soon.

    Args:
        workers: Number of processes.
        statuses: Exit statuses of all processes.
    """
    if _UNGUARDED in statuses:
        return InputError(f"workers={workers}: each process imports the script again; call this below `if __name__ == '__main__':`")
    return InputError(f"--workers {workers}: a process was killed before its task was done (out of memory?)")


def _is_late(counts: Any, index: int, report: Report, limit_s: float | None) -> bool:
    """Report the progress of an item, and return whether it takes longer than the limit."""
    phases, departed, began_s = counts[3 * index : 3 * index + 3]
    if phases:
        report(index, int(phases), int(departed))
    return limit_s is not None and 0 < began_s < monotonic() - limit_s


_counts: Any = None  # in a worker: progress and start of each item, shared with the parent process


def _begin(counts: Any) -> None:
    """Initialise a worker. It ignores Ctrl-C, which the parent process handles."""
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _count(work: Callable[[Item, Callable[[int, int], None]], Found], index: int, item: Item) -> Found:
    def report(phases: int, departed: int) -> None:
        _counts[3 * index], _counts[3 * index + 1] = phases, departed

    _counts[3 * index + 2] = monotonic()
    return work(item, report)
