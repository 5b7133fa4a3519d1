"""An engine in a process of its own: vLLM's allocator of memory that sleeps serves one engine in the life of a process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from runtime.engines import make_engine
from runtime.engines.interface import Kind


def _serve(ends: Connection, kind: Kind, folder: Path, options: dict[str, Any]) -> None:
    engine: Any = make_engine(kind, folder, **options)
    ends.send(None)
    while (call := ends.recv()) is not None:
        name, arguments, named = call
        try:
            ends.send((True, getattr(engine, name)(*arguments, **named)))
        except Exception as error:
            ends.send((False, error))
    engine.close()


class EngineElsewhere:
    """Calls of its methods are those of an engine in another process; so are what they return and raise.

    Args:
        kind, folder, options: of the engine, as `make_engine` takes them.
    """

    def __init__(self, kind: Kind, folder: Path, **options: Any) -> None:
        spawn = multiprocessing.get_context("spawn")  # a process that has used CUDA cannot be forked
        self._ends, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, kind, folder, options))
        self._process.start()
        theirs.close()
        self._ends.recv()  # EOFError where it could not be made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._ends.send((name, arguments, named))
            went, result = self._ends.recv()
            if not went:
                raise result
            return result

        return call

    def close(self) -> None:
        """End the engine, and its process."""
        self._ends.send(None)
        self._process.join(120)
        self._process.kill()
        self._ends.close()
