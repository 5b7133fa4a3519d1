"""`rollmux export`: a trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run or a service.", show_default=False)],
    job: Annotated[str, typer.Argument(help="A built-in job of it.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="A new folder for the model.", show_default=False)],
) -> None:
    """Write the model that a job has trained: a Hugging Face folder, which transformers and vLLM load.

    It is that of the job's last checkpoint, also while the run goes on.

    Example: `rollmux export run math --to math-model`
    """
    from rollmux_env.errors import require
    from runtime.export import export_model

    require("run", "export")
    iterations = export_model(folder, job, to)
    typer.echo(f"{to}: the model of job {job} after {iterations} iterations")
