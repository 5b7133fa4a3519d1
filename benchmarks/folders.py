"""Folders of benchmarks that start runs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def kept_or_spare(out: Path | None, name: str) -> Iterator[Path]:
    """A folder for everything; kept where it was asked for.

    Args:
        name: of the benchmark, in the name of a folder that is not kept.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    with tempfile.TemporaryDirectory(prefix=f"rollmux-{name}-") as spare:
        yield Path(spare)
