"""The command `rollmux samples`."""

from __future__ import annotations

from typing import Annotated

import typer

from rollmux_env.errors import InputError
from runtime.commands.options import At, JobName
from runtime.samples import read_samples
from runtime.service.address import folder_of


def samples(
    job: JobName,
    iteration: Annotated[
        int | None, typer.Option("--iteration", min=1, help="Number of the iteration, from 1. (default: the last one)")
    ] = None,
    at: At = None,
) -> None:
    """Print some prompts of an iteration with their responses and rewards.

    With `--at DIR`, DIR may also be that of `rollmux run --out DIR`.

    Examples: `rollmux samples math`

    `rollmux samples math --iteration 1 --at run`
    """
    by_iteration = read_samples(folder_of(at), job)
    first, last = min(by_iteration), max(by_iteration)
    wanted = last if iteration is None else iteration - 1
    if wanted not in by_iteration:
        raise InputError(f"--iteration {iteration}: there are no samples of it; there are some of {first + 1} to {last + 1}")
    typer.echo(f"iteration {wanted + 1}")
    for group in by_iteration[wanted]:
        typer.echo(f"\nprompt: {group.prompt}")
        for response, reward in zip(group.responses, group.rewards, strict=True):
            typer.echo(f"{reward:10.4g} | {response}")
