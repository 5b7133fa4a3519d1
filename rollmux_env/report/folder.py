"""The folder that `bench --out` writes: results, versions, plots, and the whole of it as one HTML file, with tables that can be
sorted and what sharing costs each job."""

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

_MOST_JOBS = 2000  # of a policy; jobs.csv has all
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


def write_bench(folder: Path, benched: BenchResult | SweepResult, plots: Mapping[str, bytes], table: RenderableType) -> None:
    """Write `results.json` (with versions), `runs.csv`, `jobs.csv`, the plots, and `results.html`: all of it.

    Args:
        plots: by file name. table: what a terminal shows.

    Raises:
        InputError: a file cannot be written; one line.
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
    """Make a folder for results, and be its only writer until they are written.

    Args:
        folder: the folder, or None if nothing is written.
        file: the name of the file of results.
        overwrite: whether results of an earlier bench may be lost.

    Raises:
        InputError: the folder cannot be made or has another writer, or it holds such results; one line.
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
    """The page of a comparison of policies.

    Args:
        table: what a terminal shows. plots: by file name. made_by: versions.
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
    stem, _, kind = name.rpartition(".")
    words = stem.replace("_", " ")
    source = f"data:image/{'svg+xml' if kind == 'svg' else kind};base64,{b64encode(data).decode()}"
    if kind == "pdf":  # which a browser shows in no picture
        return f'<figure><figcaption>{escape(words)}: <a href="{escape(name)}">{escape(name)}</a></figcaption></figure>'
    return f'<figure><figcaption>{escape(words)}</figcaption><img src="{source}" alt="{escape(words)}"></figure>'


def _jobs(run: RunResult) -> str:
    """A policy's jobs, folded away; those whose SLO is broken come first."""
    broken = [job for job in run.jobs if not job.keeps_slo]
    shown = [*broken, *(job for job in run.jobs if job.keeps_slo)][:_MOST_JOBS]
    hidden = len(run.jobs) - len(shown)
    note = f'<p class="dim">and {hidden} more jobs: jobs.csv has them all</p>' if hidden else ""
    figures = run.figures
    observed = "" if figures.slo_attainment_observed is None else ", as observed"
    share = f"{100 * (1 - len(broken) / len(run.jobs)):.1f}% of SLOs kept{observed}"
    slos = f"{share}; broken: {broken_words(run.jobs)}" if broken else share
    whole = f"{figures.cost_usd:,.0f} $, {figures.usd_per_work_hour:.2f} $ per work-hour, {slos}"
    return f"<details><summary>{escape(run.policy)}: {escape(whole)}</summary>{to_html(jobs_table(shown))}{note}</details>"
