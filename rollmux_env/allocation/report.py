"""An allocation of GPUs as a table and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.allocation.allocation import Allocation
from rollmux_env.report.tables import heading, make_table
from rollmux_env.timing.stages import Stage


def allocation_table(model: str, allocator: str, allocation: Allocation, planner_s: float) -> RenderableType:
    """Return the table of `rollmux allocate`.

    It has a line for consecutive training stages on one GPU type, and one for each kind of replica.

    Args:
        model: Name of the model.
        allocator: Name of the allocator.
        allocation: Allocation to show.
        planner_s: Seconds that the allocator took to find it.
    """
    work, training = allocation.work, allocation.training
    names = ", ".join(f"{count} {name}" for name, count in allocation.budget.gpus.items())
    table = make_table("side", "GPUs", "copies", "stages", "layers of a stage", "tensor parallel", "sequences", "GB a GPU", left=2)
    for stages in _by_gpu_type(training.stages):
        gpus = f"{training.copies * len(stages) * stages[0].gpus} {stages[0].hardware.name}"
        table.add_row("training", gpus, *_cells(training.copies, stages, "", training.memory_gb(work.micro_tokens)))
    table.add_section()
    for replica, number in allocation.replicas:
        gpus = ", ".join(f"{number * count} {name}" for name, count in replica.gpus.items())
        table.add_row("rollout", gpus, *_cells(number, replica.stages, str(replica.batch), replica.memory_gb(work)))
    price = allocation.usd_per_hour
    usd = "" if price is None else f", ${price:.2f}/h, ${price * allocation.iteration_s / 3600:.2f} an iteration"
    spare = ", ".join(f"{count} {name}" for name, count in allocation.spare_gpus.items())
    lines = [
        f"training {allocation.training_s:.1f} s; rollout {allocation.rollout_s:.1f} s: sampling {allocation.sampling_s:.1f} s, "
        f"rewards {allocation.budget.rewards_s(work):.1f} s, update {allocation.update_s:.1f} s",
        f"iteration {allocation.iteration_s:.1f} s, {work.responses / allocation.iteration_s:.2f} responses/s{usd}; "
        f"found in {planner_s:.1f} s",
        *([f"nothing runs on {spare}"] if spare else []),
    ]
    title = f"{model} on {names}, staleness {work.staleness}, {allocator}"
    return Group(heading(title), table, *(Text(line) for line in lines))


def _cells(copies: int, stages: Sequence[Stage], sequences: str, gb: float) -> tuple[str, ...]:
    """Return the cells of a line from the column "copies" on."""
    least, most = min(stage.layers for stage in stages), max(stage.layers for stage in stages)
    layers = f"{least}" if least == most else f"{least}-{most}"
    return str(copies), str(len(stages)), layers, str(stages[0].gpus), sequences, f"{gb:.1f}"


def allocation_report(model: str, allocator: str, allocation: Allocation) -> dict[str, Any]:
    """Return the allocation as plain values for JSON. It leaves out the allocator's seconds, so equal input gives equal output."""
    work = allocation.work
    return {
        "model": model,
        "allocator": allocator,
        "budget": dict(allocation.budget.gpus),
        "gpus_per_node": allocation.budget.machine,
        "staleness": work.staleness,
        "usd_per_hour": allocation.usd_per_hour,
        "iteration_s": allocation.iteration_s,
        "responses_per_s": work.responses / allocation.iteration_s,
        "spare_gpus": allocation.spare_gpus,
        "training": {
            "seconds": allocation.training_s,
            "gpus": allocation.training.gpus,
            "copies": allocation.training.copies,
            "stages": [_stage(stage) for stage in allocation.training.stages],
        },
        "rollout": {
            "seconds": allocation.rollout_s,
            "sampling_s": allocation.sampling_s,
            "rewards_s": allocation.budget.rewards_s(work),
            "update_s": allocation.update_s,
            "gpus": allocation.rollout_gpus,
            "replicas": [
                {
                    "number": number,
                    "sequences": replica.batch,
                    "responses_per_s": replica.responses_per_s(work),
                    "stages": [_stage(stage) for stage in replica.stages],
                }
                for replica, number in allocation.replicas
            ],
        },
    }


def _stage(stage: Stage) -> dict[str, Any]:
    return {"gpu": stage.hardware.name, "tensor_parallel": stage.gpus, "layers": stage.layers}


def _by_gpu_type(stages: tuple[Stage, ...]) -> list[list[Stage]]:
    """Group consecutive stages of one GPU type."""
    return [list(run) for _, run in groupby(stages, key=lambda stage: stage.hardware.name)]
