"""Pictures of one group: a Gantt chart of the recent phases on each node."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.envs.base import label_lanes, pixels, tell_colours
from rollmux_env.envs.dispatch.types import Groups
from rollmux_env.kernel.dispatch.rows import ROLLOUT, TAIL, TRAINING, TRAINING_POOL

WIDTH = 72  # characters of a lane of text
_BUBBLE = "#f3e3d3"


class PhaseBar(NamedTuple):
    """A phase that held a share of some nodes.

    Attributes:
        member: Number of the member.
        what: Kind of phase: `ROLLOUT`, `TRAINING` or `TAIL`.
        nodes: Nodes as bits.
        start_s: Start, seconds.
        end_s: End, seconds.
        share: Share of the nodes.
    """

    member: int
    what: int
    nodes: int
    start_s: float
    end_s: float
    share: float


def bars_of(groups: Groups, e: int, since_s: float, share: float) -> list[PhaseBar]:
    """Return the spans of a group that ended after a time, and the phases that run now. `share` is that of a tail."""
    now_s = float(groups.groups["now_s"][e])
    spans = groups.history[e, : min(int(groups.clocks["spans"][e]), len(groups.history[e]))]
    bars = [
        PhaseBar(*(spans[name][i].item() for name in ("member", "what", "nodes", "start_s", "end_s", "share")))
        for i in range(len(spans))
    ]
    tails = int(groups.groups["tails"][e])
    for k, member in enumerate(groups.members[e, : groups.groups["n"][e]]):
        nodes, start_s = int(member["nodes"]), float(groups.progress["start_s"][e, k, 0])
        if member["rolls"] == ROLLOUT:
            bars.append(PhaseBar(k, ROLLOUT, nodes & ~tails, start_s, now_s, 1.0))
            bars.append(PhaseBar(k, ROLLOUT, nodes & tails, start_s, now_s, 1 - share))
        elif member["rolls"] == TAIL:
            bars.append(PhaseBar(k, TAIL, nodes, start_s, now_s, share))
        if member["trains"]:
            bars.append(PhaseBar(k, TRAINING, TRAINING_POOL, float(member["training_start_s"]), now_s, 1.0))
    return [bar for bar in bars if bar.nodes and bar.end_s > max(since_s, bar.start_s)]


def window_of(groups: Groups, e: int) -> tuple[float, float]:
    """Return the start and end of the picture: the last six planned iterations of the longest member, if the history has them."""
    members = groups.members[e, : groups.groups["n"][e]]
    width_s = 6 * float((members["planned_rollout_s"] + members["planned_training_s"] + members["sync_s"]).max())
    now_s = float(groups.groups["now_s"][e])
    spans = groups.history[e]
    known_s = float(spans["end_s"].min()) if groups.clocks["spans"][e] > len(spans) else 0.0
    return max(known_s, now_s - width_s), max(now_s, width_s)


def _lanes(groups: Groups, e: int) -> list[tuple[str, int]]:
    """Return the names and bits of the nodes."""
    every = int(np.bitwise_or.reduce(groups.members["nodes"][e, : groups.groups["n"][e]]))
    lanes = [(f"rollout {bit - 1}", 1 << bit) for bit in range(1, every.bit_length()) if every >> bit & 1]
    return [*lanes, ("training", TRAINING_POOL)]


def title_of(groups: Groups, e: int) -> str:
    """Return a line about the time and the waiting phases."""
    clock, now_s = groups.clocks[e], float(groups.groups["now_s"][e])
    members = groups.members[e, : groups.groups["n"][e]]
    waits = [f"{_name(k)} for its {what}" for what in ("rollout", "training") for k in np.flatnonzero(members[f"waits_{what}"])]
    jobs = clock["all_work_s"] / now_s if now_s > 0 else 0.0
    hours = f"{now_s / 3600:.2f} h of {clock['horizon_s'] / 3600:.2f} h"
    return f"{hours}, so far the work of {jobs:.2f} jobs; waiting: {', '.join(waits) or 'nobody'}"


def text(groups: Groups, e: int, share: float) -> str:
    """Draw a group as text: a letter for each job, a small letter for a tail with its `share`, and dots for idle time."""
    since_s, until_s = window_of(groups, e)
    bars = bars_of(groups, e, since_s, share)
    lines = [title_of(groups, e)]
    for name, bit in _lanes(groups, e):
        cells = ["."] * WIDTH
        for bar in sorted(bars, key=lambda bar: bar.what == TAIL):
            if bar.nodes & bit:
                first, last = (
                    round(WIDTH * (at_s - since_s) / (until_s - since_s)) for at_s in (max(bar.start_s, since_s), bar.end_s)
                )
                for at in range(first, min(last, WIDTH)):
                    cells[at] = _name(bar.member).lower() if bar.what == TAIL else _name(bar.member)
        lines.append(f"{name:>10} {''.join(cells)}")
    jobs = ", ".join(f"{_name(k)}: job {k}" for k in range(int(groups.groups["n"][e])))
    return "\n".join([*lines, f"{jobs}; a small letter: a migrated tail; .: idle"]) + "\n"


def picture(groups: Groups, e: int, share: float, size: tuple[int, int] = (960, 400)) -> NDArray[np.uint8]:
    """Draw a group as pixels, shape (H, W, 3): a lane for each node, a colour for each job, tails as high as their share."""
    since_s, until_s = window_of(groups, e)
    lanes, bars = _lanes(groups, e), bars_of(groups, e, since_s, share)

    def draw(figure: Any) -> None:
        from matplotlib import colormaps

        axis, colours = figure.subplots(), colormaps["tab10"]
        axis.set_title(title_of(groups, e), fontsize=9)
        for y, (_, bit) in enumerate(lanes):
            axis.barh(y, until_s - since_s, 0.8, since_s, color=_BUBBLE)
            for bar in (bar for bar in bars if bar.nodes & bit):
                start_s = max(bar.start_s, since_s)
                middle = y + 0.4 - 0.4 * bar.share if bar.what == TAIL else y - 0.4 + 0.4 * bar.share
                axis.barh(middle, bar.end_s - start_s, 0.8 * bar.share, start_s, color=colours(bar.member % 10), edgecolor="white")
        label_lanes(axis, [name for name, _ in lanes])
        axis.set_xlim(since_s, until_s)
        axis.set_xlabel("seconds", fontsize=8)
        jobs = {f"{_name(k)}: job {k}": colours(k % 10) for k in range(int(groups.groups["n"][e]))}
        tell_colours(axis, {**jobs, "idle": _BUBBLE, "a low bar at the edge: a migrated tail": "white"})

    return pixels(draw, size)


def _name(member: int) -> str:
    return chr(ord("A") + member % 26)
