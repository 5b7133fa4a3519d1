"""The command `rollmux run`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import typer

from policies.dispatch import make_dispatch
from policies.placement.baselines import ColocatedJobs
from policies.registry import make_runnable
from rollmux_env.command_options import takes
from rollmux_env.errors import InputError, require
from rollmux_env.report.folder import make_folder
from runtime.commands.run_options import RunOptions
from runtime.jobs.file import load_jobs
from runtime.journal.parts import newest_part
from runtime.journal.write import is_begun
from runtime.machines.own_ray import stay_on_loopback
from runtime.own_folder import spare_folder
from runtime.service.address import check_run, in_shell
from runtime.signals import listening


@takes(RunOptions)
def run(options: RunOptions) -> None:
    """Run real RL post-training jobs, co-executed on a rollout pool and a training pool.

    Ctrl-C stops the run at the next phase boundary; with --out it can be resumed later.

    Examples: `rollmux run examples/two_jobs.yaml --dry-run`

    `rollmux run examples/two_jobs.yaml --compare solo --out run`

    `rollmux run --resume run`
    """
    require("run", "run")
    resume = options.resume
    if resume is not None:
        _check_alone(options)
    elif options.file is None:
        raise InputError("FILE: is missing; a job file to run, or --resume DIR")
    elif options.accept_changes:
        raise InputError("--accept-changes: goes with --resume; a new run has nothing that could have changed")
    if options.make_logger is not None and options.dry_run:
        raise InputError("--logger: does not go with --dry-run, which runs nothing")
    if options.address is None:
        stay_on_loopback()
    try:
        with listening():
            outcome = _resume_all(resume, options) if resume is not None else _begin(options.file, options)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        outcome = "stopped at once"
    if outcome.startswith("stopped"):
        _say_stopped(outcome, resume or (None if options.dry_run else options.out), options)
        raise KeyboardInterrupt
    if outcome == "failed":
        raise typer.Exit(1)


def _check_alone(options: RunOptions) -> None:
    """Check that --resume comes without options that the run has recorded.

    Raises:
        InputError: If it does not; one line.
    """
    for name in ("file", "policy", "dispatch", "dry_run", "out", "seed", "no_cache"):
        source = options.context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            what = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
            raise InputError(f"--resume: does not go with {what}; the run has its own")


def _say_stopped(how: str, folder: Path | None, options: RunOptions) -> None:
    """Print how a run was stopped, and the command that continues it if its folder stays."""
    if folder is not None and is_begun(newest_part(folder)):
        again = (("address", options.address), ("compare", options.compare))
        words = "".join(f" --{name} {value}" for name, value in again if value is not None)
        how = f"{how}; `rollmux run --resume {in_shell(folder)}{words}` continues it"
    typer.echo(how)


def _begin(file: Path, options: RunOptions) -> str:
    """Begin a new run, and return its outcome."""
    jobs, out = load_jobs(file), options.out
    if elsewhere := next((job.id for job in jobs.jobs if job.is_attached), None):
        raise InputError(f"{file}: job {elsewhere}: `rollmux serve` and `rollmux submit` are for attached jobs and commands")
    in_turn = isinstance(make_runnable(options.placement_policy, options.seed), ColocatedJobs)
    if in_turn and (stale := next((number for number, job in enumerate(jobs.jobs) if job.staleness), None)) is not None:
        where = f"{file}: jobs[{stale}].staleness"
        raise InputError(f"{where}: does not go with --policy colocated, where phases take turns on one pool")
    make_dispatch(options.dispatch_policy)
    if options.dry_run and options.compare:
        raise InputError("--compare: does not go with --dry-run, which runs nothing")
    from runtime.commands import running

    if out is not None:
        make_folder(out, private=True)
        if is_begun(newest_part(out)):
            check_run(out, "--out ")
            raise InputError(f"--out {out}: holds a run already; choose another folder, or continue it by --resume {in_shell(out)}")
    with nullcontext(out.resolve()) if out is not None else spare_folder() as folder:
        if options.dry_run:
            running.run_dry(jobs, options, folder)
            return "done"
        return running.run_all(jobs, options, folder, file)


def _resume_all(folder: Path, options: RunOptions) -> str:
    """Continue a run, and return its outcome."""
    from runtime.commands.running import resume_all

    check_run(folder, "--resume ")
    return resume_all(folder.resolve(), options)
