"""The command `rollmux openenv`."""

from __future__ import annotations

from typing import Annotated

import typer

from rollmux_env.errors import require


def openenv(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="production, mixed, ..., a scenario file, or `module:name`.")
    ] = "production",
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Number of jobs of a stream.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Let clients select streams that are held out.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; there are no tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 8000,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Largest number of simultaneous sessions.")] = 64,
) -> None:
    """Serve the placement environment to trainers of language models, with the server of OpenEnv.

    Example: `rollmux openenv mixed --jobs 40`
    """
    require("openenv", "openenv")
    import uvicorn

    from rollmux_env.envs.openenv import make_app

    uvicorn.run(make_app(workload, jobs, held_out, sessions), host=host, port=port)
