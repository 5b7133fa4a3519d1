"""Output folders of benchmarks that start runs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def kept_or_spare(out: Path | None, name: str) -> Iterator[Path]:
    """Provide a folder for the output of a benchmark.

    Args:
        out: Folder that is created and kept. None means a temporary folder, which is removed at the end of the block.
        name: Name of the benchmark, which becomes part of the temporary folder's name.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    with tempfile.TemporaryDirectory(prefix=f"rollmux-{name}-") as spare:
        yield Path(spare)
