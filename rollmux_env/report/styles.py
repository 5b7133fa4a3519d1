"""The style of plots: one colour per policy in every figure, dashed reference policies, and seeds as a band.

The same figure gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rollmux_env.report.look import current_look, label_of

Floats = NDArray[np.float64]
Kind = Literal["png", "svg", "pdf"]
_VOLATILE_METADATA: dict[Kind, tuple[str, ...]] = {
    "png": ("Software",),
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
}
"""Metadata by which files would differ between runs and versions: the time and the program that made them."""

YARDSTICKS = {"solo", "colocated", "optimal", "optimal-work", "naive", "plain"}
"""Reference policies, which no real system would run or with which the others are compared."""

# Okabe and Ito's palette, which colour-blind readers can distinguish, greys for yardsticks, and further colours of Paul Tol's.
_COLOURS = {
    "rollmux": "#0072b2",
    "rollmux,prune=false": "#56b4e9",
    "consolidate": "#d55e00",
    "learned:default": "#009e73",
    "learned:default,moves=false": "#7ccf9f",
    "rollmux,prune=false,order=area": "#00395a",
    "fleet": "#aa4499",
    "fleet,moves=false": "#cc3311",
    "fleet,moves=false,order=area": "#ee8866",
    "fleet,order=area": "#dd99cc",
    "fleet,order=area,park=true": "#5c1a50",
    "gavel": "#e69f00",
    "random": "#cc79a7",
    "most-idle": "#882255",
    "regroup": "#7a5400",
    "solo": "#767676",
    "solo,order=area": "#222222",
    "colocated": "#aaaa33",
    "optimal": "#000000",
    "optimal-work": "#332288",
    "naive": "#bbbbbb",
    "plain": "#767676",
    "tail-migration": "#0072b2",
    "tail-migration,careful=true": "#56b4e9",
    "tail-batching": "#d55e00",
    "adaptive-parallelism": "#009e73",
    "round-robin": "#0072b2",
    "fifo": "#e69f00",
    "maskable-ppo": "#009e73",
    "ppo": "#e69f00",
    "dqn": "#cc79a7",
}
_OTHERS = ("#117733", "#ee8866", "#661100", "#6699cc", "#999933", "#cc6677", "#44aa99")


class Style(NamedTuple):
    """A policy's style.

    Attributes:
        colour: Colour as a hexadecimal string.
        line: Line style: `-`, or `--` for a reference policy.
    """

    colour: str
    line: str


def style_of(policy: str) -> Style:
    """Return the style of a policy by its name and options, the same in every process.

    A policy with options that has no colour in the table gets a lighter or darker one of the policy without them.
    """
    name, _, options = policy.partition(",")
    line = "--" if name in YARDSTICKS else "-"
    if policy in _COLOURS:
        return Style(_COLOURS[policy], line)
    colour = _COLOURS.get(name) or _OTHERS[int(_fraction_of(name) * len(_OTHERS))]
    return Style(_shade(colour, _fraction_of(options)) if options else colour, line)


def picture(figure: Figure, kind: Kind) -> bytes:
    """Return the figure as data of a kind of file, the same bytes for the same figure."""
    data, is_sized = io.BytesIO(), current_look().width_in is not None
    with rc_context({"svg.hashsalt": "rollmux", "pdf.fonttype": 42}):  # publishers refuse PDFs with fonts of type 3
        figure.savefig(
            data,
            format=kind,
            dpi=300 if is_sized else 120,
            bbox_inches=None if is_sized else "tight",
            metadata=dict.fromkeys(_VOLATILE_METADATA[kind]),
        )
    return data.getvalue()


def draw(axis: Axes, x: Floats, values: Floats, policy: str, label: str | None = None, **more: Any) -> None:
    """Draw a policy's line: the mean over seeds, and a band of one standard deviation on each side.

    Args:
        axis: Axes to draw on.
        x: Positions, shape (N,).
        values: Values of each seed, shape (seeds, N).
        policy: Name of the policy.
        label: Label of the line, or None for that of the policy.
        more: Further options of the line, as in `Axes.plot`.
    """
    style = style_of(policy)
    mean = values.mean(axis=0)
    axis.plot(x, mean, style.line, color=style.colour, label=label or label_of(policy), **more)
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        step = "post" if more.get("drawstyle") == "steps-post" else None
        axis.fill_between(x, mean - spread, mean + spread, step=step, color=style.colour, alpha=0.12, linewidth=0)  # type: ignore[arg-type]


def _fraction_of(text: str) -> float:
    """Return a number in [0, 1) that depends only on the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


def _shade(colour: str, by: float) -> str:
    """Return a colour between a darker (0) and a lighter one (1), visibly different from the colour itself."""
    towards, share = (0.0, 0.5 - 0.6 * by) if by < 0.5 else (1.0, 0.6 * by - 0.05)
    red, green, blue = ((1 - share) * part + share * towards for part in to_rgb(colour))
    return str(to_hex((red, green, blue)))
