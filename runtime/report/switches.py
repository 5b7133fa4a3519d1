"""How long switches of a run took, from one job to another on a node, and permits on their way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord
from runtime.report.measured import PHASES, mean, phases_of


def switches(record: RunRecord, job_id: str) -> dict[str, Any]:
    """Cold and warm switches of both phases, seconds: the whole, and parts by name. A cold one may be that of the profile."""
    by_phase = {}
    for phase in PHASES:
        every = [part for part in record.phases if part.job_id == job_id and part.pool == phase and part.ok]
        inits = [part for part in every if part.phase == "init"]
        cold = [part for part in every if part.cold and part.phase == phase]
        ready = [part for part in phases_of(record, job_id, phase) if not part.cold]
        cold_s = mean(part.load_s for part in cold)
        if cold_s is not None and inits:
            cold_s += fmean(part.end_s - part.start_s for part in inits)
        warm_s = mean(part.load_s + part.offload_s for part in ready)
        by_phase[phase] = {
            "cold_s": cold_s,
            "warm_s": warm_s,
            "stays": mean(part.stays for part in ready),
            "times_faster": cold_s / warm_s if cold_s and warm_s else None,
            "cold_stages_s": _stages([*inits, *cold]),
            "warm_stages_s": _stages(ready) | _parts(ready),
        }
    return by_phase


def _parts(parts: Sequence[PhaseSlice]) -> dict[str, float]:
    return {"load": fmean(p.load_s for p in parts), "offload": fmean(p.offload_s for p in parts)} if parts else {}


def _stages(parts: Sequence[PhaseSlice]) -> dict[str, float]:
    """Mean seconds of every stage that these phases name."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        for name, value in part.stages.items():
            seconds[name].append(value)
    return {name: fmean(values) for name, values in seconds.items()}


def permits_ms(record: RunRecord) -> dict[str, float] | None:
    """How long permits took to reach their phases, milliseconds."""
    values = [1e3 * part.permit_s for part in record.phases if part.permit_s > 0]
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 99)} if values else None
