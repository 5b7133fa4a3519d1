"""Whether an engine has failed because one of its processes has ended: vLLM starts one for each device where they are several."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from rollmux_env.validation_errors import one_line
from runtime.phases import WorkerDied

_Method = TypeVar("_Method", bound=Callable[..., Any])


def process_died(error: BaseException, executor: Any) -> bool:
    """Whether an error of vLLM's is the death of one of its processes: it says so by `EngineDeadError`, or its executor knows.

    Args:
        executor: vLLM's, or None.
    """
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ == "EngineDeadError":
            return True
        cause = cause.__cause__ or cause.__context__
    return bool(getattr(executor, "is_failed", False))


def dies_with_its_processes(method: _Method) -> _Method:
    """Let a method of an engine raise WorkerDied where a process of the engine's has ended, so that the job is made anew.

    The engine's `executor()` is asked for what knows of the processes.
    """

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            if process_died(error, self.executor()):
                raise WorkerDied(f"a process of its engine has died: {one_line(str(error), 200)}") from error
            raise

    return call  # type: ignore[return-value]
