"""What is shown and written of a bench or a sweep: tables, plots, one HTML page, and a folder of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from rollmux_env.bench.results import BenchResult, RunResult, SweepResult
from rollmux_env.files import write_whole
from rollmux_env.report.folder import results_page
from rollmux_env.report.html import to_html
from rollmux_env.report.results import rows_csv, to_json
from rollmux_env.report.tables import bench_tables, broken_words, differences_table, jobs_table, sweep_tables

if TYPE_CHECKING:
    from rollmux_env.report.styles import Kind

_MOST_JOBS = 2000  # largest number of jobs of a policy on the page; jobs.csv has all
_VERSIONS = ("rollmux", "numpy", "numba", "scipy", "pydantic")


def tables_of(benched: BenchResult | SweepResult) -> list[RenderableType]:
    """Return the tables of a bench or a sweep for a terminal."""
    if isinstance(benched, BenchResult):
        return bench_tables(benched, bench_title(benched))
    title = bench_title(benched.points[0].bench, benched.keys)
    return sweep_tables(benched, f"{title}, by {' and '.join(benched.keys)}")


def plots_of(benched: BenchResult | SweepResult, kind: Kind = "png") -> dict[str, bytes]:
    """Return the plots of a bench or a sweep by file name."""
    from rollmux_env.report.plots import bench_plots, key_plots  # matplotlib takes half a second, and tables do without

    return bench_plots(benched, kind) if isinstance(benched, BenchResult) else key_plots(benched, kind)


def bench_title(benched: BenchResult, without: Sequence[str] = ()) -> str:
    """Describe what was replayed and how, without the settings that are varied."""
    asked = "".join(f", {key} {value}" for key, value in benched.settings.items() if key not in without)
    over = f"{len(benched.seeds)} seeds" if len(benched.seeds) > 1 else f"seed {benched.seeds[0]}"
    how = f"{over}, fluid replay"
    if benched.fidelity == "event":
        within = f", rollouts {benched.rollout_policy}" if benched.rollout_policy != "plain" else ""
        dies = f", failures {benched.failures}" if benched.failures else ""
        how = f"{over}, {benched.dispatch} event replay{within}{dies}"
    if benched.fleet is not None and "fleet" not in without:
        load = "" if "=" not in benched.fleet else f" ({benched.fleet.replace('=', ' ')})"
        asked += f", {benched.fleet_nodes} nodes{load}"
    return f"{benched.scenario}{asked}: {len(benched.stream.jobs)} jobs, {how}"


def write_bench(folder: Path, benched: BenchResult | SweepResult, kind: Kind = "png") -> None:
    """Write `results.json` (with versions), `runs.csv`, `jobs.csv`, the plots, and `results.html` with all of it.

    Args:
        folder: Existing folder.
        benched: Results.
        kind: Kind of the plots.

    Raises:
        InputError: If a file cannot be written.
    """
    plots, table = plots_of(benched, kind), Group(*tables_of(benched))
    made_by = {name: version(name) for name in _VERSIONS} | {"python": python_version()}
    write_whole(folder / "results.json", to_json({"versions": made_by, **benched.as_dict()}))
    for name in ("runs", "jobs"):
        write_whole(folder / f"{name}.csv", rows_csv(benched.rows(name)))
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
    if len(benched.seeds) > 1:
        more += to_html(differences_table(benched.differences))
    hashes = {f"seed {run.seed}": run.scenario_sha256 for run in benched.runs}
    page = f'<section class="card">{more}</section>'
    return results_page(f"RollMux bench: {benched.scenario}", table, plots, page, {**made_by, **hashes})


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
