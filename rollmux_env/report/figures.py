"""Frames of figures: their size, panels and legends for a screen or a paper, and positions on an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollmux_env.bench.intervals import Mean
from rollmux_env.portable import log
from rollmux_env.report.look import current_look, label_of
from rollmux_env.report.styles import style_of

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "text.parse_math": False,  # a dollar sign does not begin a formula
}
_IN_A_PAPER: Any = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 3,
    "legend.handlelength": 1.6,
}
INTERVAL = "whiskers: 95% interval"
"""Note on the whiskers of figures that show intervals of means over seeds."""


def styled(make: Callable[[], Figure]) -> Callable[[], Figure]:
    """Return a function that draws a figure in the project's style, for a screen or for a paper's width."""

    def draw_styled() -> Figure:
        with matplotlib.rc_context(_STYLE | paper_style()):
            return make()

    return draw_styled


def paper_style() -> Any:
    """Return the sizes of text and lines in a paper; empty for a screen."""
    return _IN_A_PAPER if current_look().width_in else {}


def make_axes(panels: int, columns: int | None = None, height_in: float = 4.2, wide_in: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Return a figure and the axes of its panels, row by row.

    Args:
        panels: Number of panels.
        columns: Number of panels in a row on a screen, or None for all.
        height_in: Height of a row on a screen, in inches.
        wide_in: Width of a panel on a screen, in inches; the legend has as much.
    """
    look, columns = current_look(), min(panels, columns or panels)
    if look.width_in is None:
        figure = Figure(figsize=(4 + wide_in * columns, height_in * ceil(panels / columns)), layout="tight")
    else:
        columns = min(columns, 2 if look.is_column and panels > 3 else 1 if look.is_column else columns)
        row_in = max(0.55 + height_in / 4.4, height_in / 4.2 * min(2.4, 0.6 * look.width_in / columns))
        rows = ceil(panels / columns)
        figure = Figure(figsize=(look.width_in, row_in * rows + 0.35), layout="constrained")
    axes = list(figure.subplots(ceil(panels / columns), columns, squeeze=False).flat)
    for axis in axes[panels:]:
        axis.remove()
    return figure, axes[:panels]


def share_scales(axes: Sequence[Axes]) -> None:
    """Give small panels one scale of heights and one label for each direction."""
    low, high = min(axis.get_ylim()[0] for axis in axes), max(axis.get_ylim()[1] for axis in axes)
    figure, columns = axes[0].get_figure(root=True), axes[0].get_gridspec().ncols  # type: ignore[union-attr]
    assert figure is not None
    figure.supxlabel(axes[0].get_xlabel(), fontsize="medium")
    figure.supylabel(axes[0].get_ylabel(), fontsize="medium")
    for k, axis in enumerate(axes):
        axis.set(xlabel="", ylabel="", ylim=(low, high))
        axis.tick_params(labelleft=k % columns == 0, labelbottom=k + columns >= len(axes))


def set_title(axis: Axes, title: str, is_only: bool) -> None:
    """Set the title of a panel. In a paper the caption names a figure, so its only panel has none.

    Args:
        axis: Panel.
        title: Title.
        is_only: Whether the figure has one panel.
    """
    if not (is_only and current_look().width_in):
        axis.set_title(title, wrap=True)


def add_legend(axis: Axes, note: str = "") -> None:
    """Add the legend of a panel's lines: to its right, or below the figure in a paper.

    Args:
        axis: Panel whose lines are named.
        note: Meaning of whiskers or bands, or empty.
    """
    look, figure = current_look(), axis.figure
    handles, labels = axis.get_legend_handles_labels()
    if look.width_in is None:
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), title=note or None, alignment="left")
        return
    longest = max(map(len, labels), default=1)
    columns = max(1, min(len(labels), int(look.width_in / (0.35 + 0.058 * longest))))
    assert isinstance(figure, Figure)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, title=note or None, title_fontsize=6, fontsize=7
    )


def positions(values: Sequence[str]) -> tuple[list[float], bool]:
    """Return the positions of values on an axis, and whether they are numbers; others are at equal distances."""
    try:
        numbers = [float(value.partition("=")[2] if value.startswith("load=") else value) for value in values]
    except ValueError:
        return [float(k) for k in range(len(values))], False
    is_numeric = len(set(numbers)) == len(numbers) and all(map(np.isfinite, numbers))
    return (numbers, True) if is_numeric else ([float(k) for k in range(len(values))], False)


def set_positions(axis: Axes, values: Sequence[str]) -> list[float]:
    """Set the ticks of an axis to some values, and return their positions. A wide range of numbers is logarithmic."""
    places, is_numeric = positions(values)
    if is_numeric and min(places) > 0 and max(places) >= 20 * min(places):
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    texts = [value.removeprefix("load=") for value in values]
    axis.set_xticks(places, [text if is_numeric and shown else "" for text, shown in zip(texts, _apart(axis, places), strict=True)])
    if not is_numeric:
        axis.set_xticklabels(texts)
    return places


def _apart(axis: Axes, places: Sequence[float]) -> list[bool]:
    """Return whether each position has room for its text, beside the one before that has it."""
    scaled = log(places) if axis.get_xscale() == "log" else np.asarray(places)
    room, last, shown = (0.16 if current_look().is_column else 0.08) * float(np.ptp(scaled)), -np.inf, dict[int, bool]()
    for k in np.argsort(scaled, kind="stable").tolist():
        shown[k] = bool(scaled[k] - last >= room)
        last = scaled[k] if shown[k] else last
    return [shown[k] for k in range(len(places))]


def add_means(axis: Axes, places: Sequence[float], policy: str, means: Sequence[Mean | None]) -> None:
    """Draw the means of a policy with whiskers, joined by a line. A mean that is None is left out."""
    style = style_of(policy)
    heights, spread = zip(*map(height_of, means), strict=True)
    axis.errorbar(places, heights, spread, fmt=f"{style.line}o", color=style.colour, capsize=2, label=label_of(policy))


def height_of(mean: Mean | None) -> tuple[float, float]:
    """Return a mean and half of its interval. A ratio that divides by 0 is not drawn."""
    return (np.nan, 0.0) if mean is None else (mean.mean, mean.half_width or 0.0)


def whiskers(means: Sequence[Mean | None]) -> str:
    """Return the note on whiskers, or an empty text where single seeds have none."""
    return INTERVAL if any(mean is not None and mean.half_width is not None for mean in means) else ""
