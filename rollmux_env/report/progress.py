"""Progress bars on standard error, if it is a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rollmux_env.bench.harness import Result
from rollmux_env.kernel.candidates import enumerate_candidates
from rollmux_env.kernel.compiled import is_compiled


def tracked(results: Iterable[tuple[int, Result]], names: Sequence[str]) -> list[Result]:
    """Gather results in the order of their tasks, showing how many are done.

    Args:
        results: (index of the task, its result) as they end.
        names: of the tasks.
    """
    by_index: dict[int, Result] = {}
    console = Console(stderr=True)
    if not is_compiled(enumerate_candidates):
        console.print("compiling the kernel, once (about 15 s)", style="dim")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(names[0], total=len(names))
        for index, result in results:
            by_index[index] = result
            waiting = next((name for k, name in enumerate(names) if k not in by_index), "")
            progress.update(bar, advance=1, description=waiting)
    return [by_index[index] for index in range(len(names))]
