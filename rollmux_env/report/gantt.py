"""A Gantt chart of a group: one panel per pool, one lane per node, one colour per job; idle node time is tinted."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import product
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rollmux_env.replay.run import PhaseRun
from rollmux_env.report.figures import paper_style
from rollmux_env.report.lanes import POOLS, NodeUse, shares
from rollmux_env.report.look import current_look
from rollmux_env.report.styles import Kind, picture

# Okabe and Ito's palette, which colour-blind readers can distinguish, without its black, followed by darker colours.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#00395a", "#7a5400", "#00513c", "#6b2f52")
_BUBBLE = "#f6dcdc"
_WIDTH_IN = 13.0
_NARROW_IN = 8.0  # width up to which texts are those of a paper
_LANE_IN = 0.42
_CHARACTER_IN = 0.085  # width of a character of a phase's label, of size 9
_MAX_PHASES_WITH_EDGES = 100  # number of phases on a lane from which on edges would hide them
_HATCH = "/////"


class GanttBar(NamedTuple):
    """An interval of a node within the window: a running phase, or the switch before it.

    Attributes:
        job_id: Identifier of the job.
        iteration: Number of the iteration.
        node: Number of the node.
        start_s: Start of the interval, in seconds.
        end_s: End of the interval, in seconds.
        switches: Whether the interval is a switch.
        share: Share of the node that the phase holds, which is the height of the bar.
        tail: Whether the phase is a migrated tail, which is drawn at the bottom of the lane.
    """

    job_id: str
    iteration: int
    node: int
    start_s: float
    end_s: float
    switches: bool
    share: float = 1.0
    tail: bool = False

    @property
    def top(self) -> float:
        """Distance of the bar from the top of its lane, as a share of the lane's height."""
        return 1 - self.share if self.tail else 0.0


def gantt_picture(
    phases: Sequence[PhaseRun], lanes: Sequence[NodeUse], from_s: float, until_s: float, title: str = "", kind: Kind = "png"
) -> bytes:
    """Draw the phases on the nodes of a group over a window of time.

    Args:
        phases: Phases from a replay or a real run, in any order. Phases on other nodes or outside the window are left out.
        lanes: Nodes of the group, with the times at which they are provisioned. Node time without a phase is a bubble.
        from_s: Start of the window, in seconds. The axis counts from here, in seconds up to ten minutes and otherwise in minutes.
        until_s: End of the window, in seconds.
        title: Title above the panels.
        kind: Kind of file.

    Returns:
        Data of the file, the same for the same arguments.

    Raises:
        ValueError: If no node is provisioned within the window.
    """
    with matplotlib.rc_context(paper_style()):
        return picture(gantt_figure(phases, lanes, from_s, until_s, title), kind)


def gantt_figure(phases: Sequence[PhaseRun], lanes: Sequence[NodeUse], from_s: float, until_s: float, title: str = "") -> Figure:
    """Return the figure of `gantt_picture`, with a panel for each pool that has nodes."""
    rows = _lanes_within(lanes, from_s, until_s)
    if not rows:
        raise ValueError("no node is provisioned within the window")
    bars = {pool: bars_of(phases, own, from_s, until_s) for pool, own in rows.items()}
    every = [bar for own in bars.values() for bar in own]
    colours = _colours(phases, {bar.job_id for bar in every})
    lane_in = _LANE_IN * (0.5 if current_look().width_in else 1)
    heights = [lane_in * len(own) + 0.1 for own in rows.values()]
    width_in = current_look().width_in or _WIDTH_IN
    figure = Figure(figsize=(width_in, sum(heights) + 0.6 * len(rows) + 0.6))
    axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (pool, own) in zip(axes, rows.items(), strict=True):
        _draw(axis, bars[pool], own, from_s, until_s, colours)
        axis.set_title(_pool_title(pool, phases, own, from_s, until_s), loc="left", fontsize=11 if width_in > _NARROW_IN else 7)
    axes[-1].set_xlabel(f"{_unit(until_s - from_s)[0]} from the start of the window")
    if current_look().width_in is None:
        figure.suptitle(title, fontsize=12)
        figure.tight_layout()
    else:
        figure.set_layout_engine("constrained")  # in a paper the caption is the title
    _legend(figure, colours, any(bar.switches for bar in every), width_in)
    return figure


def _lanes_within(lanes: Sequence[NodeUse], from_s: float, until_s: float) -> dict[str, list[NodeUse]]:
    """Return the nodes that are provisioned at some time of a window, by pool; pools without such nodes are left out."""
    shown = [lane for lane in sorted(lanes) if min(lane.until_s, until_s) > max(lane.from_s, from_s)]
    return {pool: own for pool in POOLS if (own := [lane for lane in shown if lane.pool == pool])}


def _colours(phases: Sequence[PhaseRun], drawn: Container[str]) -> dict[str, str]:
    """Return the colour of each drawn job, in the order of the whole replay, which is the same in every window."""
    jobs = dict.fromkeys(phase.job_id for phase in _in_order(phases) if phase.job_id in drawn)
    return {job_id: _COLOURS[k % len(_COLOURS)] for k, job_id in enumerate(jobs)}


def _pool_title(pool: str, phases: Sequence[PhaseRun], lanes: Sequence[NodeUse], from_s: float, until_s: float) -> str:
    """Return the name of a pool and the shares of its nodes' bubbles and switches."""
    of_nodes = shares(phases, lanes, from_s, until_s)
    assert of_nodes is not None
    switches = f", switches {100 * of_nodes.switching:.1f}%" if of_nodes.switching > 0.0 else ""
    other = f" ({lanes[0].other_pool})" if lanes[0].other_pool else ""
    return f"{pool.capitalize()} pool{other}: bubbles {100 * of_nodes.bubble:.1f}%{switches}"


def bars_of(phases: Sequence[PhaseRun], lanes: Sequence[NodeUse], from_s: float, until_s: float) -> list[GanttBar]:
    """Return the bars of some nodes within a window, in order of time.

    Each phase has one bar per node, and before it one for its switch.
    """
    keys = {(lane.group, lane.pool, lane.node) for lane in lanes}
    bars = []
    for phase in _in_order(phases):
        runs_s = phase.start_s + phase.switch_s
        for begin_s, end_s, switches in ((phase.start_s, runs_s, True), (runs_s, phase.end_s, False)):
            span_s = max(begin_s, from_s), min(end_s, until_s)
            if span_s[0] < span_s[1]:
                nodes = [node for node in phase.nodes if (phase.group, phase.pool, node) in keys]
                place = phase.share, phase.phase == "tail"
                bars += [GanttBar(phase.job_id, phase.iteration, node, *span_s, switches, *place) for node in nodes]
    return bars


def _draw(
    axis: Axes, bars: Sequence[GanttBar], lanes: Sequence[NodeUse], from_s: float, until_s: float, colours: dict[str, str]
) -> None:
    """Draw a pool with its nodes from top to bottom. The free parts of a lane are its bubbles."""
    _, unit_s = _unit(until_s - from_s)
    row = {lane.node: k for k, lane in enumerate(lanes)}
    for lane in lanes:
        span_s = max(lane.from_s, from_s), min(lane.until_s, until_s)
        axis.barh(row[lane.node], (span_s[1] - span_s[0]) / unit_s, 0.8, (span_s[0] - from_s) / unit_s, color=_BUBBLE)
    edge = 0.8 if len(bars) < _MAX_PHASES_WITH_EDGES * len(lanes) else 0.0
    for colour, switches in product(dict.fromkeys(colours.values()), (False, True)):
        own = [bar for bar in bars if colours[bar.job_id] == colour and bar.switches == switches]
        axis.barh(
            [row[bar.node] + 0.8 * (bar.top + bar.share / 2 - 0.5) for bar in own],
            [(bar.end_s - bar.start_s) / unit_s for bar in own],
            [0.8 * bar.share for bar in own],
            [(bar.start_s - from_s) / unit_s for bar in own],
            facecolor=colour,
            edgecolor="white",
            linewidth=edge,
            hatch=_HATCH if switches else None,
        )
    _label(axis, bars, row, from_s, until_s, colours)
    axis.set_yticks(range(len(lanes)), [f"node {lane.node}" for lane in lanes])
    axis.set_ylim(len(lanes) - 0.45, -0.55)
    axis.set_xlim(0, (until_s - from_s) / unit_s)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _label(
    axis: Axes, bars: Sequence[GanttBar], row: dict[int, int], from_s: float, until_s: float, colours: dict[str, str]
) -> None:
    """Write the job and the iteration on each phase that has room for them."""
    _, unit_s = _unit(until_s - from_s)
    width_in = current_look().width_in or _WIDTH_IN
    size = 9 if width_in > _NARROW_IN else 5
    for bar in bars:
        inches = (bar.end_s - bar.start_s) / (until_s - from_s) * (width_in - 1)
        texts = (f"{bar.job_id} · {bar.iteration}", str(bar.iteration)) if not bar.switches and not bar.tail else ()
        if text := next((text for text in texts if (1 + len(text)) * _CHARACTER_IN * size / 9 < inches), ""):
            middle = ((bar.start_s + bar.end_s) / 2 - from_s) / unit_s
            colour = _readable_on(colours[bar.job_id])
            axis.text(middle, row[bar.node], text, ha="center", va="center", fontsize=size, color=colour)


def _legend(figure: Figure, colours: dict[str, str], has_switches: bool, width_in: float) -> None:
    # matplotlib leaves out labels that begin with "_", so a space comes first.
    handles = {f" {job_id}": Patch(facecolor=colour) for job_id, colour in colours.items()}
    if has_switches:
        handles["switch"] = Patch(facecolor="#777777", edgecolor="white", hatch=_HATCH)
    handles["bubble"] = Patch(facecolor=_BUBBLE)
    is_sized = current_look().width_in is not None
    columns = max(1, int((width_in - 1) / ((0.6 + 0.1 * max(map(len, handles))) * (0.6 if is_sized else 1))))
    figure.legend(
        [*handles.values()],
        [*handles],
        loc="outside lower center" if is_sized else "upper center",
        bbox_to_anchor=None if is_sized else (0.5, 0.0),
        ncols=min(columns, len(handles)),
        frameon=False,
    )


def _in_order(phases: Sequence[PhaseRun]) -> list[PhaseRun]:
    return sorted(phases, key=lambda phase: (phase.start_s, phase.job_id))


def _unit(window_s: float) -> tuple[str, float]:
    """Return the unit of the axis and its length in seconds."""
    return ("seconds", 1.0) if window_s <= 600.0 else ("minutes", 60.0)


def _readable_on(colour: str) -> str:
    """Return black or white, depending on the luminance of the background."""
    red, green, blue = to_rgb(colour)
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.55 else "white"
