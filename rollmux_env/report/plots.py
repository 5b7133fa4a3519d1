"""Plots of bench results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollmux_env.bench.comparison import ComparisonRow
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.results import BenchResult
from rollmux_env.bench.suite import Column, Suite, SuiteRow
from rollmux_env.report.styles import Floats, Kind, draw, picture, style_of
from rollmux_env.report.waiting import jobs_wait
from rollmux_env.scenario import Scenario

if TYPE_CHECKING:
    from rollmux_env.bench.results import SweepPoint, SweepResult
    from rollmux_env.bench.suites.rollout import GainPoint as Gain

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "text.parse_math": False,  # a dollar sign does not begin a formula
}

_LONGEST_SHOWN = 4.0  # largest slowdown shown, since a long tail would hide the rest
_POINTS = 1200  # number of points of a line


Figures = dict[str, Callable[[], Figure]]
"""Functions that draw figures, by name."""


def figures_of(benched: BenchResult | SweepResult) -> Figures:
    """Return functions that draw the plots of a bench or a sweep, by name."""
    figures = _bench_figures(benched) if isinstance(benched, BenchResult) else _sweep_figures(benched)
    return {name: styled(make) for name, make in figures.items()}


def styled(make: Callable[[], Figure]) -> Callable[[], Figure]:
    """Return a function that draws a figure in the project's style."""

    def draw_styled() -> Figure:
        with matplotlib.rc_context(_STYLE):
            return make()

    return draw_styled


def _bench_figures(benched: BenchResult) -> Figures:
    scenario = benched.stream
    runs: dict[str, list[Result]] = {}
    for result in benched.results:
        runs.setdefault(result.spec, []).append(result)
    seeds = len(benched.seeds)
    over = f" (mean of {seeds} seeds, ± 1 standard deviation)" if seeds > 1 else ""
    waiting: Figures = {
        "completion_cdf": lambda: _completion_cdf(runs, over),
        "queue_over_time": lambda: _queue_over_time(runs, over),
    }
    return (waiting if jobs_wait(benched.summary) else {}) | {
        "cost_over_time": lambda: _cost_over_time(scenario, runs, over),
        "gpus_over_time": lambda: _gpus_over_time(scenario, runs, over),
        "slowdown_cdf": lambda: _slowdown_cdf(runs, over),
        "saving": lambda: saving_figure(benched.summary, benched.baseline),
    }


def _sweep_figures(benched: SweepResult) -> Figures:
    """Return functions that draw the savings by the value of the first swept key, and the completion where jobs wait.

    Each combination of the other keys' values has its own row of axes.
    """
    key, *others = benched.keys
    rows: dict[str, list[SweepPoint]] = {}  # points by the values of the other keys
    for point in benched.points:
        rows.setdefault("".join(f", {other} {point.swept[other]}" for other in others), []).append(point)
    stem, figures = "_".join(benched.keys), Figures()
    if all(jobs_wait(point.bench.summary) for point in benched.points):
        figures[f"{stem}_completion"] = lambda: _swept_completion(key, rows)
    figures[f"{stem}_sweep"] = lambda: _swept_savings(key, rows)
    return figures


def _swept_savings(key: str, rows: Mapping[str, Sequence[SweepPoint]]) -> Figure:
    """Return a figure of the savings by the value of a swept key.

    Args:
        key: Swept key.
        rows: Points by the values of the other keys, a row of panels each.
    """
    titles = {"saving": "dollars", "saving_per_work": "dollars per work-hour"}
    figure, axes = _axes(2, len(rows))
    panels = [(points, field, f"{title}{at}") for at, points in rows.items() for field, title in titles.items()]
    for axis, (points, field, title) in zip(axes, panels, strict=True):
        places = range(len(points))
        first = points[0].bench
        for k, row in enumerate(first.summary):
            means = [getattr(point.bench.summary[k], field) for point in points]
            style = style_of(row.policy)
            heights, spread = zip(*map(_height, means), strict=True)
            axis.errorbar(places, heights, spread, fmt=f"{style.line}o", color=style.colour, capsize=2, label=row.policy)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks([*places], [point.swept[key] for point in points])
        axis.set(xlabel=key, ylabel=f"{first.baseline} over policy", title=title)
    figure.tight_layout()
    _legend(axes[1])
    return figure


def _swept_completion(key: str, rows: Mapping[str, Sequence[SweepPoint]]) -> Figure:
    """Return a figure of the mean completion by the value of a swept key.

    Args:
        key: Swept key.
        rows: Points by the values of the other keys, one panel each.
    """
    panels = {}
    for title, points in rows.items():
        benches = [point.bench for point in points]
        lines = {row.policy: [bench.summary[k].mean_completion_h for bench in benches] for k, row in enumerate(benches[0].summary)}
        bounds = [
            max((row.bound_completion_h for row in bench.summary if row.bound_completion_h), key=lambda mean: mean.mean)
            for bench in benches
        ]
        panels[title.removeprefix(", ") or "Mean completion"] = [point.swept[key] for point in points], lines, bounds
    return completion_figure(key, panels)


def completion_figure(
    varied: str, panels: Mapping[str, tuple[Sequence[str], Mapping[str, Sequence[Mean | None]], Sequence[Mean]]]
) -> Figure:
    """Return a figure of the mean completion of policies along something that varies.

    Args:
        varied: Name of what varies.
        panels: Values along which it varies, means of each policy at these values, and lower bounds, by title of the panel.
    """
    figure, axes = _axes(len(panels))
    for axis, (title, (values, lines, bounds)) in zip(axes, panels.items(), strict=True):
        places = range(len(values))
        for policy, means in lines.items():
            style = style_of(policy)
            heights, spread = zip(*map(_height, means), strict=True)
            axis.errorbar(places, heights, spread, fmt=f"{style.line}o", color=style.colour, capsize=2, label=policy)
        if len(bounds) == len(values):
            axis.plot(places, [bound.mean for bound in bounds], ":", color="black", label="bound on separate pools")
        axis.set_xticks([*places], [*values])
        shown = [mean.mean for mean in (*bounds, *(mean for means in lines.values() for mean in means)) if mean is not None]
        axis.set_ylim(0.85 * min(shown), 1.2 * max(shown))  # the interval of a few seeds may reach below 0
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(axis="y", which="minor", labelsize=8)
        axis.set(xlabel=varied, ylabel="mean completion, hours", title=title)
    figure.tight_layout()
    _legend(axes[-1])
    return figure


def _height(mean: Mean | None) -> tuple[float, float]:
    """Return the height of a ratio and half of its interval. A ratio that divides by 0 is not drawn."""
    return (np.nan, 0.0) if mean is None else (mean.mean, mean.half_width or 0.0)


def suite_bars(suite: Suite, column: Column, rows: Sequence[tuple[SuiteRow, Mean]], kind: Kind = "png") -> bytes:
    """Draw one figure of a suite as bars.

    Policies differ in colour, reference policies are hatched, and the paper's figures are marks.
    """
    own: dict[str, list[str]] = {}  # policies by case
    for row, _ in rows:
        own.setdefault(row.case, []).append(row.policy)
    cases, width = [*own], 0.8 / max(map(len, own.values()))

    def x(row: SuiteRow) -> float:
        policies = own[row.case]
        return cases.index(row.case) + (policies.index(row.policy) - (len(policies) - 1) / 2) * width

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(max(7.0, 1.0 + 0.28 * len(rows) + 0.9 * len(cases)), 4.2))
        axis = figure.subplots()
        for policy in dict.fromkeys(row.policy for row, _ in rows):
            shown = [(x(row), mean.mean, mean.half_width or 0.0) for row, mean in rows if row.policy == policy]
            places, heights, spread = zip(*shown, strict=True)
            axis.bar(places, heights, width, yerr=spread, label=policy, **_bar(policy))
        papers = ((x(row), suite.paper.get((row.case, row.policy, column.heading))) for row, _ in rows)
        if marks := [mark for mark in papers if mark[1] is not None]:
            axis.plot(*zip(*marks, strict=True), "kD", markersize=5, label="the paper", linestyle="none")
        many = len(cases) > 3
        axis.set_xticks(range(len(cases)), cases, rotation=20 if many else 0, ha="right" if many else "center")
        axis.set(title=suite.title, ylabel=f"{column.heading} ({column.style})" if column.style else column.heading)
        axis.grid(axis="x", visible=False)
        means = [mean.mean for _, mean in rows]
        if max(means) > 200 * max(1e-9, min(means)):
            axis.set_yscale("log")
        _legend(axis)
        return picture(figure, kind)


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
    with matplotlib.rc_context(_STYLE):
        return picture(completion_figure("load, in units of what jobs alone need", panels), kind)


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
    with matplotlib.rc_context(_STYLE):
        figure, (axis,) = _axes()
        for name, points in curves.items():
            xs, ys = [point[0] for point in points], [point[1] for point in points]
            axis.errorbar(
                [mean.mean for mean in xs],
                [mean.mean for mean in ys],
                xerr=[mean.half_width or 0.0 for mean in xs],
                yerr=[mean.half_width or 0.0 for mean in ys],
                fmt=f"{style_of(name).line}o",
                color=style_of(name).colour,
                capsize=2,
                label=name,
            )
            for mean_x, mean_y, label in points:
                axis.annotate(label, (mean_x.mean, mean_y.mean), xytext=(5, -11), textcoords="offset points", fontsize=8)
        axis.set(xlabel=x, ylabel=y)
        axis.set_title(suite.title, wrap=True)
        axis.legend(frameon=False)
        return picture(figure, kind)


def _curve(policy: str, varied: str) -> tuple[str, str]:
    """Return the name of a policy's curve and the label of its point."""
    name, _, option = policy.rpartition(",")
    return (name, option.partition("=")[2]) if varied and option.startswith(varied) else (policy, "")


def sweep_plot(points: Sequence[Gain], kind: Kind = "png") -> bytes:
    """Plot the gains of rollout policies, with one panel per varied quantity and one scale.

    Gains in GPU-seconds are dotted.
    """
    gains = [point.gain for point in points]
    with matplotlib.rc_context(_STYLE):
        kinds = list(dict.fromkeys(point.varied for point in points))
        figure, axes = _axes(len(kinds))
        for axis, varied in zip(axes, kinds, strict=True):
            shown = [point for point in points if point.varied == varied]
            for policy, unit in dict.fromkeys((point.policy, point.unit) for point in shown):
                mine = [(point.value, point.gain) for point in shown if point.policy == policy]
                dots = "-" if unit == "seconds" else ":"
                axis.plot(*zip(*mine, strict=True), dots, marker="o", color=style_of(policy).colour, label=f"{policy}, in {unit}")
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set(xlabel=varied, ylabel="gain over plain", title=f"Gain by {varied}")
            axis.set_ylim(min(gains) - 0.1, max(gains) + 0.1)
            values = list(dict.fromkeys(point.value for point in shown))
            if max(values) > 10 * min(values):
                axis.set_xscale("log", base=2)
                axis.set_xticks(values, [f"{value:g}" for value in values])
        _legend(axes[-1])
        return picture(figure, kind)


def _legend(axis: Axes) -> None:
    """Put the legend to the right of the axes."""
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _axes(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row."""
    figure = Figure(figsize=(4 + 4 * columns, 4.2 * rows))
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _bar(policy: str) -> dict[str, Any]:
    """Return the colours of a policy's bar. The bar of a reference policy is hatched."""
    style = style_of(policy)
    hatched = {"facecolor": "white", "edgecolor": style.colour, "hatch": "////"}
    return hatched if style.line == "--" else {"color": style.colour}


def _hours(result: Result) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times_s = np.asarray(result.outcome.time_s)
    return np.asarray((times_s - times_s[0]) / 3600)


def _grid(runs: Mapping[str, Sequence[Result]]) -> Floats:
    """Return the hours of a plot, until the last run ends."""
    return np.linspace(0.0, max(float(_hours(run)[-1]) for own in runs.values() for run in own), _POINTS)


def _cost_over_time(scenario: Scenario, runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    figure, (axis,) = _axes()
    pools = scenario.cluster.pools
    grid = _grid(runs)

    def thousands(run: Result) -> Floats:
        outcome = run.outcome
        prices = [np.asarray(outcome.nodes[name]) * pool.usd_per_node_hour for name, pool in pools.items()]
        usd_per_hour = np.sum(prices, axis=0)
        usd: Floats = np.concatenate(([0.0], np.cumsum(np.diff(_hours(run)) * usd_per_hour[:-1])))
        return np.asarray(np.interp(grid, _hours(run), usd) / 1000)

    for policy, own in runs.items():
        draw(axis, grid, np.array([thousands(run) for run in own]), policy)
    axis.set(xlabel="hours", ylabel="thousand $ so far", title=f"Cost over time{over}", xlim=(0, grid[-1]))
    axis.set_ylim(bottom=0)
    _legend(axis)
    return figure


def _gpus_over_time(scenario: Scenario, runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    pools = scenario.cluster.pools
    figure, axes = _axes(len(pools))
    grid = _grid(runs)
    for axis, (pool, owner) in zip(axes, pools.items(), strict=True):
        for policy, own in runs.items():
            nodes = [np.asarray(run.outcome.nodes[pool])[np.searchsorted(_hours(run), grid, side="right") - 1] for run in own]
            gpus = np.array(nodes, dtype=np.float64) * owner.gpus_per_node
            draw(axis, grid, gpus, policy, drawstyle="steps-post", linewidth=1.2)
        axis.set(xlabel="hours", ylabel="GPUs provisioned", title=f"{pool[:1].upper()}{pool[1:]} pool {owner.gpu}".strip())
        axis.set(xlim=(0, grid[-1]))
        axis.set_ylim(bottom=0)
    figure.suptitle(f"GPUs over time{over}", y=1.0)
    _legend(axes[-1])
    return figure


def _slowdown_cdf(runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    figure, (axis,) = _axes()
    slowdowns = {policy: [np.sort([job.shown_slowdown for job in run.outcome.jobs]) for run in own] for policy, own in runs.items()}
    every = [float(each[k]) for own in slowdowns.values() for each in own for k in (0, -1)]
    first, last = min(every), min(_LONGEST_SHOWN, max(every))
    margin = 0.03 * max(last - first, 0.1)
    grid = np.linspace(first - margin, last + margin, _POINTS)
    for policy, own in slowdowns.items():
        values = np.array([np.searchsorted(each, grid, side="right") / each.size for each in own])
        draw(axis, grid, values, policy, drawstyle="steps-post")
    axis.set(xlabel="slowdown against the same job alone", ylabel="share of jobs", title=f"Slowdown of the jobs{over}")
    axis.set(xlim=(grid[0], grid[-1]), ylim=(0, 1.02))
    axis.legend(frameon=False, loc="lower right")
    return figure


def _completion_cdf(runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    figure, (axis,) = _axes()
    hours = {
        policy: [np.sort([job.completion_s / 3600 for job in run.outcome.jobs]) for run in own] for policy, own in runs.items()
    }
    every = np.concatenate([each for own in hours.values() for each in own])
    grid = np.geomspace(max(every.min(), 1e-3), every.max(), _POINTS)
    for policy, own in hours.items():
        values = np.array([np.searchsorted(each, grid, side="right") / each.size for each in own])
        draw(axis, grid, values, policy, drawstyle="steps-post")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set(xlabel="hours from arrival to departure", ylabel="share of jobs", title=f"Completion of the jobs{over}")
    axis.set(xlim=(grid[0], grid[-1]), ylim=(0, 1.02))
    axis.legend(frameon=False, loc="upper left")
    return figure


def _queue_over_time(runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    figure, (axis,) = _axes()
    grid = _grid(runs)
    for policy, own in runs.items():
        counts = [np.asarray(run.outcome.waiting)[np.searchsorted(_hours(run), grid, side="right") - 1] for run in own]
        draw(axis, grid, np.array(counts, dtype=np.float64), policy, drawstyle="steps-post", linewidth=1.2)
    axis.set(xlabel="hours", ylabel="jobs without a place", title=f"Queue over time{over}", xlim=(0, grid[-1]))
    axis.set_ylim(bottom=0)
    _legend(axis)
    return figure


def saving_figure(rows: Sequence[ComparisonRow], baseline: str) -> Figure:
    """Return a figure of savings: dots with intervals, numbers on the right, and a line at 1x, where nothing is saved or lost."""
    figure = Figure(figsize=(12, 1.2 + 0.36 * len(rows)))
    axes = figure.subplots(1, 2, squeeze=False, sharey=True)
    names = [row.policy for row in rows]
    for axis, field, title in zip(axes[0], ("saving", "saving_per_work"), ("dollars", "dollars per work-hour"), strict=True):
        for position, row in enumerate(rows):
            mean = getattr(row, field)
            style = style_of(row.policy)
            face = "white" if style.line == "--" else style.colour
            height, spread = _height(mean)
            axis.errorbar(height, position, xerr=spread, fmt="o", color=style.colour, markerfacecolor=face, capsize=3)
            share = (row.slo_attainment_observed or row.slo_attainment).mean
            slo_note = "" if share == 1 else f" ({100 * share:.0f}% of SLOs)"
            where = axis.get_yaxis_transform()
            figures = "-" if mean is None else f"{mean.mean:.2f}x"
            axis.annotate(f"{figures}{slo_note}", (1.01, position), xycoords=where, va="center", fontsize=9)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.margins(x=0.04)
        axis.grid(axis="y", visible=False)
        axis.set(title=f"{baseline} over policy: {title}")
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figure.tight_layout()
    return figure
