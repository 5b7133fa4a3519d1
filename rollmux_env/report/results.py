"""Results as JSON and CSV, as docs/reference/metrics.md defines them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rollmux_env.bench.comparison import compare
from rollmux_env.bench.harness import Result
from rollmux_env.replay.admission import Admission, Decision


def to_json(data: Any) -> str:
    """Indented JSON; the same bytes for the same values."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def to_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A header and rows; what is None stays empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((header, *rows))
    return text.getvalue()


def plan_report(policy: str, admission: Admission) -> dict[str, Any]:
    """The output of `rollmux plan`."""
    return {
        "policy": policy,
        "decisions": [
            _placed(decision) | ({"reason": decision.reason} if decision.reason else {}) for decision in admission.decisions
        ],
        "groups": [asdict(group) for group in admission.groups],
        "usd_per_hour": admission.usd_per_hour,
        **admission.extra,
    }


def _placed(decision: Decision) -> dict[str, Any]:
    """Where a job was placed, or not."""
    placed = {key: value for key, value in asdict(decision).items() if key not in ("reason", "shape")}
    return placed if decision.shape is None else placed | {"shape": decision.shape}


def result_entry(result: Result) -> dict[str, Any]:
    """One policy on one seed: the metrics, and its own extra figures."""
    return {"policy": result.spec, **result.outcome.metrics.as_dict(), **result.outcome.extra}


def timing_entry(result: Result) -> dict[str, Any]:
    """Milliseconds of a decision and seconds of the replay: the only figures that differ between runs."""
    decisions = result.outcome.decision_s
    p50, p99 = np.percentile(decisions, (50, 99)) * 1e3 if decisions else (None, None)
    return {"decision_ms": {"p50": p50, "p99": p99}, "total_s": result.total_s}


def bench_report(scenario: str, fidelity: str, results: Sequence[Result], baseline: str) -> dict[str, Any]:
    """The output of `rollmux bench`: the results of one seed, or of every seed with a summary."""
    seeds = sorted({result.seed for result in results})
    by_seed = {seed: [result for result in results if result.seed == seed] for seed in seeds}
    entries = {seed: [result_entry(result) for result in own] for seed, own in by_seed.items()}
    timings = {seed: {result.spec: timing_entry(result) for result in own} for seed, own in by_seed.items()}
    report: dict[str, Any] = {"scenario": scenario, "fidelity": fidelity}
    if len(seeds) == 1:
        return report | {"seed": seeds[0], "results": entries[seeds[0]], "timings": timings[seeds[0]]}
    return report | {
        "seeds": seeds,
        "baseline": baseline,
        "summary": [row.as_dict() for row in compare(results, baseline)],
        "runs": [{"seed": seed, "results": own} for seed, own in entries.items()],
        "timings": {f"seed {seed}": own for seed, own in timings.items()},
    }


def bench_csv(results: Sequence[Result]) -> str:
    """One line per policy and seed. Nested figures are named like `peak_gpus.rollout`; per-job figures are in the JSON only."""
    rows = [{"seed": result.seed, **_flat(result_entry(result))} for result in results]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return to_csv(columns, ([row.get(column, "") for column in columns] for row in rows))


def plan_csv(decisions: Sequence[Decision]) -> str:
    """One line per decision; nodes separated by spaces."""
    rows = [_placed(decision) for decision in decisions]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = ([row.get(column) for column in columns] for row in rows)
    return to_csv(columns, ([" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in row] for row in cells))


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key in ("slowdown", "wait_s", "over_budget"):
            continue
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": number for inner, number in value.items()}
        else:
            flat[key] = value
    return flat
