"""Outcome of a scenario under one policy: figures, jobs, nodes over time, and charges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollmux_env.cluster.events import Admitted, Departed, Event, Parked
from rollmux_env.cluster.state import State
from rollmux_env.portable import dot
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.job_results import JobResult, is_within, job_results
from rollmux_env.replay.metrics import Metrics, measure
from rollmux_env.replay.packing import packed_beside_idle
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.replay.stays import stays_of


@dataclass(frozen=True)
class Outcome:
    """The outcome of one scenario under one policy, which `bench` tabulates and plots.

    Attributes:
        metrics: Figures that docs/reference/metrics.md defines.
        time_s: Times at which placements may have changed, in seconds, shape (T,).
        nodes: Number of nodes provisioned from each time on by pool, shape (T,) each.
        decision_s: Seconds of computation of each decision.
        extra: Figures that only some policies have, by name, such as a bound and a gap; None for missing ones.
        usd_per_hour: Charge of each job over the hours in which it had a place, in $/h.
        jobs: Outcome of each job, in the scenario's order.
        waiting: Number of jobs in the queue from each time on, shape (T,).
        packed_beside_idle: Number of jobs that were packed into a group and slowed down, although enough nodes were idle for a
            new group.
        phases: All phases, in event replays that keep them.
    """

    metrics: Metrics
    time_s: list[float]
    nodes: dict[str, list[int]]
    decision_s: list[float]
    extra: Mapping[str, float | None] = field(default_factory=dict)
    usd_per_hour: dict[str, float] = field(default_factory=dict)
    jobs: tuple[JobResult, ...] = ()
    waiting: list[int] = field(default_factory=list)
    packed_beside_idle: int = 0
    phases: Sequence[PhaseRun] = ()

    @property
    def mean_slowdown(self) -> float:
        """Mean over jobs of the shown slowdown: as observed if it was observed."""
        return float(np.mean([job.shown_slowdown for job in self.jobs]))


def outcome(run: Run, failures: Failures | None = None) -> Outcome:
    """Return the outcome of a finished replay.

    Args:
        run: Finished replay.
        failures: Failures of the replay, or None.
    """
    extra = run.failures.figures(run.scenario, failures) if run.failures is not None and failures is not None else {}
    if run.penalised_usd_per_hour:
        extra["penalised_usd"] = dot(np.diff(run.time_s), run.penalised_usd_per_hour[:-1]) / 3600
    rates, stays = charged_usd_per_hour(run.log, run.state), stays_of(run.log)
    jobs = job_results(run.scenario, run.state, stays, run.solo_s)
    measured = measure(run.scenario, run.state, stays, jobs, run.time_s, run.nodes, run.solo_s)
    packed = packed_beside_idle(run, {job.job for job in jobs if not is_within(job.slowdown, 1.0)})
    return Outcome(measured, run.time_s, run.nodes, run.decision_s, extra, rates, jobs, run.waiting, packed, run.phases)


def charged_usd_per_hour(log: Iterable[Event], state: State) -> dict[str, float]:
    """Return the charge of each job over the time in which it had a place, in $/h.

    The price of a group is divided evenly among its members.

    Args:
        log: Events in order. Jobs that still have a place after them have it until the state's time.
        state: State after the last event.
    """
    placed_s: dict[str, float] = {}
    since_s: dict[str, float] = {}
    for event in log:
        if isinstance(event, Admitted):
            since_s[event.job_id] = event.at_s
        elif isinstance(event, Departed | Parked) and event.job_id in since_s:
            placed_s[event.job_id] = placed_s.get(event.job_id, 0.0) + event.at_s - since_s.pop(event.job_id)
    for job_id, at_s in since_s.items():
        placed_s[job_id] = placed_s.get(job_id, 0.0) + state.now_s - at_s
    usd = {job_id: state.charges.usd(state.row(job_id), state.now_s) for job_id in placed_s}
    return {job_id: 3600 * usd[job_id] / seconds for job_id, seconds in placed_s.items() if seconds > 0}
