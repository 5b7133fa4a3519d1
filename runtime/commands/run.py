"""`rollmux run`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from runtime.commands.options import Address, DispatchName, PolicyName, Seed
from runtime.execution.run_plan import DISPATCH, planning_switches


class Against(StrEnum):
    """Comparisons of a run."""

    solo = "solo"


def run(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A job file (docs/reference/jobs.md).", show_default=False)
    ] = None,
    policy: PolicyName = None,
    dispatch: DispatchName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Profile the jobs and print their placements and periods without running them.")
    ] = False,
    compare: Annotated[
        Against | None,
        typer.Option("--compare", help="Also measure each job alone, at the end, on the nodes it had.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for journal, checkpoints, logs and report. (default: keep nothing)",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Resume the run in this folder, instead of FILE.", show_default=False),
    ] = None,
    address: Address = None,
    seed: Seed = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure all jobs anew, also those whose profiles are in the cache.")
    ] = False,
) -> None:
    """Run real RL post-training jobs, co-executed on a rollout pool and a training pool.

    Ctrl-C stops it at the next phase boundary; with --out it can go on later.

    Examples: `rollmux run examples/two_jobs.yaml --dry-run`

    `rollmux run examples/two_jobs.yaml --compare solo --out run`

    `rollmux run --resume run`
    """
    from rollmux_env.errors import InputError, require
    from runtime.execution.own_ray import stay_on_loopback
    from runtime.signals import listening

    require("run", "run")
    if resume is not None:
        for name in ("file", "policy", "dispatch", "dry_run", "out", "seed", "no_cache"):
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":
                what = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
                raise InputError(f"--resume: does not go with {what}; the run has its own")
        work = partial(_go_on, resume, address, compare is not None)
    elif file is None:
        raise InputError("FILE: is missing; a job file to run, or --resume DIR")
    else:
        planning = planning_switches(policy), dispatch or DISPATCH, seed, not no_cache
        work = partial(_begin, file, planning, dry_run, compare is not None, out, address)
    if address is None:
        stay_on_loopback()
    try:
        with listening():
            outcome = work()
    except KeyboardInterrupt:
        _say_stopped("stopped at once", resume or (None if dry_run else out), address, compare)
        raise
    if outcome == "stopped":
        _say_stopped("stopped", resume or (None if dry_run else out), address, compare)
        raise KeyboardInterrupt
    if outcome == "failed":
        raise typer.Exit(1)


def _say_stopped(how: str, folder: Path | None, address: str | None, compare: Against | None) -> None:
    """Say what continues a run that the user has stopped; nothing does where none has begun in a folder that stays."""
    from runtime.journal.write import JOURNAL, is_begun

    if folder is not None and is_begun(folder / JOURNAL):
        options = "".join(f" --{name} {value}" for name, value in (("address", address), ("compare", compare)) if value is not None)
        how = f"{how}; `rollmux run --resume {folder}{options}` goes on"
    typer.echo(how)


def _begin(
    file: Path, planning: tuple[str, str, int, bool], dry_run: bool, compare: bool, out: Path | None, address: str | None
) -> str:
    """A new run; how it ended.

    Args:
        planning: what makes a `runtime.commands.running.Planning`, which is imported late.
    """
    from contextlib import nullcontext

    from policies.dispatch import make_dispatch
    from policies.placement.alone import Colocated
    from policies.registry import make_runnable
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import make_folder
    from runtime.jobs.spec import load_jobs

    policy, dispatch, seed, _ = planning
    jobs = load_jobs(file)
    if elsewhere := next((job.id for job in jobs.jobs if job.is_attached), None):
        raise InputError(f"{file}: job {elsewhere}: `rollmux serve` and `rollmux submit` are for attached jobs and commands")
    in_turn = isinstance(make_runnable(policy, seed), Colocated)
    if in_turn and (stale := next((number for number, job in enumerate(jobs.jobs) if job.staleness), None)) is not None:
        where = f"{file}: jobs[{stale}].staleness"
        raise InputError(f"{where}: does not go with --policy colocated, where phases take turns on one pool")
    make_dispatch(dispatch)
    if dry_run and compare:
        raise InputError("--compare: does not go with --dry-run, which runs nothing")
    from runtime.commands.running import Planning, run_all, run_dry
    from runtime.journal.write import JOURNAL, is_begun
    from runtime.own_folder import spare_folder

    if out is not None:
        make_folder(out, private=True)
        if is_begun(out / JOURNAL):
            raise InputError(f"--out {out}: holds a run already; choose another folder, or go on with it by --resume {out}")
    with nullcontext(out.resolve()) if out is not None else spare_folder() as folder:
        if dry_run:
            run_dry(jobs, Planning(*planning), folder, address)
            return "done"
        return run_all(jobs, Planning(*planning), folder, address, compare, keep=out is not None)


def _go_on(folder: Path, address: str | None, compare: bool) -> str:
    """Go on with a run; how it ended."""
    from runtime.commands.running import resume_all

    return resume_all(folder.resolve(), address, compare)
