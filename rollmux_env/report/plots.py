"""Plots of bench results as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
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
from rollmux_env.scenario import Scenario

_STYLE: Any = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 10}

_LONGEST_SHOWN = 4.0  # slowdown; a long tail would hide the rest


def bench_plots(scenario: Scenario, results: Sequence[Result], rows: Sequence[Row], baseline: str) -> dict[str, bytes]:
    """The plots of a bench, by file name.

    Args:
        scenario: of the first seed, whose runs the plots over time show.
        results: every contender on every seed.
        rows: the comparison over all seeds.
        baseline: what savings are to.
    """
    first = [result for result in results if result.seed == results[0].seed]
    seed = "" if len(first) == len(results) else f" (seed {results[0].seed})"
    with plt.rc_context(_STYLE):
        return {
            "cost_over_time.png": _png(_cost_over_time(scenario, first, seed)),
            "gpus_over_time.png": _png(_gpus_over_time(scenario, first, seed)),
            "slowdown_cdf.png": _png(_slowdown_cdf(first, seed)),
            "saving.png": _png(_saving(rows, baseline)),
        }


def suite_bars(suite: Suite, column: Column, rows: Sequence[tuple[SuiteRow, Mean]]) -> bytes:
    """Bars of one figure of a suite, a colour a policy, with the paper's figures as marks."""
    with plt.rc_context(_STYLE):
        cases = list(dict.fromkeys(row.case for row, _ in rows))
        policies = list(dict.fromkeys(row.policy for row, _ in rows))
        figure, axis = plt.subplots(figsize=(max(7.0, 1.0 + 0.28 * len(rows) + 0.9 * len(cases)), 4.2))
        width = 0.8 / len(policies)
        marks: list[tuple[float, float]] = []
        for k, policy in enumerate(policies):
            shown = [
                (cases.index(row.case) + (k - (len(policies) - 1) / 2) * width, row, mean)
                for row, mean in rows
                if row.policy == policy
            ]
            heights = [mean.mean for _, _, mean in shown]
            axis.bar([x for x, _, _ in shown], heights, width, yerr=[mean.half_width or 0.0 for _, _, mean in shown], label=policy)
            papers = ((x, suite.paper.get((row.case, row.policy, column.heading))) for x, row, _ in shown)
            marks += [(x, paper) for x, paper in papers if paper is not None]
        if marks:
            axis.plot(*zip(*marks, strict=True), "kD", markersize=5, label="the paper", linestyle="none")
        axis.set_xticks(range(len(cases)), cases, rotation=20 if len(cases) > 3 else 0, ha="right" if len(cases) > 3 else "center")
        axis.set(title=suite.title, ylabel=f"{column.heading} {column.style}".strip())
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
                marker="o",
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
    """Gains of rollout policies, a panel for what is varied; all on one scale, dashed where they are in GPU-seconds."""
    with plt.rc_context(_STYLE):
        kinds = list(dict.fromkeys(point.varied for point in points))
        figure, axes = _axes(len(kinds))
        for axis, varied in zip(axes, kinds, strict=True):
            shown = [point for point in points if point.varied == varied]
            for policy in dict.fromkeys(point.policy for point in shown):
                mine = [point for point in shown if point.policy == policy]
                dashes = "-" if mine[0].unit == "seconds" else "--"
                label = f"{policy}, in {mine[0].unit}"
                axis.plot([point.value for point in mine], [point.gain for point in mine], dashes, marker="o", label=label)
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


def _hours(result: Result) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times_s = np.asarray(result.outcome.time_s)
    return np.asarray((times_s - times_s[0]) / 3600)


def _cost_over_time(scenario: Scenario, results: Sequence[Result], seed: str) -> Figure:
    figure, (axis,) = _axes()
    prices = scenario.cluster.rollout.usd_per_node_hour, scenario.cluster.training.usd_per_node_hour
    for result in results:
        hours = _hours(result)
        found = result.outcome
        usd_per_hour = np.asarray(found.rollout_nodes) * prices[0] + np.asarray(found.training_nodes) * prices[1]
        usd = np.concatenate(([0.0], np.cumsum(np.diff(hours) * usd_per_hour[:-1])))
        axis.plot(hours, usd / 1000, label=result.spec)
    axis.set(xlabel="hours", ylabel="thousand $ so far", title=f"Cost over time{seed}")
    axis.legend(frameon=False)
    return figure


def _gpus_over_time(scenario: Scenario, results: Sequence[Result], seed: str) -> Figure:
    figure, axes = _axes(2)
    for axis, pool in zip(axes, ("rollout", "training"), strict=True):
        owner = getattr(scenario.cluster, pool)
        for k, result in enumerate(results):
            gpus = np.asarray(getattr(result.outcome, f"{pool}_nodes")) * owner.gpus_per_node
            axis.step(_hours(result), gpus, where="post", label=result.spec, linewidth=max(1.0, 3.0 - 0.5 * k))
        axis.set(xlabel="hours", ylabel="GPUs provisioned", title=f"{pool.capitalize()} pool {owner.gpu}".strip() + seed)
    axes[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _slowdown_cdf(results: Sequence[Result], seed: str) -> Figure:
    figure, (axis,) = _axes()
    for result in results:
        slowdown = np.sort(list(result.outcome.metrics.slowdown.values()))
        axis.step(slowdown, np.arange(1, slowdown.size + 1) / slowdown.size, where="post", label=result.spec)
    axis.set(xlabel="slowdown against solo", ylabel="share of jobs", title=f"Slowdown of the jobs{seed}", ylim=(0, 1.02))
    longest = max(max(result.outcome.metrics.slowdown.values()) for result in results)
    axis.set_xlim(right=min(_LONGEST_SHOWN, 1.05 * longest))
    axis.legend(frameon=False, loc="lower right")
    return figure


def _saving(rows: Sequence[Row], baseline: str) -> Figure:
    figure, axes = _axes(2)
    names = [row.policy for row in rows]
    colours = ["#4878a8" if row.slo_attainment.mean == 1 else "#c9c9c9" for row in rows]
    for axis, field, title in zip(axes, ("saving", "saving_per_work"), ("dollars", "dollars per work-hour"), strict=True):
        means = [getattr(row, field) for row in rows]
        axis.barh(names, [mean.mean for mean in means], xerr=[mean.half_width or 0.0 for mean in means], color=colours)
        for position, (row, mean) in enumerate(zip(rows, means, strict=True)):
            kept = "" if row.slo_attainment.mean == 1 else f", {100 * row.slo_attainment.mean:.0f}% of SLOs kept"
            where = (mean.mean + (mean.half_width or 0.0), position)
            axis.annotate(f"{mean.mean:.2f}x{kept}", where, xytext=(4, -3), textcoords="offset points", fontsize=9)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_xlim(right=1.7 * max(mean.mean + (mean.half_width or 0.0) for mean in means))
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set(title=f"{baseline} over policy: {title}")
    figure.tight_layout()
    return figure
