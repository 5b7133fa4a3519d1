"""Streams for suites: a workload with a seed, and changes to a stream.

Every `with_...` is a pure function of a scenario. The other functions are streams once all arguments but the seed are
bound: a `functools.partial` of a module's function can be sent to another process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.scenario import Actual, Job, Scenario
from rollmux_env.timing.drift import drift
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions

QUICK_JOBS = 50
ROUNDS = 2


def workload(name: str, seed: int, quick: bool = False, **options: Any) -> Scenario:
    """A workload by name; `partial(workload, "mixed", stays="fixed")` is a suite's stream.

    Args:
        quick: a shorter stream, unless the options say how long.
    """
    if quick and not name.startswith("micro-"):
        options.setdefault("jobs", QUICK_JOBS)
    return make_workload(name, WorkloadOptions(seed=seed, **options))


def crowd(jobs: int, seed: int, quick: bool = False) -> Scenario:
    """`jobs` jobs of the mixed profile that arrive and leave together, twice: once to warm up and once to be timed."""
    stream = make_workload("mixed", WorkloadOptions(seed=seed, jobs=ROUNDS * jobs, stays="fixed"))
    stay_s = 3600.0
    together = [
        job.model_copy(update={"arrival_s": 2 * stay_s * (k // jobs), "duration_s": stay_s}) for k, job in enumerate(stream.jobs)
    ]
    return stream.model_copy(update={"jobs": tuple(together)})


def sampled(name: str, seed: int, quick: bool = False, mean_fraction: float = 0.6, cv: float = 0.25, **options: Any) -> Scenario:
    """A workload with phase durations sampled in every iteration; see `with_actual`."""
    return with_actual(workload(name, seed, quick, **options), mean_fraction, cv)


def drifting(name: str, template: str, seed: int, quick: bool = False, factor: float = 1.0, **options: Any) -> Scenario:
    """A workload whose phases drift over a job's iterations; see `with_drift`."""
    return with_drift(workload(name, seed, quick, **options), template, factor)


def with_actual(scenario: Scenario, mean_fraction: float, cv: float, cap: bool = True) -> Scenario:
    """Give both phases of every job a distribution of actual durations, for event replays.

    Args:
        mean_fraction: mean before the cap, as a fraction of the worst case.
        cv: coefficient of variation before the cap.
        cap: no phase takes longer than its worst case.
    """
    law = Actual(mean_fraction=mean_fraction, cv=cv, cap=cap)

    def change(job: Job) -> dict[str, Any]:
        return {name: getattr(job, name).model_copy(update={"actual": law}) for name in ("rollout", "training")}

    return _changed(scenario, [change(job) for job in scenario.jobs])


def with_drift(scenario: Scenario, template: str, factor: float = 1.0, billions: Mapping[str, int] | None = None) -> Scenario:
    """Give every job a drift template of its model's size, for event replays.

    Args:
        template: one of `rollmux_env.timing.drift.TEMPLATES`; `mixed` is increasing and decreasing by turns, in the file's order.
        factor: strength of the template.
        billions: parameters of each job's model by job id; None reads them off ids of the catalogue's types, `7B-8k-003`.

    Raises:
        InputError: a job whose size is not known, or as `rollmux_env.timing.drift.drift`.
    """
    kinds = ("increasing", "decreasing") if template == "mixed" else (template,)
    entries = [
        {"drift": drift(kinds[k % len(kinds)], factor, _billions(job, billions))}  # type: ignore[arg-type]
        for k, job in enumerate(scenario.jobs)
    ]
    return _changed(scenario, entries)


def _changed(scenario: Scenario, changes: list[dict[str, Any]]) -> Scenario:
    jobs = tuple(job.model_copy(update=change) for job, change in zip(scenario.jobs, changes, strict=True))
    return Scenario(version=scenario.version, cluster=scenario.cluster, jobs=jobs)


def _billions(job: Job, sizes: Mapping[str, int] | None) -> int:
    if sizes is not None and job.id in sizes:
        return sizes[job.id]
    size = re.match(r"([1-9][0-9]*)B-", job.id) if sizes is None else None
    if size is None:
        raise InputError(f"drift: job {job.id}: the size of its model is not known")
    return int(size[1])
