"""The folder that `bench --out` writes: results, versions and plots."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from rich.console import RenderableType

from rollmux_env.bench.harness import Result
from rollmux_env.errors import InputError
from rollmux_env.files import private_folder, write_whole
from rollmux_env.report.results import bench_csv, to_json
from rollmux_env.scenario import Scenario

_VERSIONS = ("rollmux", "numpy", "numba", "scipy", "pydantic")


def make_folder(path: Path, private: bool = False) -> None:
    """Make an output folder, before the work that it is for.

    Args:
        private: for its owner alone; one that is there keeps its permissions.

    Raises:
        InputError: it cannot be made or written; one line.
    """
    try:
        if private:
            private_folder(path)
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"--out {path}: {getattr(error, 'strerror', None) or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"--out {path}: cannot be written")


def write_bench(
    folder: Path,
    report: Mapping[str, Any],
    scenarios: Mapping[int, Scenario],
    results: Sequence[Result],
    plots: Mapping[str, bytes],
    table: RenderableType,
) -> None:
    """Write `results.json` (the report with versions and the scenarios' hashes), `results.csv`, the plots, and `results.html`: all.

    Args:
        plots: PNG by file name. table: what a terminal shows.

    Raises:
        InputError: a file cannot be written; one line.
    """
    from rollmux_env.report.results_page import bench_page

    made_by = {name: version(name) for name in _VERSIONS} | {"python": python_version()}
    hashes = {f"seed {seed}": scenario.sha256 for seed, scenario in scenarios.items()}
    write_whole(folder / "results.json", to_json({"versions": made_by, "scenario_sha256": hashes, **report}))
    write_whole(folder / "results.csv", bench_csv(results))
    for name, data in plots.items():
        write_whole(folder / name, data)
    first = results[0].seed
    own = [result for result in results if result.seed == first]
    page = bench_page(f"RollMux bench: {report['scenario']}", table, scenarios[first], own, plots, made_by | hashes)
    write_whole(folder / "results.html", page)
