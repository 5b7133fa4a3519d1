"""`rollmux bench --suite`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from policies.commands.options import Format

if TYPE_CHECKING:
    from rollmux_env.bench.suite import Suite, SuiteRow


@dataclass(frozen=True)
class SuiteOptions:
    """How a suite is run.

    Attributes:
        quick: shorter streams, one seed.
        added: placement policies that the user wants in every case.
        seed, seeds: the first seed, and how many; None: as many as the suite has.
        workers: processes.
        out: folder for the results.
        format: of what is printed.
        check: assert the invariants at every instant.
    """

    quick: bool
    added: list[str]
    seed: int
    seeds: int | None
    workers: int
    out: Path | None
    format: Format
    check: bool

    def numbers(self, suite: Suite) -> range:
        """The seeds."""
        return range(self.seed, self.seed + (self.seeds or (1 if self.quick else suite.seeds)))


def run_suite(name: str, options: SuiteOptions) -> None:
    """Run a suite: of placement policies, to which the user may add, or of something else."""
    from rollmux_env.bench.suites import AREAL_HEX, FABRIC, FIDELITY, ROLLOUT, find_suite
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import make_folder

    others = {
        FIDELITY: (_run_fidelity, "no policies"),
        AREAL_HEX: (_run_areal_hex, "allocators, and has its own"),
        ROLLOUT: (_run_rollout, "rollout policies, and has its own"),
        FABRIC: (_run_fabric, "network policies, and has its own"),
    }
    if name in others and options.added:
        raise InputError(f"--policy {options.added[0]}: the suite {name} compares {others[name][1]}")
    if name not in others:
        _run_placement(find_suite(name), options)
        return
    if options.out:
        make_folder(options.out)
    others[name][0](options)


def _run_placement(suite: Suite, options: SuiteOptions) -> None:
    """Compare placement policies, the user's among them in every case."""
    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.harness import run_tasks
    from rollmux_env.bench.suite import suite_rows, suite_tasks
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.progress import tracked

    for policy in options.added:
        make_policy(policy)
    cases = tuple(replace(case, policies=tuple(dict.fromkeys((*case.policies, *options.added)))) for case in suite.cases)
    suite, numbers = replace(suite, cases=cases), options.numbers(suite)
    if options.out:
        make_folder(options.out)
    tasks = suite_tasks(suite, numbers, options.quick, make_dispatch, options.check)
    names = [f"{case.label}: {task.spec}, seed {task.seed}" for case, task in tasks]
    results = tracked(lambda tell: run_tasks(make_policy, [task for _, task in tasks], options.workers, tell), names)
    _tell(suite, suite_rows(suite, [(case, result) for (case, _), result in zip(tasks, results, strict=True)]), numbers, options)


def _run_rollout(options: SuiteOptions) -> None:
    """Compare rollout policies, on drawn jobs and on jobs of a sweep."""
    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from policies.rollout import make_rollout, migrating
    from rollmux_env.bench.rollouts import Makers, rollout_rows, sweep
    from rollmux_env.bench.suites import rollout
    from rollmux_env.files import write_whole
    from rollmux_env.report.plots import sweep_plot

    makers, numbers = Makers(make_policy, make_dispatch, make_rollout, migrating), options.numbers(rollout.SUITE)
    rows = rollout_rows(rollout.CASES, numbers, options.quick, makers)
    if options.out:
        write_whole(options.out / "rollout_sweep.png", sweep_plot(sweep(rollout.SWEPT, options.seed, makers)))
    _tell(rollout.SUITE, rows, numbers, options)


def _run_fabric(options: SuiteOptions) -> None:
    """Compare network policies on fabrics."""
    from policies.network import make_network
    from rollmux_env.bench.fabric import fabric_rows
    from rollmux_env.bench.suites import fabric

    numbers = options.numbers(fabric.SUITE)
    _tell(fabric.SUITE, fabric_rows(fabric.CASES, numbers, options.quick, make_network), numbers, options)


def _run_fidelity(options: SuiteOptions) -> None:
    """Compare the phase-time model with published tables. Nothing is drawn by chance and all of it takes seconds."""
    from rollmux_env.bench.fidelity import fidelity_rows
    from rollmux_env.bench.suites import fidelity

    _tell(fidelity.SUITE, fidelity_rows(fidelity.TABLES), range(0), replace(options, quick=False), plots=False)


def _run_areal_hex(options: SuiteOptions) -> None:
    """Divide budgets of GPUs. Nothing is drawn by chance and all of it takes a minute or two."""
    from policies.allocation import make_allocator
    from rollmux_env.bench.allocations import allocation_rows
    from rollmux_env.bench.suites import areal_hex

    rows = allocation_rows(areal_hex.CASES, areal_hex.AGAINST, make_allocator)
    _tell(areal_hex.SUITE, rows, range(0), replace(options, quick=False), plots=False)


def _tell(suite: Suite, rows: list[SuiteRow], numbers: range, options: SuiteOptions, plots: bool = True) -> None:
    """Print the results, and write them, with their plots where these say something."""
    from rollmux_env.files import write_whole
    from rollmux_env.report.results import to_json
    from rollmux_env.report.results_page import results_page
    from rollmux_env.report.suites import suite_csv, suite_plots, suite_report, suite_table

    out, quick = options.out, options.quick
    report = suite_report(suite, rows, numbers, quick)
    if out:
        write_whole(out / f"{suite.name}.json", to_json(report))
        write_whole(out / f"{suite.name}.csv", suite_csv(suite, rows))
        pictures = suite_plots(suite, rows) if plots else {}
        for file, data in pictures.items():
            write_whole(out / file, data)
        page = results_page(suite.title, suite_table(suite, rows, numbers, quick), pictures)
        write_whole(out / f"{suite.name}.html", page)
    if options.format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif options.format is Format.csv:
        typer.echo(suite_csv(suite, rows), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(suite_table(suite, rows, numbers, quick))
