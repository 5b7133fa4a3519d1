"""The progress of a training run: a line for each evaluation and, in a terminal, a progress bar below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rollmux_env.envs.dispatch.dynamics import step_all as dispatch_step
from rollmux_env.envs.placement.step import step_all as placement_step
from rollmux_env.envs.rollout.dynamics import step_all as rollout_step
from rollmux_env.kernel.candidates import enumerate_candidates
from rollmux_env.kernel.compiled import compiling_notice

PATIENCE = 5
"""Number of evaluations without a higher return after which the line says so."""

_COMPILED: dict[str, Callable[..., object]] = {
    "placement": placement_step,
    "dispatch": dispatch_step,
    "rollout": rollout_step,
    "queue": enumerate_candidates,
}
"""What each environment compiles first, if it has not been compiled before."""


def training_bar(problem: str) -> Progress:
    """Create a progress bar on standard error. Outside a terminal, only its console prints, without wrapping lines.

    Args:
        problem: Name of the learning problem, whose environment may have to be compiled.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if notice := compiling_notice(_COMPILED[problem], "about a minute"):
        console.print(notice, style="dim", soft_wrap=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class ProgressPrinter:
    """Shows the progress of the run of one seed.

    Args:
        progress: The progress bar.
        bar: Task of the progress bar.
        seed: Seed of the run.
        steps: Total number of decisions.
        rule: Name of the best rule, or None.
    """

    def __init__(self, progress: Progress, bar: TaskID, seed: int, steps: int, rule: str | None = None) -> None:
        self.progress = progress
        self.bar = bar
        self.seed = seed
        self.steps = steps
        self.rule = rule
        self.shown = 0
        self.began: tuple[int, float] | None = None

    def __call__(self, steps: int, curve: Sequence[Mapping[str, float]]) -> None:
        """Show the decisions so far and every new evaluation. Of a resumed run's earlier evaluations only the last is shown."""
        now_s = perf_counter()
        began, began_s = self.began = self.began or (steps, now_s)
        left_s = (self.steps - steps) * (now_s - began_s) / (steps - began) if steps > began else None
        self.progress.update(self.bar, completed=steps, description=f"seed {self.seed}")
        for rows in range(self.shown or len(curve), len(curve) + 1):
            if rows > self.shown:
                line = evaluation_line(curve[:rows], self.steps, left_s if rows == len(curve) else None, self.rule)
                self.progress.console.print(f"seed {self.seed}  {line}")
        self.shown = len(curve)


def evaluation_line(curve: Sequence[Mapping[str, float]], steps: int, left_s: float | None, rule: str | None) -> str:
    """Describe the last evaluation in one line: decisions, cost over the best rule, best so far, decisions/s, time left.

    Args:
        curve: All evaluations so far, as returned by `trainers.train.train`.
        steps: Total number of decisions.
        left_s: Estimated seconds until the end, or None if unknown.
        rule: Name of the best rule, or None, so that the line shows the return.
    """
    last, best = curve[-1], max(curve, key=lambda row: row["return"])
    figure, name = ("over_best_rule", f"cost over {rule}") if rule else ("return", "return")
    spread = f" ± {last['over_best_rule_interval']:.4f}" if rule else ""
    since = len(curve) - 1 - curve.index(best)
    best_so_far = f"best {best[figure]:.4f} at {best['steps']:,.0f}" if since else "best so far"
    parts = [f"{last['steps']:>9,.0f} of {steps:,}", f"{name} {last[figure]:.4f}{spread} ({best_so_far})"]
    if last["frames_per_s"]:
        parts.append(f"{last['frames_per_s']:,.0f} decisions/s")
    if left_s is not None and left_s > 0:
        parts.append(f"{duration(left_s)} left")
    if since >= PATIENCE:
        parts.append(f"no better for {since} evaluations")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format a duration, as in `1 h 05 min`, `12 min` or `40 s`."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if seconds >= 90 else f"{seconds:.0f} s"
