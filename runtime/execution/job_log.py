"""What a job's own process says of it in its log: a line an iteration, starts, restarts and errors; `rollmux logs` prints them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from runtime.execution.messages import Order

SHOWN = ("reward", "eval_reward", "loss")
"""Metrics that come first in a line, and alone on the console."""


def note(text: str) -> None:
    """Print a line with the time of day; it is in the log when this returns."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}", flush=True)


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
    figures = [f"{seconds:.2f} s", *(f"{name} {metrics[name]:.6g}" for name in names)]
    return f"iteration {number} of {of}: {', '.join(figures)}"
