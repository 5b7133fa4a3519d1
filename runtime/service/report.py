"""The answer to `rollmux status`, made of a snapshot."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

from runtime.service.snapshot import GroupView, JobState, JobView, Snapshot

STATES: tuple[str, ...] = get_args(JobState)
ENDED = ("done", "failed", "cancelled")


def make_report(snapshot: Snapshot) -> dict[str, Any]:
    """Everything, as `rollmux status --format json` prints it; docs/guides/serve.md explains the keys."""
    counts = Counter(job.state for job in snapshot.jobs)
    return {
        "folder": snapshot.folder,
        "policy": snapshot.policy,
        "dispatch": snapshot.dispatch,
        "now_s": snapshot.now_s,
        "stopping": snapshot.stopping,
        "paused": snapshot.paused,
        "states": {state: counts.get(state, 0) for state in STATES},
        "queue": [*snapshot.queue],
        "jobs": [view_report(job) for job in snapshot.jobs],
        "groups": [view_report(group) for group in snapshot.groups],
        "pools": {pool: vars(view) for pool, view in snapshot.pools.items()},
        "usd_per_hour": snapshot.usd_per_hour,
        "usd_per_hour_solo": snapshot.usd_per_hour_solo,
        "throughput_gain": snapshot.throughput_gain,
    }


def view_report(view: JobView | GroupView) -> dict[str, Any]:
    """A view as JSON has it."""
    return {key: [*value] if isinstance(value, tuple) else value for key, value in vars(view).items()}
