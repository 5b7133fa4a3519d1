"""Pictures of one stream: a panel for each pool, and in it a lane for each node.

A lane shows one meta-iteration of the node's group, with idle time tinted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.base import label_lanes, pixels, tell_colours
from rollmux_env.envs.placement.types import ADMIT, CONSOLIDATE, Streams
from rollmux_env.kernel.pools import provisioned_usd
from rollmux_env.kernel.tables import Limits

WIDTH = 40  # characters of a lane of text
_BUBBLE = "#f3e3d3"


class NodeLane(NamedTuple):
    """A rollout node, or all training nodes of a group.

    Attributes:
        group: Id of the group.
        pool: `rollout` or `training`.
        label: Label of the lane.
        phases: Phases of one meta-iteration as (job row, seconds).
        period_s: Period of the group, seconds.
    """

    group: int
    pool: str
    label: str
    phases: tuple[tuple[int, float], ...]
    period_s: float


class Frame(NamedTuple):
    """Content of a picture: a line about the time and the decision, and the lanes."""

    title: str
    lanes: tuple[NodeLane, ...]


def frame_of(streams: Streams, s: int, limits: Limits) -> Frame:
    """Return the content of a picture of one stream as it is now."""
    clock, jobs, groups = streams.clock[s], streams.jobs[s], streams.groups[s]
    usd_per_hour = provisioned_usd(streams.nodes[s], limits)
    hours = (clock["now_s"] - jobs["arrival_s"][0]) / 3600
    title = f"{hours:.1f} h, ${clock['usd']:,.0f} so far, ${usd_per_hour:,.2f}/h: "
    if clock["asks"] == ADMIT:
        job = jobs[clock["admitted"]]
        slo = job["limit_s"] / job["solo_s"]
        title += f"job {clock['admitted']} wants a place: {job['rollout_s']:.0f} + {job['training_s']:.0f} s, SLO {slo:.2f}"
    else:
        title += "jobs may be moved" if clock["asks"] == CONSOLIDATE else "all jobs have left"
    lanes: list[NodeLane] = []
    for row in streams.order[s, : clock["n_groups"]]:
        group = groups[row]
        number, period_s = int(group["id"]), float(group["period_s"])
        members = group["members"][: group["n_members"]].tolist()
        for node in group["node_number"][: group["n_nodes"]].tolist():
            pinned = [j for j in members if node in jobs["pins"][j, : jobs["n_pins"][j]]]
            phases = tuple((j, float(jobs["placed_rollout_s"][j])) for j in pinned)
            lanes.append(NodeLane(number, "rollout", f"{number}/{node}", phases, period_s))
        phases = tuple((j, float(jobs["placed_training_s"][j])) for j in members)
        lanes.append(NodeLane(number, "training", f"{number} x{group['training_nodes']}", phases, period_s))
    return Frame(title, tuple(lanes))


def text(frame: Frame) -> str:
    """Draw a frame as text: a letter for each job, dots for idle time."""
    lines = [frame.title]
    for lane in frame.lanes:
        bar = "".join(chr(ord("A") + job % 26) * round(WIDTH * seconds / lane.period_s) for job, seconds in lane.phases)
        jobs = " ".join(str(job) for job, _ in lane.phases)
        lines.append(f"{lane.pool:>8} {lane.label:<7} {bar[:WIDTH]:.<{WIDTH}} {lane.period_s:7.1f} s  jobs {jobs}")
    return "\n".join([*lines, "A, B, ...: job 0, 1, ... (A again after Z); .: idle"]) + "\n"


def picture(frame: Frame, size: tuple[int, int] = (960, 600)) -> NDArray[np.uint8]:
    """Draw a frame as pixels, shape (H, W, 3)."""

    def draw(figure: Any) -> None:
        from matplotlib import colormaps

        figure.suptitle(frame.title.replace("$", r"\$"), fontsize=10)  # $ would start a formula
        colours = colormaps["tab20"]
        for axis, pool in zip(figure.subplots(1, 2), ("rollout", "training"), strict=True):
            lanes = [lane for lane in frame.lanes if lane.pool == pool]
            axis.set_title(f"{pool}: a meta-iteration of each node", fontsize=9)
            axis.barh(range(len(lanes)), [1.0] * len(lanes), 0.8, color=_BUBBLE)
            for y, lane in enumerate(lanes):
                left = 0.0
                for job, seconds in lane.phases:
                    axis.barh(y, seconds / lane.period_s, 0.8, left, color=colours(job % 20), edgecolor="white")
                    if seconds > 0.05 * lane.period_s:
                        axis.text(left + seconds / lane.period_s / 2, y, str(job), fontsize=7, ha="center", va="center")
                    left += seconds / lane.period_s
            label_lanes(axis, [lane.label for lane in lanes], room=10, size=7)
            axis.set_xlim(0, 1)
            axis.set_xticks([])
            axis.set_xlabel("one period of the group, from left to right", fontsize=8)
            axis.set_ylabel("group / node" if pool == "rollout" else "group x training nodes", fontsize=8)
        tell_colours(axis, {"a colour: a job, by its number": colours(0), "idle": _BUBBLE})

    return pixels(draw, size)
