"""The folder that `bench --out` writes: results, versions, plots, and one HTML file with all of it.

The HTML file has sortable tables and a table of what sharing costs each job.
"""

from __future__ import annotations

import contextlib
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from platform import python_version

from rich.console import RenderableType

from rollmux_env.bench.results import BenchResult, RunResult, SweepResult
from rollmux_env.errors import InputError
from rollmux_env.files import private_folder, write_whole
from rollmux_env.locks import only_writer
from rollmux_env.report.html import one_file, to_html
from rollmux_env.report.results import rows_csv, to_json
from rollmux_env.report.tables import broken_words, differences_table, jobs_table, make_table

_MOST_JOBS = 2000  # largest number of jobs of a policy on the page; jobs.csv has all
_VERSIONS = ("rollmux", "numpy", "numba", "scipy", "pydantic")


def make_folder(path: Path, private: bool = False) -> None:
    """Make an output folder before the work whose results it receives.

    Args:
        path: Path of the folder.
        private: Whether only its owner may read it. An existing folder keeps its permissions.

    Raises:
        InputError: If the folder cannot be made or written.
    """
    try:
        if private:
            private_folder(path)
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise InputError(f"--out {path}: {getattr(error, 'strerror', None) or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"--out {path}: cannot be written")


def write_bench(folder: Path, benched: BenchResult | SweepResult, plots: Mapping[str, bytes], table: RenderableType) -> None:
    """Write `results.json` (with versions), `runs.csv`, `jobs.csv`, the plots, and `results.html` with all of it.

    Args:
        folder: Existing folder.
        benched: Results.
        plots: Plots by file name.
        table: Table that a terminal shows.

    Raises:
        InputError: If a file cannot be written.
    """
    made_by = {name: version(name) for name in _VERSIONS} | {"python": python_version()}
    write_whole(folder / "results.json", to_json({"versions": made_by, **benched.as_dict()}))
    for name in ("runs", "jobs"):
        write_whole(folder / f"{name}.csv", rows_csv(benched.rows(name)))
    for name, data in plots.items():
        write_whole(folder / name, data)
    write_whole(folder / "results.html", _bench_page(benched, plots, table, made_by))


@contextlib.contextmanager
def results_folder(folder: Path | None, file: str, overwrite: bool) -> Iterator[None]:
    """Make a folder for results and hold its writer's lock until they are written.

    Args:
        folder: Folder, or None if nothing is written.
        file: Name of the file of results.
        overwrite: Whether existing results may be replaced.

    Raises:
        InputError: If the folder cannot be made, has another writer, or holds results that may not be replaced.
    """
    if folder is None:
        yield
        return
    make_folder(folder)
    with only_writer(folder):
        if (folder / file).exists() and not overwrite:
            raise InputError(f"--out {folder}: holds results already ({file}); choose another folder, or --overwrite")
        yield


def _bench_page(
    benched: BenchResult | SweepResult, plots: Mapping[str, bytes], table: RenderableType, made_by: Mapping[str, str]
) -> str:
    """Return the page of a comparison of policies.

    Args:
        benched: Results.
        plots: Plots by file name.
        table: Table that a terminal shows.
        made_by: Versions by name.
    """
    if isinstance(benched, SweepResult):
        first = benched.points[0].bench
        return results_page(f"RollMux bench: {first.scenario}, {', '.join(benched.keys)} varied", table, plots, "", made_by)
    first_seed = benched.seeds[0]
    jobs = "".join(_jobs(run) for run in benched.runs if run.seed == first_seed)
    note = (
        "slowdown: an iteration over one alone on nodes of its own; observed: both with the same sampled durations; "
        "alone $: its own nodes for its iterations; saving: that over what it was charged, evenly with the members of its groups"
    )
    more = f'<h2>Every job, shared against alone</h2><p class="dim">{note}; seed {first_seed}</p>{jobs}'
    if len(benched.seeds) > 1:
        more += to_html(differences_table(benched.differences))
    hashes = {f"seed {run.seed}": run.scenario_sha256 for run in benched.runs}
    page = f'<section class="card">{more}</section>'
    return results_page(f"RollMux bench: {benched.scenario}", table, plots, page, {**made_by, **hashes})


def results_page(
    title: str, table: RenderableType, plots: Mapping[str, bytes], more: str = "", made_by: Mapping[str, str] | None = None
) -> str:
    """Return a page with a table, plots and further sections.

    Args:
        title: Title of the page.
        table: Table that a terminal shows.
        plots: Plots by file name.
        more: HTML of further sections.
        made_by: Versions and hashes by name, or None.
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
    page = one_file(template)  # before any content is inserted, so that only the template's scripts are allowed
    return page.replace("<!-- title -->", escape(title)).replace("<!-- body -->", "".join(parts), 1)


def _figure(name: str, data: bytes) -> str:
    stem, _, kind = name.rpartition(".")
    words = stem.replace("_", " ")
    source = f"data:image/{'svg+xml' if kind == 'svg' else kind};base64,{b64encode(data).decode()}"
    if kind == "pdf":  # browsers do not show a PDF as an image
        return f'<figure><figcaption>{escape(words)}: <a href="{escape(name)}">{escape(name)}</a></figcaption></figure>'
    return f'<figure><figcaption>{escape(words)}</figcaption><img src="{source}" alt="{escape(words)}"></figure>'


def _jobs(run: RunResult) -> str:
    """Return a policy's jobs in a folded section, those with a broken SLO first."""
    broken = [job for job in run.jobs if not job.keeps_slo]
    shown = [*broken, *(job for job in run.jobs if job.keeps_slo)][:_MOST_JOBS]
    hidden = len(run.jobs) - len(shown)
    note = f'<p class="dim">and {hidden} more jobs: jobs.csv has them all</p>' if hidden else ""
    figures = run.figures
    observed = "" if figures.slo_attainment_observed is None else ", as observed"
    share = f"{100 * (1 - len(broken) / len(run.jobs)):.1f}% of SLOs kept{observed}"
    slos = f"{share}; broken: {broken_words(run.jobs)}" if broken else share
    done = "" if figures.mean_completion_h is None else f"completion {figures.mean_completion_h:.1f} h, "
    whole = f"{done}{figures.cost_usd:,.0f} $, {figures.usd_per_work_hour:.2f} $ per work-hour, {slos}"
    return f"<details><summary>{escape(run.policy)}: {escape(whole)}</summary>{to_html(jobs_table(shown))}{note}</details>"
