"""Reader of a user's file of a job's flows: CSV with the columns kind, source, target and gb.

Each row is a flow of every step of its kind: `pipeline` and `gradients` of a mini-batch, `weights` of an iteration. The job's GPUs
are numbered from 0: the GPUs that train, then those that generate. The flows of kinds without a row are computed from the model.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.fabric.steps import PATTERNS
from rollmux_env.fabric.traffic import Traffic
from rollmux_env.fields import Positive
from rollmux_env.files import text_lines
from rollmux_env.validation_errors import describe, not_one_of, one_line

COLUMNS = ("kind", "source", "target", "gb")
_GB = TypeAdapter(Positive)


def read_flows(path: Path, gpus: int) -> Mapping[str, Traffic]:
    """Read the flows of a file.

    Args:
        path: CSV file.
        gpus: Number of GPUs of the job.

    Returns:
        Flows by kind, for the kinds that have rows.

    Raises:
        InputError: If the file cannot be read or lacks a column, or a row is not a flow of a known kind between two of the GPUs.
    """
    name, rows = one_line(str(path), 4096), csv.DictReader(text_lines(path))
    for column in COLUMNS:
        if column not in (rows.fieldnames or ()):
            raise InputError(f"{name}: has no column {column}")
    flows: dict[str, list[tuple[int, int, float]]] = {}
    for row in rows:
        where = f"{name}: line {rows.line_num}"
        if row["kind"] not in PATTERNS:
            raise InputError(f"{where}: kind: {not_one_of(row['kind'], PATTERNS)}")
        ends = [row["source"] or "", row["target"] or ""]
        if not all(end.isdecimal() and int(end) < gpus for end in ends):
            gpu = " and ".join(map(describe, ends))
            raise InputError(f"{where}: source and target must be GPUs from 0 to {gpus - 1}, not {gpu}")
        try:
            flows.setdefault(row["kind"], []).append((int(ends[0]), int(ends[1]), _GB.validate_python(row["gb"])))
        except ValidationError:
            raise InputError(f"{where}: gb must be a number above 0, not {describe(row['gb'])}") from None
    return {kind: _traffic(rows) for kind, rows in flows.items()}


def _traffic(flows: list[tuple[int, int, float]]) -> Traffic:
    source, target, gb = zip(*flows, strict=True)
    return Traffic(np.array(source, np.int64), np.array(target, np.int64), np.array(gb, np.float64))
