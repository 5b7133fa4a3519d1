"""Plots of suites: bars, lines along a load or a varied quantity, and a frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.suite import Column, Suite, SuiteRow
from rollmux_env.report.figures import add_legend, make_axes, set_title, styled, whiskers
from rollmux_env.report.look import current_look, label_of
from rollmux_env.report.plots import completion_figure
from rollmux_env.report.styles import Kind, picture, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rollmux_env.bench.suites.rollout import GainPoint as Gain


def suite_bars(suite: Suite, column: Column, rows: Sequence[tuple[SuiteRow, Mean]], kind: Kind = "png") -> bytes:
    """Draw one figure of a suite as bars.

    Policies differ in colour, reference policies are hatched, and the paper's figures are marks.
    """
    return picture(styled(lambda: _bars(suite, column, rows))(), kind)


def _bars(suite: Suite, column: Column, rows: Sequence[tuple[SuiteRow, Mean]]) -> Figure:
    own: dict[str, list[str]] = {}  # policies by case
    for row, _ in rows:
        own.setdefault(row.case, []).append(row.policy)
    cases, width = [*own], 0.8 / max(map(len, own.values()))

    def x(row: SuiteRow) -> float:
        policies = own[row.case]
        return cases.index(row.case) + (policies.index(row.policy) - (len(policies) - 1) / 2) * width

    figure, (axis,) = make_axes(1, wide_in=max(3.0, 0.28 * len(rows) + 0.9 * len(cases) - 3.0))
    for policy in dict.fromkeys(row.policy for row, _ in rows):
        shown = [(x(row), mean.mean, mean.half_width or 0.0) for row, mean in rows if row.policy == policy]
        places, heights, spread = zip(*shown, strict=True)
        axis.bar(places, heights, width, yerr=spread, label=label_of(policy), error_kw={"linewidth": 0.8}, **_bar(policy))
    papers = ((x(row), suite.paper.get((row.case, row.policy, column.heading))) for row, _ in rows)
    if marks := [mark for mark in papers if mark[1] is not None]:
        axis.plot(*zip(*marks, strict=True), "kD", markersize=4, label="the paper", linestyle="none")
    _name_cases(axis, cases)
    axis.set(ylabel=f"{column.heading} ({column.style})" if column.style else column.heading)
    set_title(axis, suite.title, is_only=True)
    axis.grid(axis="x", visible=False)
    means = [mean.mean for _, mean in rows]
    if max(means) > 200 * max(1e-9, min(means)):
        axis.set_yscale("log")
    add_legend(axis, whiskers([mean for _, mean in rows]))
    return figure


def _name_cases(axis: Axes, cases: Sequence[str]) -> None:
    many = len(cases) > 3 or current_look().is_column
    axis.set_xticks(range(len(cases)), cases, rotation=20 if many else 0, ha="right" if many else "center")


def series_plot(suite: Suite, rows: Sequence[SuiteRow], kind: Kind = "png") -> bytes:
    """Plot the completion of a suite's policies by load, with one panel per stream.

    The labels of cases are stream and load, as in `mixed, load 1.6`.
    """
    panels: dict[str, tuple[list[str], dict[str, list[Mean | None]], list[Mean]]] = {}
    for row in rows:
        stream, _, load = row.case.partition(", load ")
        loads, lines, bounds = panels.setdefault(stream, ([], {}, []))
        bound = row.figures.get("bound h")
        if load not in loads:
            loads.append(load)
            bounds += [bound] if bound is not None else []
        lines.setdefault(row.policy, []).append(row.figures[suite.series])
    return picture(styled(lambda: completion_figure("load, in units of what jobs alone need", panels))(), kind)


def frontier_plot(suite: Suite, x: str, y: str, rows: Sequence[SuiteRow], kind: Kind = "png") -> bytes:
    """Plot two figures of a suite against each other, with one point per policy.

    Policies that differ only in the varied option are joined by a line.
    """
    curves: dict[str, list[tuple[Mean, Mean, str]]] = {}
    for row in rows:
        mean_x, mean_y = row.figures[x], row.figures[y]
        if mean_x is not None and mean_y is not None:
            curve, label = _curve(row.policy, suite.varied)
            curves.setdefault(curve, []).append((mean_x, mean_y, label))

    def make() -> Figure:
        figure, (axis,) = make_axes(1)
        for name, points in curves.items():
            _draw_curve(axis, name, points)
        axis.set(xlabel=x, ylabel=y)
        set_title(axis, suite.title, is_only=True)
        add_legend(axis, whiskers([point[0] for points in curves.values() for point in points]))
        return figure

    return picture(styled(make)(), kind)


def _draw_curve(axis: Axes, name: str, points: Sequence[tuple[Mean, Mean, str]]) -> None:
    """Draw a policy's points with whiskers, joined by a line, each with its label."""
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    axis.errorbar(
        [mean.mean for mean in xs],
        [mean.mean for mean in ys],
        xerr=[mean.half_width or 0.0 for mean in xs],
        yerr=[mean.half_width or 0.0 for mean in ys],
        fmt=f"{style_of(name).line}o",
        color=style_of(name).colour,
        capsize=2,
        label=label_of(name),
    )
    for mean_x, mean_y, label in points:
        axis.annotate(label, (mean_x.mean, mean_y.mean), xytext=(5, -11), textcoords="offset points", fontsize=8)


def _curve(policy: str, varied: str) -> tuple[str, str]:
    """Return the name of a policy's curve and the label of its point."""
    name, _, option = policy.rpartition(",")
    return (name, option.partition("=")[2]) if varied and option.startswith(varied) else (policy, "")


def sweep_plot(points: Sequence[Gain], kind: Kind = "png") -> bytes:
    """Plot the gains of rollout policies, with one panel per varied quantity and one scale.

    Gains in GPU-seconds are dotted.
    """
    gains = [point.gain for point in points]

    def make() -> Figure:
        kinds = list(dict.fromkeys(point.varied for point in points))
        figure, axes = make_axes(len(kinds))
        for axis, varied in zip(axes, kinds, strict=True):
            shown = [point for point in points if point.varied == varied]
            for policy, unit in dict.fromkeys((point.policy, point.unit) for point in shown):
                mine = [(point.value, point.gain) for point in shown if point.policy == policy]
                dots = "-" if unit == "seconds" else ":"
                axis.plot(
                    *zip(*mine, strict=True),
                    dots,
                    marker="o",
                    color=style_of(policy).colour,
                    label=f"{label_of(policy)}, in {unit}",
                )
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set(xlabel=varied, ylabel="gain over plain", title=f"Gain by {varied}")
            axis.set_ylim(min(gains) - 0.1, max(gains) + 0.1)
            values = list(dict.fromkeys(point.value for point in shown))
            if max(values) > 10 * min(values):
                axis.set_xscale("log", base=2)
                axis.set_xticks(values, [f"{value:g}" for value in values])
        add_legend(axes[-1])
        return figure

    return picture(styled(make)(), kind)


def _bar(policy: str) -> dict[str, Any]:
    """Return the colours of a policy's bar. The bar of a reference policy is hatched."""
    style = style_of(policy)
    hatched = {"facecolor": "white", "edgecolor": style.colour, "hatch": "////"}
    return hatched if style.line == "--" else {"color": style.colour}
