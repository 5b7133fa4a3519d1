"""`rollmux bench --suite`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from policies.commands.options import Format

if TYPE_CHECKING:
    from rollmux_env.bench.suite import Suite, SuiteRow


def run_suite(
    name: str,
    quick: bool,
    added: list[str],
    seed: int,
    seeds: int | None,
    workers: int,
    out: Path | None,
    format: Format,
    check: bool,
) -> None:
    """Run a suite, and add the user's policies to every case."""
    from dataclasses import replace

    from policies.dispatch import make_dispatch
    from policies.network import make_network
    from policies.registry import make_policy
    from policies.rollout import make_rollout, migrating
    from rollmux_env.bench.fabric import fabric_rows
    from rollmux_env.bench.harness import run_tasks
    from rollmux_env.bench.rollouts import Makers, rollout_rows, sweep
    from rollmux_env.bench.suite import suite_rows, suite_tasks
    from rollmux_env.bench.suites import AREAL_HEX, FABRIC, FIDELITY, ROLLOUT, fabric, find_suite, rollout
    from rollmux_env.errors import InputError
    from rollmux_env.files import write_whole
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.plots import sweep_plot
    from rollmux_env.report.progress import tracked

    if name == FIDELITY:
        _run_fidelity(added, out, format)
        return
    if name == AREAL_HEX:
        _run_areal_hex(added, out, format)
        return
    if name == ROLLOUT:
        if added:
            raise InputError(f"--policy {added[0]}: the suite {ROLLOUT} compares rollout policies, and has its own")
        chosen = rollout.SUITE
        numbers = range(seed, seed + (seeds or (1 if quick else chosen.seeds)))
        if out:
            make_folder(out)
        makers = Makers(make_policy, make_dispatch, make_rollout, migrating)
        rows = rollout_rows(rollout.CASES, numbers, quick, makers)
        if out:
            write_whole(out / "rollout_sweep.png", sweep_plot(sweep(rollout.SWEPT, seed, makers)))
        _tell(chosen, rows, numbers, quick, out, format)
        return
    if name == FABRIC:
        if added:
            raise InputError(f"--policy {added[0]}: the suite {FABRIC} compares network policies, and has its own")
        numbers = range(seed, seed + (seeds or (1 if quick else fabric.SUITE.seeds)))
        if out:
            make_folder(out)
        _tell(fabric.SUITE, fabric_rows(fabric.CASES, numbers, quick, make_network), numbers, quick, out, format)
        return
    chosen = find_suite(name)
    for policy in added:
        make_policy(policy)
    cases = tuple(replace(case, policies=tuple(dict.fromkeys((*case.policies, *added)))) for case in chosen.cases)
    chosen = replace(chosen, cases=cases)
    numbers = range(seed, seed + (seeds or (1 if quick else chosen.seeds)))
    if out:
        make_folder(out)
    tasks = suite_tasks(chosen, numbers, quick, make_dispatch, check)
    names = [f"{case.label}: {task.spec}, seed {task.seed}" for case, task in tasks]
    results = tracked(lambda tell: run_tasks(make_policy, [task for _, task in tasks], workers, tell), names)
    rows = suite_rows(chosen, [(case, result) for (case, _), result in zip(tasks, results, strict=True)])
    _tell(chosen, rows, numbers, quick, out, format)


def _run_fidelity(added: list[str], out: Path | None, format: Format) -> None:
    """Compare the phase-time model with published tables. Nothing is drawn by chance and all of it takes seconds."""
    from rollmux_env.bench.fidelity import fidelity_rows
    from rollmux_env.bench.suites import FIDELITY, fidelity
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import make_folder

    if added:
        raise InputError(f"--policy {added[0]}: the suite {FIDELITY} compares no policies")
    if out:
        make_folder(out)
    _tell(fidelity.SUITE, fidelity_rows(fidelity.TABLES), range(0), False, out, format, plots=False)


def _run_areal_hex(added: list[str], out: Path | None, format: Format) -> None:
    """Divide budgets of GPUs. Nothing is drawn by chance and all of it takes a minute or two."""
    from policies.allocation import make_allocator
    from rollmux_env.bench.allocations import allocation_rows
    from rollmux_env.bench.suites import AREAL_HEX, areal_hex
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import make_folder

    if added:
        raise InputError(f"--policy {added[0]}: the suite {AREAL_HEX} compares allocators, and has its own")
    if out:
        make_folder(out)
    rows = allocation_rows(areal_hex.CASES, areal_hex.AGAINST, make_allocator)
    _tell(areal_hex.SUITE, rows, range(0), False, out, format, plots=False)


def _tell(
    suite: Suite, rows: list[SuiteRow], numbers: range, quick: bool, out: Path | None, format: Format, plots: bool = True
) -> None:
    """Print the results, and write them, with their plots where these say something."""
    from rollmux_env.files import write_whole
    from rollmux_env.report.results import to_json
    from rollmux_env.report.results_page import results_page
    from rollmux_env.report.suites import suite_csv, suite_plots, suite_report, suite_table

    report = suite_report(suite, rows, numbers, quick)
    if out:
        write_whole(out / f"{suite.name}.json", to_json(report))
        write_whole(out / f"{suite.name}.csv", suite_csv(suite, rows))
        pictures = suite_plots(suite, rows) if plots else {}
        for file, data in pictures.items():
            write_whole(out / file, data)
        page = results_page(suite.title, suite_table(suite, rows, numbers, quick), pictures)
        write_whole(out / f"{suite.name}.html", page)
    if format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif format is Format.csv:
        typer.echo(suite_csv(suite, rows), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(suite_table(suite, rows, numbers, quick))
