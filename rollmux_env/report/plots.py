"""Plots of bench results as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rollmux_env.bench.comparison import Row
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean
from rollmux_env.bench.rollouts import SweepPoint
from rollmux_env.bench.suite import Column, Suite, SuiteRow
from rollmux_env.report.styles import Floats, draw, style_of
from rollmux_env.scenario import Scenario

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "font.size": 10,
}

_LONGEST_SHOWN = 4.0  # slowdown; a long tail would hide the rest
_POINTS = 1200  # of a line over time


def bench_plots(scenario: Scenario, results: Sequence[Result], rows: Sequence[Row], baseline: str) -> dict[str, bytes]:
    """The plots of a bench, by file name.

    Args:
        scenario: of any seed; all have one cluster.
        results: every contender on every seed.
        rows: the comparison over all seeds.
        baseline: what savings are to.
    """
    runs: dict[str, list[Result]] = {}
    for result in results:
        runs.setdefault(result.spec, []).append(result)
    seeds = len({result.seed for result in results})
    over = f" (mean of {seeds} seeds, ± 1 standard deviation)" if seeds > 1 else ""
    with plt.rc_context(_STYLE):
        return {
            "cost_over_time.png": _png(_cost_over_time(scenario, runs, over)),
            "gpus_over_time.png": _png(_gpus_over_time(scenario, runs, over)),
            "slowdown_cdf.png": _png(_slowdown_cdf(runs, over)),
            "saving.png": _png(saving_figure(rows, baseline)),
        }


def suite_bars(suite: Suite, column: Column, rows: Sequence[tuple[SuiteRow, Mean]]) -> bytes:
    """Draw bars of one figure of a suite: one colour per policy, reference policies hatched, the paper's figures as marks."""
    with plt.rc_context(_STYLE):
        cases = list(dict.fromkeys(row.case for row, _ in rows))
        policies = list(dict.fromkeys(row.policy for row, _ in rows))
        figure, axis = plt.subplots(figsize=(max(7.0, 1.0 + 0.28 * len(rows) + 0.9 * len(cases)), 4.2))
        own = {case: [row.policy for row, _ in rows if row.case == case] for case in cases}
        width = 0.8 / max(map(len, own.values()))
        marks: list[tuple[float, float]] = []
        for policy in policies:
            shown = [
                (cases.index(row.case) + (own[row.case].index(policy) - (len(own[row.case]) - 1) / 2) * width, row, mean)
                for row, mean in rows
                if row.policy == policy
            ]
            heights = [mean.mean for _, _, mean in shown]
            spread = [mean.half_width or 0.0 for _, _, mean in shown]
            axis.bar([x for x, _, _ in shown], heights, width, yerr=spread, label=policy, **_bar(policy))
            papers = ((x, suite.paper.get((row.case, row.policy, column.heading))) for x, row, _ in shown)
            marks += [(x, paper) for x, paper in papers if paper is not None]
        if marks:
            axis.plot(*zip(*marks, strict=True), "kD", markersize=5, label="the paper", linestyle="none")
        axis.set_xticks(range(len(cases)), cases, rotation=20 if len(cases) > 3 else 0, ha="right" if len(cases) > 3 else "center")
        axis.set(title=suite.title, ylabel=f"{column.heading} ({column.style})" if column.style else column.heading)
        axis.grid(axis="x", visible=False)
        if max(mean.mean for _, mean in rows) > 200 * max(1e-9, min(mean.mean for _, mean in rows)):
            axis.set_yscale("log")
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return _png(figure)


def frontier_plot(suite: Suite, x: str, y: str, rows: Sequence[SuiteRow]) -> bytes:
    """Two figures of a suite against each other, a point a policy; policies that differ in the varied option alone are joined."""
    with plt.rc_context(_STYLE):
        figure, (axis,) = _axes()
        curves: dict[str, list[tuple[Mean, Mean, str]]] = {}
        for row in rows:
            mean_x, mean_y = row.figures[x], row.figures[y]
            if mean_x is not None and mean_y is not None:
                name, _, option = row.policy.rpartition(",")
                varied = option.startswith(suite.varied) if suite.varied else False
                curve = name if varied else row.policy
                curves.setdefault(curve, []).append((mean_x, mean_y, option.partition("=")[2] if varied else ""))
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
        return _png(figure)


def sweep_plot(points: Sequence[SweepPoint]) -> bytes:
    """Gains of rollout policies, a panel for what is varied; all on one scale, dotted where they are in GPU-seconds."""
    with plt.rc_context(_STYLE):
        kinds = list(dict.fromkeys(point.varied for point in points))
        figure, axes = _axes(len(kinds))
        for axis, varied in zip(axes, kinds, strict=True):
            shown = [point for point in points if point.varied == varied]
            for policy in dict.fromkeys(point.policy for point in shown):
                mine = [point for point in shown if point.policy == policy]
                dots = "-" if mine[0].unit == "seconds" else ":"
                label = f"{policy}, in {mine[0].unit}"
                at, gains = [point.value for point in mine], [point.gain for point in mine]
                axis.plot(at, gains, dots, marker="o", color=style_of(policy).colour, label=label)
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set(xlabel=varied, ylabel="gain over plain", title=f"Gain by {varied}")
            axis.set_ylim(min(point.gain for point in points) - 0.1, max(point.gain for point in points) + 0.1)
            if max(point.value for point in shown) > 10 * min(point.value for point in shown):
                axis.set_xscale("log", base=2)
                axis.set_xticks([point.value for point in mine], [f"{point.value:g}" for point in mine])
        axes[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return _png(figure)


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    return data.getvalue()


def _axes(columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(1, columns, figsize=(4 + 4 * columns, 4.2), squeeze=False)
    return figure, list(axes[0])


def _bar(policy: str) -> dict[str, Any]:
    """Colours of a policy's bar; that of a reference policy is hatched."""
    style = style_of(policy)
    hatched = {"facecolor": "white", "edgecolor": style.colour, "hatch": "////"}
    return hatched if style.line == "--" else {"color": style.colour}


def _hours(result: Result) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times_s = np.asarray(result.outcome.time_s)
    return np.asarray((times_s - times_s[0]) / 3600)


def _over_time(runs: Sequence[Result], values: Callable[[Result], Floats], grid: Floats) -> Floats:
    """(seeds, N) step functions of time at the hours of a grid."""
    at = [values(run)[np.searchsorted(_hours(run), grid, side="right") - 1] for run in runs]
    return np.array(at, dtype=np.float64)


def _grid(runs: Mapping[str, Sequence[Result]]) -> Floats:
    """Hours until the last run of all ends."""
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
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _gpus_over_time(scenario: Scenario, runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    pools = scenario.cluster.pools
    figure, axes = _axes(len(pools))
    grid = _grid(runs)
    for axis, (pool, owner) in zip(axes, pools.items(), strict=True):

        def gpus(run: Result, pool: str = pool, each: int = owner.gpus_per_node) -> Floats:
            return np.asarray(run.outcome.nodes[pool], dtype=np.float64) * each

        for policy, own in runs.items():
            draw(axis, grid, _over_time(own, gpus, grid), policy, drawstyle="steps-post", linewidth=1.2)
        axis.set(xlabel="hours", ylabel="GPUs provisioned", title=f"{pool[:1].upper()}{pool[1:]} pool {owner.gpu}".strip())
        axis.set(xlim=(0, grid[-1]))
        axis.set_ylim(bottom=0)
    figure.suptitle(f"GPUs over time{over}", y=1.0)
    axes[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _slowdown_cdf(runs: Mapping[str, Sequence[Result]], over: str) -> Figure:
    figure, (axis,) = _axes()
    slowdowns = {policy: [np.sort([*run.outcome.metrics.slowdown.values()]) for run in own] for policy, own in runs.items()}
    every = [float(each[k]) for own in slowdowns.values() for each in own for k in (0, -1)]
    first, last = min(every), min(_LONGEST_SHOWN, max(every))
    margin = 0.03 * max(last - first, 0.1)
    grid = np.linspace(first - margin, last + margin, _POINTS)
    for policy, own in slowdowns.items():
        values = np.array([np.searchsorted(each, grid, side="right") / each.size for each in own])
        draw(axis, grid, values, policy, drawstyle="steps-post")
    axis.set(xlabel="slowdown against solo", ylabel="share of jobs", title=f"Slowdown of the jobs{over}")
    axis.set(xlim=(grid[0], grid[-1]), ylim=(0, 1.02))
    axis.legend(frameon=False, loc="lower right")
    return figure


def saving_figure(rows: Sequence[Row], baseline: str) -> Figure:
    """Bars from 1x, what is neither saved nor lost, so that the axis is as long as the differences; figures stand on the right."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 1.2 + 0.36 * len(rows)), squeeze=False, sharey=True)
    names = [row.policy for row in rows]
    for axis, field, title in zip(axes[0], ("saving", "saving_per_work"), ("dollars", "dollars per work-hour"), strict=True):
        for position, row in enumerate(rows):
            mean = getattr(row, field)
            axis.barh(position, mean.mean - 1, 0.7, left=1.0, xerr=mean.half_width or 0.0, **_bar(row.policy))
            slo_note = "" if row.slo_attainment.mean == 1 else f" ({100 * row.slo_attainment.mean:.0f}% of SLOs)"
            where = axis.get_yaxis_transform()
            axis.annotate(f"{mean.mean:.2f}x{slo_note}", (1.01, position), xycoords=where, va="center", fontsize=9)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.margins(x=0.04)
        axis.grid(axis="y", visible=False)
        axis.set(title=f"{baseline} over policy: {title}")
    axes[0][0].set_yticks(range(len(names)), names)
    axes[0][0].invert_yaxis()
    figure.tight_layout()
    return figure
