"""Learning curves from the logs of `rollmux train`: one line for each folder, the mean over its trainings with a 95% interval.

A folder has the trainings of one run, or of several, such as `runs/learning_gain/placement` of `benchmarks/learning_gain.py`.
Where they were evaluated after different numbers of decisions, the mean of these numbers is given.

For a folder with the same seeds and evaluations as the first one, another line gives its figures minus those of the first, paired
by seed, with the interval of the mean. The scale of the picture is that of trained networks.

python benchmarks/learning_curve.py runs/maskable-ppo runs/ppo runs/dqn --figure dollars_over_rollmux --out curve.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.errors import InputError
from rollmux_env.report.styles import draw

CURVE = "curve.csv"


def curves(folder: Path, figure: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the curves of the runs in a folder.

    Args:
        folder: Folder with a subfolder for each seed, or for each of several runs.
        figure: Name of a column of curve.csv.

    Returns:
        Mean number of decisions at each evaluation, of shape (N,), and the figure there, of shape (seeds, N). All curves end where
        the shortest one does.

    Raises:
        InputError: The folder contains no runs, runs without this figure, or runs with evaluations at other numbers of decisions.
    """
    runs = []
    for file in sorted([*folder.glob(f"seed-*/{CURVE}"), *folder.glob(f"*/seed-*/{CURVE}")]):
        with file.open(newline="") as text:
            rows = list(csv.DictReader(text))
        if not rows or figure not in rows[0]:
            raise InputError(f"{file}: has no figure '{figure}'")
        runs.append([(float(row["steps"]), float(row[figure])) for row in rows])
    if not runs:
        raise InputError(f"{folder}: holds no runs of `rollmux train`")
    shortest = min(len(run) for run in runs)
    curve_points = np.array([run[:shortest] for run in runs])
    steps = curve_points[:, :, 0]
    if shortest > 1 and np.ptp(steps, axis=0).max() > np.diff(steps.mean(axis=0)).mean():
        raise InputError(f"{folder}: its runs were evaluated after different numbers of decisions (`evaluation.every`)")
    return steps.mean(axis=0), curve_points[:, :, 1]


def main() -> None:
    """Print the curves, and draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--figure", default="return", help="a column of curve.csv")
    parser.add_argument("--out", type=Path, help="a PNG file, for a picture too")
    arguments = parser.parse_args()
    picture = Figure(figsize=(7, 3.5), layout="constrained")
    axes = picture.subplots()
    first, base_steps, base = arguments.folders[0].name, *curves(arguments.folders[0], arguments.figure)
    lows: list[float] = []
    highs: list[float] = []
    for folder in arguments.folders:
        steps, values = curves(folder, arguments.figure)
        draw(axes, steps, values, folder.name, f"{folder.name}, {len(values)} seeds", marker="o", markersize=3)
        shown = [f"{step:,.0f}: {mean_interval(each).text(3)}" for step, each in zip(steps, values.T, strict=True)]
        print(f"{folder.name}: {', '.join(shown)}")
        if values.shape[1] > 1:
            margin = 0.1 * float(np.ptp(values[:, 1:])) + 1e-6
            lows.append(values[:, 1:].min() - margin)
            highs.append(values[:, 1:].max() + margin)
        if folder.name != first and values.shape == base.shape and (steps == base_steps).all():
            less = [f"{step:,.0f}: {mean_interval(each).text(4)}" for step, each in zip(steps, (values - base).T, strict=True)]
            print(f"{folder.name} less {first}: {', '.join(less)}")
    if lows:
        axes.set_ylim(min(lows), max(highs))
    axes.set_xlabel("decisions")
    axes.set_ylabel(arguments.figure.replace("_", " "))
    axes.grid(alpha=0.2)
    axes.legend(frameon=False)
    if arguments.out:
        picture.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
