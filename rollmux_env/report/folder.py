"""The folder that `bench --out` writes: results, versions, plots, and the whole of it as one HTML file, with tables that can be
sorted and what sharing costs each job."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from platform import python_version
from typing import Any

from rich.console import RenderableType

from rollmux_env.bench.harness import Result
from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.errors import InputError
from rollmux_env.files import private_folder, write_whole
from rollmux_env.report.html import one_file, to_html
from rollmux_env.report.results import bench_csv, to_json
from rollmux_env.report.tables import make_table, sharing_table
from rollmux_env.scenario import Scenario

_MOST_JOBS = 2000  # of a policy; results.json has all
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
    made_by = {name: version(name) for name in _VERSIONS} | {"python": python_version()}
    hashes = {f"seed {seed}": scenario.sha256 for seed, scenario in scenarios.items()}
    write_whole(folder / "results.json", to_json({"versions": made_by, "scenario_sha256": hashes, **report}))
    write_whole(folder / "results.csv", bench_csv(results))
    for name, data in plots.items():
        write_whole(folder / name, data)
    first = results[0].seed
    own = [result for result in results if result.seed == first]
    page = _bench_page(f"RollMux bench: {report['scenario']}", table, scenarios[first], own, plots, made_by | hashes)
    write_whole(folder / "results.html", page)


def _bench_page(
    title: str,
    table: RenderableType,
    scenario: Scenario,
    results: Sequence[Result],
    plots: Mapping[str, bytes],
    made_by: Mapping[str, str],
) -> str:
    """The page of a comparison of policies.

    Args:
        table: what a terminal shows. scenario, results: of the first seed, for the jobs one by one.
        plots: PNG by file name. made_by: versions, and hashes of the scenarios.
    """
    jobs = "".join(_jobs(scenario, result) for result in results)
    note = "alone: T_solo, on nodes of its own; $/h: what it was charged over its stay, evenly with the other members of its groups"
    alone = f'<h2>Every job, shared against alone</h2><p class="dim">{note}; seed {results[0].seed}</p>'
    return results_page(title, table, plots, f'<section class="card">{alone}{jobs}</section>', made_by)


def results_page(
    title: str, table: RenderableType, plots: Mapping[str, bytes], more: str = "", made_by: Mapping[str, str] | None = None
) -> str:
    """A page of a table, plots and what else there is.

    Args:
        more: HTML of sections. made_by: versions and hashes.
    """
    parts = [f'<section class="card">{to_html(table)}</section>', more]
    if plots:
        pictures = "".join(_figure(name, data) for name, data in plots.items())
        parts.append(f'<section class="card"><h2>Plots</h2><div class="plots">{pictures}</div></section>')
    if made_by:
        versions = make_table("made with", "version, or hash", left=2)
        for name, value in made_by.items():
            versions.add_row(name, value)
        parts.append(f'<section class="card">{to_html(versions)}</section>')
    template = files("rollmux_env.report").joinpath("results.html").read_text(encoding="utf-8")
    page = one_file(template)  # before anything is put into it, so that its scripts are the template's own
    return page.replace("<!-- title -->", escape(title)).replace("<!-- body -->", "".join(parts), 1)


def _figure(name: str, data: bytes) -> str:
    words = name.removesuffix(".png").replace("_", " ")
    source = f"data:image/png;base64,{b64encode(data).decode()}"
    return f'<figure><figcaption>{escape(words)}</figcaption><img src="{source}" alt="{escape(words)}"></figure>'


def _jobs(scenario: Scenario, result: Result) -> str:
    """A policy's jobs, folded away."""
    outcome = result.outcome
    rows = [
        {
            "id": job.id,
            "iteration_s": outcome.metrics.slowdown[job.id] * job.solo_s,
            "alone_s": job.solo_s,
            "slowdown": outcome.metrics.slowdown[job.id],
            "slo": job.slo,
            "usd_per_hour": outcome.usd_per_hour.get(job.id),
            "usd_per_hour_solo": solo_usd_per_hour(job, scenario.cluster),
        }
        for job in scenario.jobs[:_MOST_JOBS]
    ]
    hidden = len(scenario.jobs) - len(rows)
    note = f'<p class="dim">and {hidden} more jobs: results.json has them all</p>' if hidden else ""
    metrics = outcome.metrics
    slos = f"{100 * metrics.slo_attainment:.1f}% of SLOs kept"
    whole = f"{metrics.cost_usd:,.0f} $, {metrics.usd_per_work_hour:.2f} $ per work-hour, {slos}"
    return f"<details><summary>{escape(result.spec)}: {whole}</summary>{to_html(sharing_table(rows))}{note}</details>"
