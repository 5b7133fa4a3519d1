"""The commands of this package: `plan`, `bench`, `explain`, `trace`, `shapes`, `allocate`."""

from __future__ import annotations

import typer

from policies.commands.allocate import allocate
from policies.commands.bench import bench
from policies.commands.explain import explain
from policies.commands.plan import plan
from policies.commands.shapes import shapes
from policies.commands.trace import trace


def mount(app: typer.Typer) -> None:
    """Add the commands of this package."""
    for command in (plan, bench, explain, trace, shapes, allocate):
        app.command(rich_help_panel="Schedule")(command)
