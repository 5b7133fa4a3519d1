"""The log of a job's own process: a line per iteration, starts, restarts and errors. `rollmux logs` prints it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from rollmux_env.validation_errors import one_line
from runtime.jobside.messages import IterationOrder
from runtime.output import LARGEST, LOGS, SERVICE_LOG, append_bounded

SHOWN = ("reward", "eval_reward", "loss")
"""Metrics that come first in a line, and are the only ones on the console."""

_KEPT = ("reward", "eval_reward", "response_tokens", "length", "loss")  # metrics that `rollmux logs` shows by default
_ITERATION = re.compile(r"(\S+ \| )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  iteration \d+ of \d+: ")


def note(text: str) -> None:
    """Print a line with the date and time, and flush it to the log."""
    print(_dated(text), flush=True)


def start_line(order: IterationOrder) -> str:
    """Return a line about the start of a job: its reason and its nodes."""
    names = dict.fromkeys(node.name for nodes in order.nodes.values() for node in nodes)
    if order.profile:
        begins = "starts, to be profiled,"
    elif order.checkpoint is not None:
        begins = f"continues from its checkpoint after iteration {order.iteration}"
    else:
        begins = "starts" if order.iteration == 0 else f"starts without a checkpoint at iteration {order.iteration + 1}"
    return f"{begins} on {' '.join(names)}"


def iteration_line(number: int, of: int, seconds: float, metrics: Mapping[str, float]) -> str:
    """Return a line about a completed iteration.

    Args:
        number: Number of the iteration, from 1.
        of: Number of iterations of the job.
        seconds: Duration in seconds, including waits for permits.
        metrics: Metrics that the job has reported; those of `SHOWN` come first.
    """
    names = [*(name for name in SHOWN if name in metrics), *(name for name in metrics if name not in SHOWN)]
    figures = [f"{seconds:.2f} s", *(f"{one_line(name, 64)} {metrics[name]:.4g}" for name in names)]
    return f"iteration {number} of {of}: {', '.join(figures)}"


def without_details(line: str) -> str:
    """Return a line of a log; a line about an iteration is reduced to seconds, reward, length and loss."""
    if not (begins := _ITERATION.match(line)):
        return line
    seconds, *figures = line[begins.end() :].split(", ")
    return begins[0] + ", ".join([seconds, *(figure for figure in figures if figure.partition(" ")[0] in _KEPT)])


def append_job_log(folder: str, job_id: str, text: str) -> None:
    """Append a line to a service's log of an attached job, if there is room on the disk. `rollmux logs` prints it.

    Args:
        folder: Folder of the service.
        job_id: Id of the job.
        text: The line.
    """
    append_bounded(Path(folder) / LOGS / job_id / f"{SERVICE_LOG}.log", f"{_dated(text)}\n", LARGEST)


def _dated(text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}"
