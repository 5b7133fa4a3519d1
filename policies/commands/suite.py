"""`rollmux bench --suite`."""

from __future__ import annotations

from pathlib import Path

import typer

from policies.commands.options import Format


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
    """Run a suite, with policies of the user's added to every case."""
    from dataclasses import replace

    from policies.dispatch import make_dispatch
    from policies.registry import make_policy
    from rollmux_env.bench.harness import run_tasks
    from rollmux_env.bench.suite import suite_rows, suite_tasks
    from rollmux_env.bench.suites import find_suite
    from rollmux_env.files import write_whole
    from rollmux_env.report.folder import make_folder
    from rollmux_env.report.progress import tracked
    from rollmux_env.report.results import to_json
    from rollmux_env.report.suites import suite_csv, suite_plots, suite_report, suite_table

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
    results = tracked(run_tasks(make_policy, [task for _, task in tasks], workers), names)
    rows = suite_rows(chosen, [(case, result) for (case, _), result in zip(tasks, results, strict=True)])
    report = suite_report(chosen, rows, numbers, quick)
    if out:
        write_whole(out / f"{name}.json", to_json(report))
        write_whole(out / f"{name}.csv", suite_csv(chosen, rows))
        for file, data in suite_plots(chosen, rows).items():
            write_whole(out / file, data)
    if format is Format.json:
        typer.echo(to_json(report), nl=False)
    elif format is Format.csv:
        typer.echo(suite_csv(chosen, rows), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(suite_table(chosen, rows, numbers, quick))
