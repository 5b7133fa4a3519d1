"""The command `rollmux allocate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from policies.allocation import make_allocator
from policies.commands.options import TableOrJson
from policies.commands.printed import Printed
from rollmux_env.allocation.allocation import parse_budget
from rollmux_env.allocation.job import make_allocated_scenario
from rollmux_env.allocation.report import allocation_report, allocation_table
from rollmux_env.allocation.run import run_file
from rollmux_env.files import write_whole
from rollmux_env.timing.work import make_work
from rollmux_env.workloads.text import write_scenario


def allocate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A size such as 7B, or a config.json.")],
    budget: Annotated[str, typer.Option("--budget", metavar="GPU=COUNT,...", help="GPUs that the job may have.")],
    staleness: Annotated[int, typer.Option("--staleness", help="Most versions that a sample's weights may be old, 0 to 64.")] = 4,
    allocator: Annotated[str, typer.Option("--allocator", metavar="NAME", help="hex, exhaustive or uniform.")] = "hex",
    machine: Annotated[int, typer.Option("--gpus-per-node", help="GPUs of a node.")] = 8,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Work of an iteration: responses, prompt_tokens, response_tokens, cap, updates; can be repeated.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Scenario file with the job as planned.")] = None,
    job_file: Annotated[
        Path | None, typer.Option("--job-file", metavar="FILE", help="Job file for `rollmux run` that executes the plan.")
    ] = None,
    shape_budgets: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="GPU=COUNT,...",
            help="Another budget, whose plan is a shape of the job in --out and --job-file; can be repeated.",
        ),
    ] = None,
    format: Annotated[TableOrJson, typer.Option("--format", help="Output format.")] = TableOrJson.table,
) -> None:
    """Divide GPUs of several types between the training and the rollouts of one asynchronous job (docs/reference/allocation.md).

    Examples: `rollmux allocate 7B --budget H800=24,H20=24 --staleness 4`

    `rollmux allocate 7B --set responses=1024 --budget H800=8,H20=16 --shape H800=16,H20=32 --out scenario.yaml --job-file job.yaml`
    """
    divide = make_allocator(allocator)
    work = make_work(model, staleness, settings or [])
    written = out is not None or job_file is not None
    if shape_budgets and not written:
        raise typer.BadParameter("goes with --out and --job-file", param_hint="--shape")
    gpus = parse_budget(budget, machine, one_type=written)
    begin = time.perf_counter()
    allocation = divide(work, gpus)
    planner_s = time.perf_counter() - begin
    name, plans = Path(model).stem if Path(model).suffix == ".json" else model, [allocation]
    plans += [divide(work, parse_budget(text, machine, one_type=True)) for text in shape_budgets or []]
    if out is not None:
        write_scenario(out, make_allocated_scenario(name, plans))
    if job_file is not None:
        folder = str(Path(model).parent.absolute()) if Path(model).suffix == ".json" else None
        write_whole(job_file, run_file(name, folder, plans))
    tables = [allocation_table(model, allocator, allocation, planner_s)]
    Printed(allocation_report(model, allocator, allocation), tables).show(format)
