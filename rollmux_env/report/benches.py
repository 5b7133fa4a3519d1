"""Outputs of a bench or a sweep: tables, plots, one HTML page, and a folder of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from rollmux_env.report.bench_results import BenchResult, RunResult, SweepResult, Table
from rollmux_env.report.bench_tables import bench_tables, broken_words, differences_table, jobs_table
from rollmux_env.report.folder import results_folder, results_page
from rollmux_env.report.html import to_html
from rollmux_env.report.latex import to_latex
from rollmux_env.report.results import rows_csv, to_json
from rollmux_env.report.sweep_tables import sweep_tables
from rollmux_env.report.tables import percent
from rollmux_env.validation_errors import not_one_of
from rollmux_env.workloads.fleets import load_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollmux_env.report.styles import Kind

RESULTS = "results.json"
_TABLES: tuple[Table, ...] = ("runs", "jobs", "summary", "differences", "timeline")
_MAX_JOBS = 2000  # largest number of jobs of a policy on the page; jobs.csv has all
_KINDS = ("png", "svg", "pdf")
_VERSIONS = ("rollmux", "numpy", "numba", "scipy", "pydantic")


def tables_of(benched: BenchResult | SweepResult) -> list[RenderableType]:
    """Return the tables of a bench or a sweep for a terminal."""
    if isinstance(benched, BenchResult):
        return bench_tables(benched, bench_title(benched))
    title = bench_title(benched.points[0].bench, benched.keys, [run for point in benched.points for run in point.bench.runs])
    return sweep_tables(benched, f"{title}, by {' and '.join(benched.keys)}")


def latex_of(benched: BenchResult | SweepResult) -> str:
    """Return the tables of a bench or a sweep as LaTeX."""
    return "".join(map(to_latex, tables_of(benched)))


def html_of(benched: BenchResult | SweepResult) -> str:
    """Return the tables of a bench or a sweep as HTML."""
    return "".join(map(to_html, tables_of(benched)))


def figure_of(benched: BenchResult | SweepResult, name: str) -> Figure:
    """Return a plot of a bench or a sweep.

    Args:
        benched: Results.
        name: Name of the plot.

    Raises:
        InputError: If there is no such plot.
    """
    from rollmux_env.report.plots import figures_of

    figures = figures_of(benched)
    if name not in figures:
        raise InputError(f"plot: {not_one_of(name, figures)}")
    return figures[name]()


def plots_of(benched: BenchResult | SweepResult, kind: Kind = "png") -> dict[str, bytes]:
    """Return the plots of a bench or a sweep by file name."""
    from rollmux_env.report.plots import figures_of  # matplotlib takes half a second, and tables do without
    from rollmux_env.report.styles import picture

    return {f"{name}.{kind}": picture(make(), kind) for name, make in figures_of(benched).items()}


def save(folder: Path, benched: BenchResult | SweepResult, kind: Kind, overwrite: bool) -> None:
    """Write the folder of a bench or a sweep.

    Args:
        folder: Path of the folder, which is made.
        benched: Results.
        kind: Kind of the plots.
        overwrite: Whether results that are there may be replaced.

    Raises:
        InputError: If there is no such kind, or the folder holds results already, or cannot be written.
    """
    if kind not in _KINDS:
        raise InputError(f"plots: {not_one_of(kind, _KINDS)}")
    with results_folder(folder, RESULTS, overwrite):
        write_bench(folder, benched, kind)


def bench_title(benched: BenchResult, without: Sequence[str] = (), runs: Sequence[RunResult] = ()) -> str:
    """Describe what was replayed and how.

    Args:
        benched: Results.
        without: Settings that are varied, which are left out.
        runs: Runs whose jobs are counted, or empty for those of `benched`.
    """
    asked = "".join(f", {key} {value}" for key, value in benched.settings.items() if key not in without)
    over = f"{len(benched.seeds)} seeds" if len(benched.seeds) > 1 else f"seed {benched.seeds[0]}"
    how = f"{over}, fluid replay"
    if benched.fidelity == "event":
        within = f", rollouts {benched.rollout_policy}" if benched.rollout_policy != "plain" else ""
        dies = f", failures {benched.failures}" if benched.failures else ""
        how = f"{over}, {benched.dispatch} event replay{within}{dies}"
    if benched.fleet is not None and "fleet" not in without:
        asked += f", {benched.fleet_nodes} nodes{_load_words(benched)}"
    counts = [len(run.jobs) for run in runs or benched.runs]
    few, many = min(counts), max(counts)
    jobs = f"{few} to {many} jobs" if few < many else f"{many} job{'s' if many > 1 else ''}"
    return f"{benched.scenario}{asked}: {jobs}, {how}"


def _load_words(benched: BenchResult) -> str:
    """Return the load of the first seed's stream on the fleet, as asked for or as it is, or an empty text if it says little."""
    if benched.fleet is not None and "=" in benched.fleet:
        return f" ({benched.fleet.replace('=', ' ')})"
    load = load_of(benched.stream)
    return "" if load is None else f" (load {load:.2g})"


def write_bench(folder: Path, benched: BenchResult | SweepResult, kind: Kind = "png") -> None:
    """Write `results.json` (with versions), the tables as CSV, the plots, and `results.html` with all of it.

    Args:
        folder: Existing folder.
        benched: Results.
        kind: Kind of the plots.

    Raises:
        InputError: If a file cannot be written.
    """
    plots, table = plots_of(benched, kind), Group(*tables_of(benched))
    made_by = {name: version(name) for name in _VERSIONS} | {"python": python_version()}
    write_whole(folder / RESULTS, to_json({"versions": made_by, **benched.as_dict()}))
    for table_name in _TABLES:
        write_whole(folder / f"{table_name}.csv", rows_csv(benched.rows(table_name)))
    for name, data in plots.items():
        write_whole(folder / name, data)
    write_whole(folder / "results.html", _bench_page(benched, plots, table, made_by))


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
    if len(benched.seeds) > 1 and benched.differences:
        more += to_html(differences_table(benched.differences))
    hashes = {f"seed {run.seed}": run.scenario_sha256 for run in benched.runs}
    page = f'<section class="card">{more}</section>'
    return results_page(f"RollMux bench: {benched.scenario}", table, plots, page, {**made_by, **hashes})


def _jobs(run: RunResult) -> str:
    """Return a policy's jobs in a folded section, those with a broken SLO first."""
    broken = [job for job in run.jobs if not job.keeps_slo]
    shown = [*broken, *(job for job in run.jobs if job.keeps_slo)][:_MAX_JOBS]
    hidden = len(run.jobs) - len(shown)
    note = f'<p class="dim">and {hidden} more jobs: jobs.csv has them all</p>' if hidden else ""
    figures = run.figures
    observed = "" if figures.slo_attainment_observed is None else ", as observed"
    share = f"{percent(1 - len(broken) / len(run.jobs))} of SLOs kept{observed}"
    slos = f"{share}; broken: {broken_words(run.jobs)}" if broken else share
    done = "" if figures.mean_completion_h is None else f"completion {figures.mean_completion_h:.1f} h, "
    whole = f"{done}{figures.cost_usd:,.0f} $, {figures.usd_per_work_hour:.2f} $ per work-hour, {slos}"
    return f"<details><summary>{escape(run.policy)}: {escape(whole)}</summary>{to_html(jobs_table(shown))}{note}</details>"
