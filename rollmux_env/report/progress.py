"""Progress of runs on standard error: a bar on a terminal, otherwise a line per minute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from rollmux_env.bench.harness import Result
from rollmux_env.bench.processes import Report
from rollmux_env.progress import ProgressLines
from rollmux_env.report.compiling import announce_compiling


def tracked(run: Callable[[Report], Iterable[tuple[int, Result]]], names: Sequence[str]) -> list[Result]:
    """Gather results in the order of their tasks, and show how many are done and the progress of event replays.

    Args:
        run: Function that takes a callback for progress and yields the index and the result of each task when it ends.
        names: Name of each task.
    """
    by_index: dict[int, Result] = {}
    console = Console(stderr=True)
    announce_compiling()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    lines = ProgressLines("replaying")
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(names[0], total=len(names))

        def report(index: int, phases: int, departed: int) -> None:
            text = f"{names[index]}: {phases:,} phases, {departed:,} jobs done"
            progress.update(bar, description=text)
            if not console.is_terminal:
                lines.report(f"{len(by_index)} of {len(names)} done; {text}")

        for index, result in run(report):
            by_index[index] = result
            waiting = next((name for k, name in enumerate(names) if k not in by_index), "")
            progress.update(bar, advance=1, description=waiting)
            if not console.is_terminal:
                lines.report(f"{len(by_index)} of {len(names)} done")
    return [by_index[index] for index in range(len(names))]
