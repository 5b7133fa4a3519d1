"""The command `rollmux mcp`."""

from __future__ import annotations

from typing import Annotated

import typer

from rollmux_env.errors import require
from runtime.commands.options import At


def mcp(
    at: At = None,
    write: Annotated[bool, typer.Option("--write", help="Let models submit and cancel jobs, too.")] = False,
) -> None:
    """Serve models over the Model Context Protocol, on standard input and output: status, explain, dry run, what-if, bench.

    It only reads unless told otherwise, with the user's own token and its rights.

    Example: `claude mcp add rollmux -- rollmux mcp`
    """
    require("mcp", "mcp")
    from runtime.service.mcp_server import make_server

    make_server(at, write).run("stdio")
