"""What the journal knows of a service that does not run: `rollmux status` prints it."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

from rollmux_env.cluster.demand import solo_usd_per_hour
from rollmux_env.cluster.state import State
from runtime.jobs.spec import JobSpec
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run, state_of
from runtime.service.listening import continuing
from runtime.service.report import STATES, view_report
from runtime.service.snapshot import JobView, profile_of


def past_report(folder: Path) -> dict[str, Any]:
    """The report of a service that does not run: the keys of `runtime.service.report.Reports.all`, and three more.

    `ended` is `stopped`, `done` (a run that was over), or `killed`: the journal does not say that it ended. `ended_at` is when, or
    the last time that the journal knows; ISO 8601, local time. `continue` is the command that continues it.

    Raises:
        InputError: there is no journal, or it cannot be read; one line.
    """
    record = read_run(folder)
    state = state_of(record)
    jobs = [_job(record, fact.spec, state) for fact in record.submitted]
    counts = Counter(job["state"] for job in jobs)
    return {
        "folder": str(folder.resolve()),
        "policy": record.started.policy,
        "dispatch": record.started.dispatch,
        "now_s": record.last_s,
        "stopping": False,
        "paused": None,
        "ended": record.ended.outcome if record.ended else "killed",
        "ended_at": datetime.fromtimestamp(record.wall_s(record.last_s)).astimezone().isoformat(timespec="seconds"),
        "continue": continuing(folder.resolve()),
        "states": {name: counts.get(name, 0) for name in STATES},
        "queue": [*state.waiting],
        "jobs": jobs,
        "groups": [],
        "pools": {},
        "usd_per_hour": 0.0,
        "usd_per_hour_solo": 0.0,
        "throughput_gain": None,
    }


def _job(record: RunRecord, spec: JobSpec, cluster: State) -> dict[str, Any]:
    done = [iteration for iteration in record.iterations if iteration.job_id == spec.id]
    problem = next((f"{fact.where}: {fact.problem}" for fact in record.failed if fact.job_id == spec.id), None)
    if any(fact.job_id == spec.id for fact in record.cancelled):
        state = "cancelled"
    elif problem is not None:
        state = "failed"
    elif spec.id in record.over_budget:
        state = "over_budget"
    elif len(done) == spec.iterations or any(fact.job_id == spec.id and fact.done for fact in record.leases_ended):
        state = "done"
    else:
        state = "stopped" if cluster.knows(spec.id) and cluster.is_running(spec.id) else "waiting"
    job = record.jobs.get(spec.id)
    metrics = done[-1].metrics if done else {}
    view = JobView(
        id=spec.id,
        user=spec.user,
        priority=spec.priority,
        state=state,
        reason=None,
        position=None,
        eta_s=None,
        group=None,
        nodes=(),
        phase=None,
        iteration=len(done),
        iterations=spec.iterations,
        iteration_s=None,
        alone_s=job.solo_s if job is not None else None,
        slowdown=None,
        slo=spec.slo,
        usd_per_hour=None,
        usd_per_hour_solo=solo_usd_per_hour(job, record.started.cluster) if job is not None else None,
        at_risk=False,
        usd=cluster.charged_usd(spec.id) if cluster.knows(spec.id) else 0.0,
        metrics={name: value if isfinite(value) else None for name, value in metrics.items()},
        profile=profile_of(job) if job is not None else None,
        problem=problem,
    )
    return view_report(view)
