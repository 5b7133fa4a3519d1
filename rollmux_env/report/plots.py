"""Plots of benches and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollmux_env.bench.comparison import ComparisonRow
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean
from rollmux_env.report.bench_results import BenchResult
from rollmux_env.report.figures import (
    add_legend,
    add_means,
    height_of,
    make_axes,
    set_positions,
    set_title,
    share_scales,
    styled,
    whiskers,
)
from rollmux_env.report.look import current_look, label_of
from rollmux_env.report.styles import Floats, draw, style_of
from rollmux_env.report.tables import percent
from rollmux_env.report.waiting import jobs_wait
from rollmux_env.scenario import Scenario

if TYPE_CHECKING:
    from rollmux_env.report.bench_results import SweepPoint, SweepResult

_MAX_SLOWDOWN = 4.0  # largest slowdown shown, since a long tail would hide the rest
_POINTS = 1200  # number of points of a line
_TOGETHER = 5  # largest number of policies whose bands share a panel
_ABREAST = 4  # largest number of small panels in a row
_STEPS: Any = {"drawstyle": "steps-post", "linewidth": 1.0}  # options of a line of counts

Figures = dict[str, Callable[[], Figure]]
"""Functions that draw figures, by name."""
Runs = Mapping[str, Sequence[Result]]
"""Results of each policy, one per seed."""


def figures_of(benched: BenchResult | SweepResult) -> Figures:
    """Return functions that draw the plots of a bench or a sweep, by name."""
    figures = _bench_figures(benched) if isinstance(benched, BenchResult) else _sweep_figures(benched)
    return {name: styled(make) for name, make in figures.items()}


def _bench_figures(benched: BenchResult) -> Figures:
    streams: Mapping[int, Scenario] = benched.streams
    runs: dict[str, list[Result]] = {}
    for result in benched.results:
        runs.setdefault(result.spec, []).append(result)
    waiting: Figures = {"completion_cdf": lambda: _completion_cdf(runs), "queue_over_time": lambda: _queue_over_time(runs)}
    return (waiting if jobs_wait(benched.summary) else {}) | {
        "cost_over_time": lambda: _cost_over_time(streams, runs),
        "gpus_over_time": lambda: _gpus_over_time(streams, runs),
        "slowdown_cdf": lambda: _slowdown_cdf(runs),
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
    figure, axes = make_axes(2 * len(rows), 2)
    panels = [(points, field, f"{title}{at}") for at, points in rows.items() for field, title in titles.items()]
    every: list[Mean | None] = []
    for axis, (points, field, title) in zip(axes, panels, strict=True):
        first, places = points[0].bench, set_positions(axis, [point.swept[key] for point in points])
        for k, row in enumerate(first.summary):
            means = [getattr(point.bench.summary[k], field) for point in points]
            add_means(axis, places, row.policy, means)
            every += means
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xlabel=key, ylabel=f"{label_of(first.baseline)} over policy")
        set_title(axis, title, is_only=False)
    add_legend(axes[min(1, len(axes) - 1)], whiskers(every))
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
        known = [[row.bound_completion_h for row in bench.summary if row.bound_completion_h] for bench in benches]
        bounds = [min(means, key=lambda mean: mean.mean) for means in known if means]
        panels[title.removeprefix(", ") or "Mean completion"] = [point.swept[key] for point in points], lines, bounds
    return completion_figure(key, panels)


def completion_figure(
    varied: str, panels: Mapping[str, tuple[Sequence[str], Mapping[str, Sequence[Mean | None]], Sequence[Mean]]]
) -> Figure:
    """Return a figure of the mean completion of policies along something that varies.

    Args:
        varied: Name of what varies.
        panels: Values along which it varies, means of each policy at these values, and lower bounds, by title of the panel. Bounds
            are drawn if there is one for each value.
    """
    figure, axes = make_axes(len(panels))
    every: list[Mean | None] = []
    for axis, (title, (values, lines, bounds)) in zip(axes, panels.items(), strict=True):
        places = set_positions(axis, values)
        for policy, means in lines.items():
            add_means(axis, places, policy, means)
            every += means
        if len(bounds) == len(values):
            axis.plot(places, [bound.mean for bound in bounds], ":", color="black", label="bound on separate pools")
        shown = [mean.mean for mean in (*bounds, *(mean for means in lines.values() for mean in means)) if mean is not None]
        axis.set_ylim(0.85 * min(shown), 1.2 * max(shown))  # the interval of a few seeds may reach below 0
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(axis="y", which="minor", labelsize="small")
        axis.set(xlabel=varied, ylabel="mean completion, hours")
        set_title(axis, title, is_only=len(panels) == 1)
    add_legend(axes[-1], whiskers(every))
    return figure


def _over_policies(
    panels: Mapping[str, Mapping[str, Floats]], grid: Floats, finish: Callable[[Axes], Any], title: str, **line: Any
) -> Figure:
    """Return a figure of a line with its band for each policy: all in one panel, or if they are many a small panel each.

    Args:
        panels: Values of each policy and seed, shape (seeds, N), by title of the panel.
        grid: Positions of the values, shape (N,).
        finish: Function that sets labels and limits of a panel.
        title: Title of the figure.
        line: Further options of the lines.
    """
    policies = next(iter(panels.values()))
    seeds = len(next(iter(policies.values())))
    band = f"mean of {seeds} seeds, band: ± 1 standard deviation" if seeds > 1 else ""
    if len(policies) <= _TOGETHER:
        figure, axes = make_axes(len(panels))
        for axis, (name, values) in zip(axes, panels.items(), strict=True):
            for policy, own in values.items():
                draw(axis, grid, own, policy, **line)
            finish(axis)
            set_title(axis, name or title, is_only=len(panels) == 1)
        add_legend(axes[-1], band)
        return figure
    cells = [(name, policy) for name in panels for policy in policies]
    figure, axes = make_axes(len(cells), _ABREAST, height_in=2.1, wide_in=2.4)
    for axis, (name, policy) in zip(axes, cells, strict=True):
        for other, own in panels[name].items():
            if other != policy:
                axis.plot(grid, own.mean(axis=0), color="0.82", linewidth=0.6, zorder=1, **_without_width(line))
        draw(axis, grid, panels[name][policy], policy, zorder=2, **line)
        finish(axis)
        axis.set_title(f"{name}: {label_of(policy)}" if name else label_of(policy), fontsize="small", wrap=True)
    share_scales(axes)
    words = [*([] if current_look().width_in else [title]), *([band] if band else []), "grey: the other policies"]
    figure.suptitle(("\n" if current_look().is_column else "; ").join(words), fontsize="medium")
    return figure


def _without_width(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "linewidth"}


def _hours(result: Result) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times_s = np.asarray(result.outcome.time_s)
    return np.asarray((times_s - times_s[0]) / 3600)


def _grid(runs: Runs) -> Floats:
    """Return the hours of a plot, until the last run ends."""
    return np.linspace(0.0, max(float(_hours(run)[-1]) for own in runs.values() for run in own), _POINTS)


def _over_hours(grid: Floats, counted: str, whole: bool = False) -> Callable[[Axes], None]:
    """Return a function that sets labels, limits and perhaps `whole` ticks of a panel over hours, whose values begin at 0."""

    def finish(axis: Axes) -> None:
        axis.set(xlabel="hours", ylabel=counted, xlim=(0, grid[-1]))
        axis.set_ylim(bottom=0)
        if whole:
            axis.locator_params(axis="y", integer=True)

    return finish


def _steps(run: Result, counts: Sequence[int], grid: Floats) -> Floats:
    """Return counts that hold from each time of a run on, at the hours of a plot."""
    return np.asarray(counts, dtype=np.float64)[np.searchsorted(_hours(run), grid, side="right") - 1]


def _cost_over_time(streams: Mapping[int, Scenario], runs: Runs) -> Figure:
    grid = _grid(runs)

    def thousands(run: Result) -> Floats:
        outcome, pools = run.outcome, streams[run.seed].cluster.pools  # files may have different prices
        prices = [np.asarray(outcome.nodes[name]) * pool.usd_per_node_hour for name, pool in pools.items()]
        usd_per_hour = np.sum(prices, axis=0)
        usd: Floats = np.concatenate(([0.0], np.cumsum(np.diff(_hours(run)) * usd_per_hour[:-1])))
        return np.asarray(np.interp(grid, _hours(run), usd) / 1000)

    values = {policy: np.array([thousands(run) for run in own]) for policy, own in runs.items()}
    return _over_policies({"": values}, grid, _over_hours(grid, "thousand $ so far"), "Cost over time")


def _gpus_over_time(streams: Mapping[int, Scenario], runs: Runs) -> Figure:
    grid, panels = _grid(runs), {}
    for name, pool in next(iter(streams.values())).cluster.pools.items():

        def gpus(run: Result, name: str = name) -> Floats:
            return streams[run.seed].cluster.pools[name].gpus_per_node * _steps(run, run.outcome.nodes[name], grid)

        title = f"{name[:1].upper()}{name[1:]} pool {pool.gpu}".strip()
        panels[title] = {policy: np.array([gpus(run) for run in own]) for policy, own in runs.items()}
    return _over_policies(panels, grid, _over_hours(grid, "GPUs provisioned", whole=True), "GPUs over time", **_STEPS)


def _queue_over_time(runs: Runs) -> Figure:
    grid = _grid(runs)
    values = {policy: np.array([_steps(run, run.outcome.waiting, grid) for run in own]) for policy, own in runs.items()}
    return _over_policies({"": values}, grid, _over_hours(grid, "jobs without a place", whole=True), "Queue over time", **_STEPS)


def _shares(samples: Mapping[str, Sequence[Floats]], grid: Floats) -> dict[str, Floats]:
    """Return the share of each seed's sorted values that is at most each position, by policy."""
    return {
        policy: np.array([np.searchsorted(each, grid, side="right") / each.size for each in own]) for policy, own in samples.items()
    }


def _slowdown_cdf(runs: Runs) -> Figure:
    slowdowns = {policy: [np.sort([job.shown_slowdown for job in run.outcome.jobs]) for run in own] for policy, own in runs.items()}
    every = [float(each[k]) for own in slowdowns.values() for each in own for k in (0, -1)]
    first, last = min(every), min(_MAX_SLOWDOWN, max(every))
    margin = 0.03 * max(last - first, 0.1)
    grid = np.linspace(first - margin, max(first, last) + margin, _POINTS)

    def finish(axis: Axes) -> None:
        axis.set(xlabel="slowdown against the same job alone", ylabel="share of jobs", xlim=(grid[0], grid[-1]), ylim=(0, 1.02))

    return _over_policies({"": _shares(slowdowns, grid)}, grid, finish, "Slowdown of the jobs", drawstyle="steps-post")


def _completion_cdf(runs: Runs) -> Figure:
    hours = {
        policy: [np.sort([job.completion_s / 3600 for job in run.outcome.jobs]) for run in own] for policy, own in runs.items()
    }
    every = np.concatenate([each for own in hours.values() for each in own])
    first, last = np.maximum([every.min(), every.max()], 1e-3)
    if first == last:  # an axis needs some width
        first, last = first / 1.1, last * 1.1
    grid = np.geomspace(first, last, _POINTS)

    def finish(axis: Axes) -> None:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(xlabel="hours from arrival to departure", ylabel="share of jobs", xlim=(grid[0], grid[-1]), ylim=(0, 1.02))

    return _over_policies({"": _shares(hours, grid)}, grid, finish, "Completion of the jobs", drawstyle="steps-post")


def saving_figure(rows: Sequence[ComparisonRow], baseline: str) -> Figure:
    """Return a figure of savings: dots with intervals, numbers on the right, and a line at 1x, where nothing is saved or lost."""
    look = current_look()
    if look.width_in is None:
        figure = Figure(figsize=(12, 1.2 + 0.36 * len(rows)), layout="tight")
    else:
        figure = Figure(figsize=(look.width_in, 0.6 + 0.17 * len(rows) * (2 if look.is_column else 1)), layout="constrained")
    shape = (2, 1) if look.is_column else (1, 2)
    axes = list(figure.subplots(*shape, squeeze=False, sharey=True).flat)
    names, note = [label_of(row.policy) for row in rows], whiskers([row.saving for row in rows])
    for axis, field, title in zip(axes, ("saving", "saving_per_work"), ("dollars", "dollars per work-hour"), strict=True):
        for position, row in enumerate(rows):
            mean = getattr(row, field)
            style = style_of(row.policy)
            face = "white" if style.line == "--" else style.colour
            height, spread = height_of(mean)
            axis.errorbar(height, position, xerr=spread, fmt="o", color=style.colour, markerfacecolor=face, capsize=3)
            share = (row.slo_attainment_observed or row.slo_attainment).mean
            slo_note = "" if share == 1 else f" ({percent(share, 0)} of SLOs)"
            where = axis.get_yaxis_transform()
            figures = "-" if mean is None else f"{mean.mean:.2f}x"
            axis.annotate(f"{figures}{slo_note}", (1.01, position), xycoords=where, va="center", fontsize="small")
        axis.axvline(1, color="black", linewidth=0.8)
        axis.margins(x=0.04, y=0.12)
        axis.grid(axis="y", visible=False)
        axis.set(title=f"{label_of(baseline)} over policy: {title}")
        axis.set_yticks(range(len(names)), names)
    axes[-1].set_xlabel(note)
    if not look.is_column:
        axes[0].set_xlabel(note)
    axes[0].invert_yaxis()
    return figure
