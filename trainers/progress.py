"""The progress of a training run: a line per evaluation and, in a terminal, a bar below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rollmux_env.kernel.candidates import enumerate_candidates
from rollmux_env.kernel.compiled import compiling_notice

PATIENCE = 5
"""Evaluations without a higher return, from which on a line says so."""


def training_bar() -> Progress:
    """A bar on standard error; where that is no terminal, its console still prints lines, as long as they are."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if notice := compiling_notice(enumerate_candidates, "about a minute"):
        console.print(notice, style="dim", soft_wrap=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class ProgressPrinter:
    """Tells how far the run of a seed is.

    Args:
        progress, bar: a bar, and its task. steps: decisions in all.
    """

    def __init__(self, progress: Progress, bar: TaskID, seed: int, steps: int) -> None:
        self.progress = progress
        self.bar = bar
        self.seed = seed
        self.steps = steps
        self.shown = 0
        self.began: tuple[int, float] | None = None

    def __call__(self, steps: int, curve: Sequence[Mapping[str, float]]) -> None:
        """Show the decisions so far, and every evaluation that has not been shown; of a resumed run's earlier ones the last."""
        now_s = perf_counter()
        began, began_s = self.began = self.began or (steps, now_s)
        left_s = (self.steps - steps) * (now_s - began_s) / (steps - began) if steps > began else None
        self.progress.update(self.bar, completed=steps, description=f"seed {self.seed}")
        for rows in range(self.shown or len(curve), len(curve) + 1):
            if rows > self.shown:
                line = evaluation_line(curve[:rows], self.steps, left_s if rows == len(curve) else None)
                self.progress.console.print(f"seed {self.seed}  {line}")
        self.shown = len(curve)


def evaluation_line(curve: Sequence[Mapping[str, float]], steps: int, left_s: float | None) -> str:
    """The last evaluation in a line: decisions, dollars over the reference, the best so far, decisions/s, time left.

    Args:
        curve: every evaluation so far, as `trainers.train.train` returns them. steps: decisions in all.
        left_s: seconds until the end, if that is known.
    """
    last, best = curve[-1], max(curve, key=lambda row: row["return"])
    figure = main_figure(last)
    since = len(curve) - 1 - curve.index(best)
    best_so_far = f"best {best[figure]:.4f} at {best['steps']:,.0f}" if since else "best so far"
    parts = [f"{last['steps']:>9,.0f} of {steps:,}", f"{figure.replace('_', ' ')} {last[figure]:.4f} ({best_so_far})"]
    if last["frames_per_s"]:
        parts.append(f"{last['frames_per_s']:,.0f} decisions/s")
    if left_s:
        parts.append(f"{duration(left_s)} left")
    if since >= PATIENCE:
        parts.append(f"no better for {since} evaluations")
    return ", ".join(parts)


def main_figure(figures: Mapping[str, float]) -> str:
    """The dollars over `rollmux`, the paper's planner; without it over the first reference, and without any the return."""
    ratios = [name for name in figures if name.startswith("dollars_over_")]
    return "dollars_over_rollmux" if "dollars_over_rollmux" in ratios else next(iter(ratios), "return")


def duration(seconds: float) -> str:
    """As in `1 h 05 min`, `12 min`, `40 s`."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"
