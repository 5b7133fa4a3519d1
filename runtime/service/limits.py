"""How much a service takes: jobs that wait or run, and bytes of a job's description, which its journal keeps."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.answers import TooMany, Unprocessable
from runtime.jobs.spec import JobSpec

MOST_JOBS = 10_000
MOST_BYTES = 64 << 10


def check_limits(specs: Sequence[JobSpec], present: int) -> None:
    """Make sure that a service can take jobs.

    Args:
        present: jobs that it has, those aside that have ended.

    Raises:
        TooMany: they are too many. Unprocessable: one is too long. One line.
    """
    for spec in specs:
        size = len(spec.model_dump_json().encode())
        if size > MOST_BYTES:
            raise Unprocessable(f"job {spec.id}: its description has {size} bytes; a service takes {MOST_BYTES} at most")
    if present + len(specs) > MOST_JOBS:
        room = max(0, MOST_JOBS - present)
        raise TooMany(f"{len(specs)} jobs are too many: {present} wait or run, and a service takes {room} more at most")
