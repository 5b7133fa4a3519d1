"""What the journal knows of a service that does not run: `rollmux status` prints it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

from runtime.jobs.spec import JobSpec
from runtime.journal import read_run, state_of
from runtime.record import RunRecord
from runtime.service.report import STATES


def past_report(folder: Path) -> dict[str, Any]:
    """The report of a service that does not run: the keys of `runtime.service.report.make_report`, and two more.

    `ended` is `stopped`, `done` (a run that was over), or `killed`: the journal does not say that it ended. `ended_at` is when, or
    the last time that the journal knows; ISO 8601, local time.

    Raises:
        InputError: there is no journal, or it cannot be read; one line.
    """
    record = read_run(folder)
    state = state_of(record)
    jobs = [_job(record, fact.spec, state.knows(fact.spec.id) and state.is_running(fact.spec.id)) for fact in record.submitted]
    counts = Counter(job["state"] for job in jobs)
    return {
        "folder": str(folder.resolve()),
        "policy": record.started.policy,
        "dispatch": record.started.dispatch,
        "time_s": record.last_s,
        "stopping": False,
        "paused": None,
        "ended": record.ended.outcome if record.ended else "killed",
        "ended_at": datetime.fromtimestamp(record.wall_s(record.last_s)).astimezone().isoformat(timespec="seconds"),
        "states": {name: counts.get(name, 0) for name in STATES},
        "queue": [*state.waiting],
        "jobs": jobs,
        "groups": [],
        "pools": {},
        "usd_per_hour": 0.0,
    }


def _job(record: RunRecord, spec: JobSpec, placed: bool) -> dict[str, Any]:
    done = [iteration for iteration in record.iterations if iteration.job_id == spec.id]
    problem = next((f"{fact.where}: {fact.problem}" for fact in record.failed if fact.job_id == spec.id), None)
    if any(fact.job_id == spec.id for fact in record.cancelled):
        state = "cancelled"
    elif problem is not None:
        state = "failed"
    elif spec.id in record.over_budget:
        state = "over_budget"
    elif len(done) == spec.iterations:
        state = "done"
    else:
        state = "stopped" if placed else "waiting"
    reward = done[-1].metrics.get("reward") if done else None
    return {
        "id": spec.id,
        "state": state,
        "group": None,
        "nodes": [],
        "phase": None,
        "iteration": len(done),
        "of": spec.iterations,
        "iteration_s": None,
        "slowdown": None,
        "slo": spec.slo,
        "at_risk": False,
        "reward": reward if reward is not None and isfinite(reward) else None,
        "problem": problem,
    }
