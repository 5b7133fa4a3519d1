"""Pictures of the queue environment: the waiting jobs in order, and the groups with their members."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.base import label_lanes, pixels, tell_colours
from rollmux_env.envs.queue.stream import QueueStream

_SHOWN = 20  # waiting jobs


def title_of(stream: QueueStream) -> str:
    """Return the time and the counts of a stream."""
    state = stream.state
    running, departed = len(state.stays.placed_at_s), state.departed
    return f"{state.now_s / 3600:.1f} h: {len(state.waiting)} jobs wait, {running} run, {departed} have departed"


def text(stream: QueueStream) -> str:
    """Draw a stream as text: its groups with their members, and the waiting jobs in order."""
    groups = [f"group {group.id}: {' '.join(group.jobs)}" for group in stream.state.group_list()]
    queue = stream.decision.queue
    more = f" and {len(queue) - _SHOWN} more" if len(queue) > _SHOWN else ""
    return "\n".join([title_of(stream), *groups, f"queue: {' '.join(queue[:_SHOWN])}{more}"]) + "\n"


def picture(stream: QueueStream, size: tuple[int, int] = (960, 400)) -> NDArray[np.uint8]:
    """Draw a stream as pixels, shape (H, W, 3): hours since their arrival of waiting and of running jobs."""
    state = stream.state
    lanes = [(job_id, True) for job_id in stream.decision.queue[:_SHOWN]]
    lanes += [(job_id, False) for group in state.group_list() for job_id in group.jobs]
    colours = {"waits": "#cc6677", "runs": "#4477aa"}

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.set_title(title_of(stream), fontsize=9)
        for k, (job_id, waits) in enumerate(lanes):
            age_h = max(0.0, state.now_s - state.job(job_id).arrival_s) / 3600
            axis.barh(k, age_h, 0.8, color=colours["waits" if waits else "runs"])
        label_lanes(axis, [job_id for job_id, _ in lanes], size=6)
        axis.set_xlabel("hours since arrival", fontsize=8)
        tell_colours(axis, colours)

    return pixels(draw, size)
