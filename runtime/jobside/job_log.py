"""What a job's own process says of it in its log: a line an iteration, starts, restarts and errors; `rollmux logs` prints them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from rollmux_env.validation_errors import one_line
from runtime.jobside.messages import Order
from runtime.output import LARGEST, LOGS, SERVICE_LOG, append_bounded

SHOWN = ("reward", "eval_reward", "loss")
"""Metrics that come first in a line, and alone on the console."""

_KEPT = ("reward", "eval_reward", "response_tokens", "length", "loss")  # in the lines of `rollmux logs`
_ITERATION = re.compile(r"(\S+ \| )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  iteration \d+ of \d+: ")


def note(text: str) -> None:
    """Print a line with the time of day; it is in the log when this returns."""
    print(_dated(text), flush=True)


def start_line(order: Order) -> str:
    """That the job is made, for what, and where."""
    names = dict.fromkeys(node.name for nodes in order.nodes.values() for node in nodes)
    if order.profile:
        begins = "starts, to be profiled,"
    elif order.checkpoint is not None:
        begins = f"goes on from its checkpoint after iteration {order.iteration}"
    else:
        begins = "starts" if order.iteration == 0 else f"starts without a checkpoint at iteration {order.iteration + 1}"
    return f"{begins} on {' '.join(names)}"


def iteration_line(number: int, of: int, seconds: float, metrics: Mapping[str, float]) -> str:
    """An iteration that is done.

    Args:
        number: from 1. of: all iterations of the job. seconds: that it took, waits for permits included.
        metrics: what the job has reported; those of `SHOWN` come first.
    """
    names = [*(name for name in SHOWN if name in metrics), *(name for name in metrics if name not in SHOWN)]
    figures = [f"{seconds:.2f} s", *(f"{one_line(name, 64)} {metrics[name]:.4g}" for name in names)]
    return f"iteration {number} of {of}: {', '.join(figures)}"


def without_details(line: str) -> str:
    """A line of a log; of one about an iteration its seconds, reward, length and loss alone."""
    if not (begins := _ITERATION.match(line)):
        return line
    seconds, *figures = line[begins.end() :].split(", ")
    return begins[0] + ", ".join([seconds, *(figure for figure in figures if figure.partition(" ")[0] in _KEPT)])


def tell_of(folder: str, job_id: str, text: str) -> None:
    """Append a line to what a service tells of an attached job, if there is room: `rollmux logs` prints it.

    Args:
        folder: of the service.
    """
    append_bounded(Path(folder) / LOGS / job_id / f"{SERVICE_LOG}.log", f"{_dated(text)}\n", LARGEST)


def _dated(text: str) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}"
