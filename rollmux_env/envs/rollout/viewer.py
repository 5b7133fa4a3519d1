"""Pictures of one job's rollout: the responses on each replica."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.base import label_lanes, pixels, tell_colours
from rollmux_env.envs.rollout.types import SIZES, RolloutTables
from rollmux_env.kernel.rollout_records import RUNNING, WAITING

WIDTH = 60  # characters of the longest lane of text


def title_of(jobs: RolloutTables, e: int) -> str:
    """Return a line about the time and the progress."""
    job = jobs.jobs[e]
    wanted = int(job["prompts"] * job["responses"])
    kind = "long" if job["long"] else "short"
    now = (
        "before it begins"
        if job["launching"]
        else f"{float(job['now_s']):.1f} s, {int(jobs.order[e, -1])} of {wanted} responses finished"
    )
    where = f"rollout {int(job['iteration']) + 1} of {int(job['iterations'])} ({kind}), {now}"
    return f"{where}; {int(job['live'])} replicas of {SIZES[int(job['size'])]} GPUs; {int(job['queue'])} prompts put off"


def lanes_of(jobs: RolloutTables, e: int) -> list[NDArray[Any]]:
    """Return for each replica in use the tokens so far of the responses that run or wait there, the longest first."""
    job, responses = jobs.jobs[e], jobs.responses[e]
    open_now = np.isin(responses["state"], (RUNNING, WAITING)) & (job["launching"] == 0)
    lanes = []
    for k in range(int(job["live"])):
        own = responses["sampled"][open_now & (responses["replica"] == k)]
        lanes.append(np.sort(own)[::-1])
    return lanes


def text(jobs: RolloutTables, e: int) -> str:
    """Draw a rollout as text: a lane for each replica, and for each response a digit, its length in tenths of the cap."""
    cap = max(1, int(jobs.jobs["cap"][e]))
    lines = [title_of(jobs, e)]
    for k, lane in enumerate(lanes_of(jobs, e)):
        cells = "".join(str(min(9, int(10 * tokens / cap))) for tokens in lane[:WIDTH])
        lines.append(f"replica {k:>2} {cells}{'...' if len(lane) > WIDTH else ''}")
    return "\n".join([*lines, "a digit: a response that runs or waits, with so many tenths of the cap"]) + "\n"


def picture(jobs: RolloutTables, e: int, size: tuple[int, int] = (960, 400)) -> NDArray[np.uint8]:
    """Draw a rollout as pixels, shape (H, W, 3): a lane for each replica, and for each response a bar as long as its tokens."""
    lanes = lanes_of(jobs, e)

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.set_title(title_of(jobs, e), fontsize=9)
        for k, lane in enumerate(lanes):
            height = 0.8 / max(1, len(lane))
            where = k - 0.4 + height * (np.arange(len(lane)) + 0.5)
            axis.barh(where, lane, height, color="#4477aa", edgecolor="white", linewidth=0.3)
        label_lanes(axis, [f"replica {k}" for k in range(len(lanes))])
        axis.set_xlim(0, max(1, int(jobs.jobs["cap"][e])))
        axis.set_xlabel("tokens so far, up to the cap", fontsize=8)
        tell_colours(axis, {"a bar: a response that runs or waits": "#4477aa"})

    return pixels(draw, size)
