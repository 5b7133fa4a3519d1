"""The command `rollmux export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.errors import require
from runtime.commands.options import Folder
from runtime.export import export_model


def export(
    folder: Folder,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of a built-in job.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="New folder for the model.")],
) -> None:
    """Write the model that a job has trained, as a Hugging Face folder that transformers and vLLM load.

    It is the model of the job's last checkpoint. The run may still be in progress.

    Example: `rollmux export run math --to math-model`
    """
    require("run", "export")
    iterations = export_model(folder, job, to)
    typer.echo(f"{to}: the model of job {job} after {iterations} iterations")
