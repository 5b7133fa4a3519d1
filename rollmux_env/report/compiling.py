"""The line of commands that may have to compile the kernel first."""

from __future__ import annotations

import typer

from rollmux_env.kernel.candidates import enumerate_candidates
from rollmux_env.kernel.compiled import compiling_notice


def announce_compiling() -> None:
    """Say on standard error that the kernel is going to be compiled, unless an earlier process left it on disk."""
    if notice := compiling_notice(enumerate_candidates, "about half a minute"):
        typer.echo(notice, err=True)
