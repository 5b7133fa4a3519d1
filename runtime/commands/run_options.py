"""Options of `rollmux run`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.report.loggers import MakeLogger, find_logger
from runtime.commands.options import Address, DispatchName, PolicyName, Seed
from runtime.coordinator.run_plan import dispatch_name, placement_name


class Comparison(StrEnum):
    """Comparisons that a run can measure."""

    solo = "solo"


@dataclass(frozen=True)
class RunOptions:
    """Options of `rollmux run`. Each field is the option of the same name, except `context`, which says which ones were given."""

    context: typer.Context
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A job file (docs/reference/jobs.md).")] = None
    policy: PolicyName = None
    dispatch: DispatchName = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Profile the jobs and print their placements and periods without running them.")
    ] = False
    compare: Annotated[
        Comparison | None, typer.Option("--compare", help="Also measure each job alone, at the end, on the nodes it had.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for journal, checkpoints, logs and report. (default: keep nothing)"),
    ] = None
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Resume the run in this folder, instead of FILE.")
    ] = None
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="With --resume: continue even if data, modules, models or the job file have changed."
        ),
    ] = False
    leave: Annotated[
        bool, typer.Option("--leave", help="Offload every job from its devices after each phase, even if it would fit.")
    ] = False
    address: Address = None
    seed: Seed = 0
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Profile all jobs again, even those whose profiles are in the cache.")
    ] = False
    logger: Annotated[
        str | None,
        typer.Option(
            "--logger", metavar="MODULE:NAME", help="Function of a folder that returns a job's logger, as in `rollmux train`."
        ),
    ] = None

    @property
    def placement_policy(self) -> str:
        """Name of the placement policy."""
        return placement_name(self.policy)

    @property
    def dispatch_policy(self) -> str:
        """Name of the dispatch policy."""
        return dispatch_name(self.dispatch)

    @cached_property
    def make_logger(self) -> MakeLogger | None:
        """Function that makes the logger of a job from a folder, or None."""
        return None if self.logger is None else find_logger(self.logger)
