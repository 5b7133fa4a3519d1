"""Results as JSON and CSV, as defined in docs/reference/metrics.md."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rollmux_env.replay.admission import Admission, Decision


def to_json(data: Any) -> str:
    """Return indented JSON, the same bytes for the same values."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV of a header and rows. None becomes an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((header, *rows))
    return text.getvalue()


def plan_report(policy: str, admission: Admission) -> dict[str, Any]:
    """Return the output of `rollmux plan` as plain values."""
    return {
        "policy": policy,
        "decisions": [
            _describe_placement(decision) | ({"reason": decision.reason} if decision.reason else {})
            for decision in admission.decisions
        ],
        "groups": [asdict(group) for group in admission.groups],
        "usd_per_hour": admission.usd_per_hour,
        **admission.extra,
    }


def _describe_placement(decision: Decision) -> dict[str, Any]:
    """Return a decision's placement as plain values, without its reason."""
    placed = {key: value for key, value in asdict(decision).items() if key not in ("reason", "shape")}
    return placed if decision.shape is None else placed | {"shape": decision.shape}


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a tidy table as CSV: one line per row, with the columns that occur in any row."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return to_csv(columns, ([_cell(row.get(column)) for column in columns] for row in rows))


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def plan_csv(decisions: Sequence[Decision]) -> str:
    """Return one line per decision as CSV, with nodes separated by spaces."""
    return rows_csv([_describe_placement(decision) for decision in decisions])
