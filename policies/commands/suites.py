"""Suites for `rollmux bench --suite`: what is replayed or measured, written and printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from policies.commands.bench_options import BenchOptions
from policies.commands.printed import Printed
from policies.dispatch import make_dispatch
from policies.makers import makers
from policies.registry import make_policy
from rollmux_env.bench.harness import can_replay, run_tasks
from rollmux_env.bench.suite import Suite, SuiteCase, SuiteRow, shortened, suite_rows, suite_tasks
from rollmux_env.bench.suites import find_suite
from rollmux_env.errors import InputError
from rollmux_env.report.folder import results_folder
from rollmux_env.report.look import Look, drawn_as, parse_labels
from rollmux_env.report.progress import tracked
from rollmux_env.report.suites import suite_csv, suite_report, suite_table, write_suite
from rollmux_env.user_code import keep_stdout


def run_suite(options: BenchOptions) -> Printed:
    """Run a suite.

    Raises:
        InputError: There is no such suite, or it does not take an option.
        PlanError: A policy broke an invariant.
    """
    keep_stdout()
    suite = find_suite(str(options.suite), options.settings or ())
    _check(suite, options)
    quick = options.quick and suite.seeds > 0
    suite = shortened(suite) if quick else suite
    count = options.seeds or (1 if quick else suite.seeds)
    numbers = range(options.seed, options.seed + count) if suite.seeds else range(0)
    look = Look(options.width_in, parse_labels(options.label or ()))
    with drawn_as(look), results_folder(options.out, f"{suite.name}.json", options.overwrite):
        rows = _rows(suite, numbers, quick, options)
        report, table = suite_report(suite, rows, numbers, quick), suite_table(suite, rows, numbers, quick)
        if options.out:
            points = suite.sweep(options.seed, makers()) if suite.sweep else ()
            write_suite(options.out, suite, rows, report, table, points, options.plots.value)
    return Printed(report, [table], suite_csv(suite, rows, numbers, quick))


def _check(suite: Suite, options: BenchOptions) -> None:
    """Refuse policies and a limit of time that a suite does not take."""
    added = options.policy or []
    if suite.measure is not None and added and suite.adds is None:
        raise InputError(f"--policy {added[0]}: the suite {suite.name} compares {suite.compares}")
    if suite.measure is not None and options.limit_s is not None:
        raise InputError(f"--time-limit: the suite {suite.name} runs in this process alone")
    for policy in added:
        getattr(makers(), suite.adds or "placement")(policy)


def _rows(suite: Suite, numbers: range, quick: bool, options: BenchOptions) -> list[SuiteRow]:
    """Return the rows of a suite: those of its function, or replays of its cases under its policies and those that were added."""
    added = options.policy or []
    if suite.measure is not None:
        measure = partial(suite.measure, added=added) if added else suite.measure
        return measure(numbers, quick, makers())
    suite = replace(suite, cases=tuple(replace(case, policies=_policies(case, added)) for case in suite.cases))
    tasks = suite_tasks(suite, numbers, quick, make_dispatch, options.check)
    replays = [task for _, task in tasks]
    names = [f"{case.label}: {task.spec}, seed {task.seed}" for case, task in tasks]
    results = tracked(lambda report: run_tasks(make_policy, replays, options.workers, report, options.limit_s), names)
    return suite_rows(suite, [(case, result) for (case, _), result in zip(tasks, results, strict=True)])


def _policies(case: SuiteCase, added: Sequence[str]) -> tuple[str, ...]:
    """Return the policies of a case, and those that were added and support its kind of replay."""
    names = dict.fromkeys((*case.policies, *added))
    return tuple(name for name in names if can_replay(make_policy(name, 0), case.dispatch is not None))
