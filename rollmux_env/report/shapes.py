"""Shapes of a job as tables, as plain values, and as the text of a scenario file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from rollmux_env.report.tables import heading, make_table
from rollmux_env.timing.parallel import PhaseTime
from rollmux_env.timing.shapes import JobShape, ShapesOf


def shapes_tables(shapes: ShapesOf) -> RenderableType:
    """`rollmux shapes`: what fits each phase, and the pairs of numbers of nodes."""
    job = shapes.job
    return Group(
        heading(f"{job.id}: rollout"),
        _phase_table(shapes.rollouts),
        heading(f"{job.id}: training"),
        _phase_table(shapes.trainings),
        heading(f"{job.id}: shapes, each phase at its fastest"),
        _pair_table(shapes.shapes),
    )


def _phase_table(times: Sequence[PhaseTime]) -> RenderableType:
    table = make_table("pool", "nodes", "tensor parallel", "stages", "copies", "worst case s", "GB a GPU", "host GB a node")
    last = ("", 0)
    for time in times:
        table.add_row(
            time.pool,
            str(time.nodes),
            *map(str, time.parallelism),
            f"{time.seconds:.1f}",
            f"{time.device_gb:.1f}",
            f"{time.host_gb:.0f}",
            style="" if (time.pool, time.nodes) != last else "dim",
        )
        last = time.pool, time.nodes
    return table


def _pair_table(pairs: Sequence[JobShape]) -> RenderableType:
    columns = ("rollout", "training", "rollout s", "training s", "alone s", "$ alone", "$ busy", "")
    table = make_table(*columns, left=2)
    for shape in pairs:
        marks = ["own"] * shape.own + ["Pareto"] * shape.pareto
        table.add_row(
            *(f"{one.nodes} x {one.pool}" for one in (shape.rollout, shape.training)),
            *(f"{shape.rollout.seconds:.1f}", f"{shape.training.seconds:.1f}", f"{shape.alone_s:.1f}"),
            *(f"{shape.usd:.3f}", f"{shape.busy_usd:.3f}", ", ".join(marks)),
            style="" if shape.pareto or shape.own else "dim",
        )
    return table


def shapes_report(shapes: ShapesOf) -> dict[str, Any]:
    """The shapes of a job as plain values; `shapes` is as a scenario file has it."""
    return {
        "job": shapes.job.id,
        "rollout": [_time(time) for time in shapes.rollouts],
        "training": [_time(time) for time in shapes.trainings],
        "pairs": [
            {
                "rollout": _time(shape.rollout),
                "training": _time(shape.training),
                "alone_s": shape.alone_s,
                "usd": shape.usd,
                "busy_usd": shape.busy_usd,
                "own": shape.own,
                "pareto": shape.pareto,
            }
            for shape in shapes.shapes
        ],
        "shapes": shapes.in_file(),
    }


def _time(time: PhaseTime) -> dict[str, Any]:
    return {
        "pool": time.pool,
        "nodes": time.nodes,
        "tensor_parallel": time.parallelism.tensor,
        "stages": time.parallelism.stages,
        "copies": time.parallelism.copies,
        "worst_case_s": time.seconds,
        "device_gb": time.device_gb,
        "host_memory_gb": time.host_gb,
    }


def shapes_yaml(every: Sequence[ShapesOf]) -> str:
    """A list `shapes` for each job, to be pasted under it in a scenario file."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None  # innermost mappings on a line of their own
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 132
    text = io.StringIO()
    for shapes in every:
        text.write(f"# {shapes.job.id}\n")
        yaml.dump({"shapes": shapes.in_file()}, text)
    return text.getvalue()
