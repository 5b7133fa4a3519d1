"""What a job's processes have printed, from an offset on."""

from __future__ import annotations

from pathlib import Path

from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import one_line
from runtime.answers import NotFound
from runtime.output import LOGS, SERVICE_LOG

_USUAL = ("controller", SERVICE_LOG)
_MOST = 1 << 20  # bytes of an answer


def read_log(folder: Path, job_id: str, process: str | None, offset: int) -> tuple[bytes, int, list[str]]:
    """Some of what a process of a job has printed, the offset of what follows, and all of its processes that have begun.

    Args:
        folder: of the service. job_id: of a job that there is. process: as its file is named; None: one that tells of iterations.
        offset: bytes of what was read before; a file that has fewer was cut since, and is read from its beginning.

    Raises:
        NotFound: the job has no such process; one line.
    """
    home = folder / LOGS / job_id
    names = sorted(path.stem for path in home.glob("*.log"))
    wanted = process or next((name for name in (*_USUAL, *names) if name in names), _USUAL[0])
    if wanted not in names:
        there = f"; there are {', '.join(names)}" if names else ""
        raise NotFound(f"job {job_id}: no process {one_line(wanted, 80)} of it has begun{there}{did_you_mean(wanted, names)}")
    with (home / f"{wanted}.log").open("rb") as file:
        size = file.seek(0, 2)
        begins = offset if offset <= size else 0
        file.seek(begins)
        data = file.read(_MOST)
    if len(data) == _MOST and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    return data, begins + len(data), names
