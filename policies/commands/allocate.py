"""`rollmux allocate`."""

from __future__ import annotations

from typing import Annotated

import typer

from policies.commands.options import TableOrJson


def allocate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A size such as 7B, or a config.json.", show_default=False)],
    budget: Annotated[
        str, typer.Option("--budget", metavar="GPU=COUNT,...", help="GPUs that the job may have.", show_default=False)
    ],
    staleness: Annotated[int, typer.Option("--staleness", help="Most versions that a sample's weights may be old, 0 to 64.")] = 4,
    allocator: Annotated[str, typer.Option("--allocator", metavar="NAME", help="hex, exhaustive or uniform.")] = "hex",
    machine: Annotated[int, typer.Option("--gpus-per-node", help="GPUs of a node.")] = 8,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Work of an iteration: responses, prompt_tokens, response_tokens, cap, updates; can be repeated.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[TableOrJson, typer.Option("--format", help="Output format.")] = TableOrJson.table,
) -> None:
    """Divide GPUs of several types between the training and the rollouts of one asynchronous job (docs/reference/allocation.md).

    Example: `rollmux allocate 7B --budget H800=24,H20=24 --staleness 4`
    """
    import time

    from policies.allocation import make_allocator
    from rollmux_env.report.allocation import allocation_report, allocation_table
    from rollmux_env.report.results import to_json
    from rollmux_env.timing.allocation import parse_budget
    from rollmux_env.timing.work import make_work

    divide = make_allocator(allocator)
    work = make_work(model, staleness, settings or [])
    gpus = parse_budget(budget, machine)
    begin = time.perf_counter()
    allocation = divide(work, gpus)
    planner_s = time.perf_counter() - begin
    if format is TableOrJson.json:
        typer.echo(to_json(allocation_report(model, allocator, allocation)), nl=False)
    else:
        from rollmux_env.report.tables import show

        show(allocation_table(model, allocator, allocation, planner_s))
