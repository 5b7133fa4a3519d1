"""The command `rollmux validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.scenario import load_scenario


def validate(file: Annotated[Path, typer.Argument(metavar="FILE", help="A scenario file.")]) -> None:
    """Check a scenario file, and print its size and hash.

    Example: `rollmux validate examples/quickstart.yaml`
    """
    scenario = load_scenario(file)
    arrivals_s = [job.arrival_s for job in scenario.jobs]
    jobs = f"{len(scenario.jobs)} job{'s' if len(scenario.jobs) > 1 else ''}"
    typer.echo(f"{file}: {jobs} arriving over {(max(arrivals_s) - min(arrivals_s)) / 3600:.1f} h, sha256 {scenario.sha256}")
