"""Prediction of a run from its first iterations: a scenario for the event replay, and a model of its tails.

A job is predicted from the first fifth of its iterations: how long its phases held their nodes, how that varied, and how long the
rest of an iteration took. If these iterations do not show a phase, its profile is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.kernel.tables import Floats
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Actual, Phase, Switch, Training
from rollmux_env.keys.shapes import PhaseShape, Shape, TrainingShape
from rollmux_env.scenario import Scenario
from rollmux_env.timing.tail import Migration, TailModel
from runtime.compare.parts import FixedParts, measured_parts, slices_of
from runtime.compare.placements import RunPlacements
from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord
from runtime.placement_spans import PlacementSpan, span_at

SHARE = 0.2  # share of the iterations that the prediction uses
_WAITING = 0.05  # share of the time before a move in which another rollout must have waited to count as waiting
_ANY_SLO = 1e9  # SLO of a job that was moved: it must not prevent the recorded moves

_LEAST_S = 1e-6
_FIXED_CV = 1e-3  # coefficient of variation below which a phase counts as constant


class PhaseForecast(NamedTuple):
    """A phase of the scenario.

    Attributes:
        phase: The phase, with its warm switch in `worst_case_s`.
        switch_s: Seconds of the warm switch.
    """

    phase: Phase
    switch_s: float


class PhasesForecast(NamedTuple):
    """Both phases in one shape.

    Attributes:
        rollout: Forecast of the rollout.
        training: Forecast of the training.
    """

    rollout: PhaseForecast
    training: PhaseForecast

    @property
    def shape(self) -> Shape:
        """The phases as a shape of a job."""
        rollout, training = (
            {key: getattr(one.phase, key) for key in ("nodes", "worst_case_s", "actual", "switch")} for one in self
        )
        return Shape(
            rollout=PhaseShape().model_copy(update=rollout), training=TrainingShape().model_copy(update=training | {"by_nodes": {}})
        )


def forecast_phases(
    job: Job, early: Mapping[int, Sequence[PhaseSlice]], shapes: Mapping[int, int], moves: bool
) -> list[PhasesForecast]:
    """Return the forecasts of both phases in each shape, by the shape's number. Switches are part of the phases.

    Args:
        job: The job with its profile.
        early: Phases of the first iterations, by number.
        shapes: Number of the shape of each iteration.
        moves: Whether the job has another cold start later. The profile's cold start is used if the first iterations show none.
    """
    by_shape: list[list[PhaseSlice]] = [[] for _ in range(1 + len(job.shapes))]
    for number, parts in early.items():
        by_shape[shapes[number]] += parts
    return [*map(PhasesForecast, *(_by_shape(by_shape, name, job, moves) for name in ("rollout", "training")))]


def _by_shape(by_shape: Sequence[Sequence[PhaseSlice]], name: str, job: Job, moves: bool) -> list[PhaseForecast]:
    """Return the forecasts of one phase in each shape.

    A shape that the first iterations do not show gets its profile's duration, scaled by the ratio of measured to profiled duration
    in the shape that they show most.
    """
    profiles: list[Phase] = [getattr(job.phases(number), name) for number in range(len(by_shape))]
    counts = [len(_warm(parts, name)) for parts in by_shape]
    most = max(range(len(counts)), key=lambda number: counts[number])
    basis = _phase(by_shape[most], name, profiles[most], moves)
    forecasts = []
    for number, profile in enumerate(profiles):
        if counts[number] or number == most:
            forecasts.append(_phase(by_shape[number], name, profile, moves))
        else:
            seconds = basis.phase.worst_case_s * profile.worst_case_s / profiles[most].worst_case_s
            known: dict[str, Any] = {"nodes": profile.nodes, "worst_case_s": seconds}
            forecasts.append(basis._replace(phase=basis.phase.model_copy(update=known)))
    return forecasts


def _phase(parts: Iterable[PhaseSlice], name: str, profiled: Phase, moves: bool) -> PhaseForecast:
    """Return the forecast of a phase from its measured slices, or from the profile if there are none.

    The cold start is the time by which the first slice exceeds a warm one.
    """
    own = [part for part in parts if part.phase == name or (part.phase == "init" and name == "rollout")]
    seconds, switch_s = [part.end_s - part.start_s for part in _warm(own, name)], profiled.switch.warm_s
    mean_s = profiled.worst_case_s + switch_s
    if seconds:
        mean_s = fmean(seconds)
        switch_s = fmean(part.end_s - part.start_s - (part.done_s - part.run_s) for part in _warm(own, name))
    cold_s = sum(part.end_s - part.start_s for part in own if part.cold)
    cold_s = max(0.0, cold_s - mean_s, profiled.switch.cold_s if moves and not cold_s else 0.0)
    cv = stdev(seconds) / mean_s if len(seconds) > 1 and mean_s > _LEAST_S else 0.0
    actual = Actual(mean_fraction=1.0, cv=cv, cap=False) if cv > _FIXED_CV else None
    values = {"worst_case_s": max(mean_s, _LEAST_S), "actual": actual, "switch": Switch(cold_s=cold_s)}
    phase = (Training if name == "training" else Phase).model_validate({"nodes": profiled.nodes, **values})
    return PhaseForecast(phase, switch_s)


def _warm(parts: Iterable[PhaseSlice], name: str) -> list[PhaseSlice]:
    return [part for part in parts if part.phase == name and not part.cold]


class RunPrediction(NamedTuple):
    """The prediction of a run.

    Attributes:
        scenario: Scenario for the event replay.
        tails: Model of migrated tails, or None if no tail had migrated in the first iterations.
        fixed: Parts of an iteration, by job, that the replay does not separate.
    """

    scenario: Scenario
    tails: TailModel | None
    fixed: dict[str, FixedParts]


@dataclass(frozen=True)
class SeenTails(TailModel):
    """Tails as in the first iterations of a run, all alike.

    The slowdown of a tail on fewer nodes, and of a rollout beside one, is part of the measured seconds, so none is added.

    Attributes:
        threshold: Share of a rollout's seconds after which its tail may move.
        move_s: Seconds that a move takes.
    """

    threshold: float = 1.0
    move_s: float = 0.0

    def rate(self, share: float) -> float:
        """Return 1: the measured seconds include the effect of a tail beside the rollout."""
        return 1.0

    def draw(self, generator: np.random.Generator, migration: Migration, count: int) -> tuple[Floats, Floats]:
        """Return the threshold, and no slowdown, for each of `count` rollouts; see `TailModel.draw`."""
        return np.full(count, self.threshold), np.ones(count)


def predict_run(
    record: RunRecord, places: RunPlacements, spans: Mapping[str, Sequence[PlacementSpan]], prefix: Mapping[str, int]
) -> RunPrediction:
    """Return a run as a scenario for the event replay, from its first iterations.

    Args:
        record: Record of the run.
        places: First places and moves of the jobs.
        spans: Placement spans of each job, as in `runtime.placement_spans.spans_of`.
        prefix: Number of iterations of each job that may be used; other jobs are left out.
    """
    jobs: list[Job] = []
    fixed: dict[str, FixedParts] = {}
    for job_id in sorted(prefix, key=lambda job_id: places.first[job_id].from_s):
        job, moves = record.jobs[job_id], job_id in places.moves
        early = slices_of(record, job_id, prefix[job_id])
        shapes = {number: span_at(spans[job_id], own[-1].end_s).shape for number, own in early.items()}
        forecast = forecast_phases(job, early, shapes, moves)
        first = forecast[places.first[job_id].shape]
        begins_cold = any(part.cold for part in early.get(0, ()) if part.phase == "rollout")
        early_s = 0.0 if begins_cold or not moves else sum(one.phase.switch.cold_s for one in first)
        sync_s, other_s = _beside_s(record, job_id, prefix[job_id])
        fixed[job_id] = FixedParts(first.rollout.switch_s, first.training.switch_s, sync_s, other_s)
        after_s = jobs[-1].arrival_s if jobs else 0.0  # keeps the order of arrivals
        values: dict[str, Any] = {
            "arrival_s": max(after_s, places.first[job_id].from_s - early_s),
            "iterations": len(record.iterations_of(job_id)),
            "rollout": forecast[0].rollout.phase,
            "training": forecast[0].training.phase,
            "shapes": tuple(one.shape for one in forecast[1:]),
            "sync_s": sync_s + other_s,
            "drift": (),
        }
        jobs.append(job.model_copy(update=values | ({"slo": _ANY_SLO, "movable": True, "parkable": True} if moves else {})))
    cluster = record.started.cluster
    pools = {name: pool.model_copy(update={"node_memory_gb": None}) for name, pool in cluster.pools.items()}
    limits = {"migration_s": 0.0, "resume_s": 0.0, "min_run_s": 0.0, "max_group_size": max(len(jobs), cluster.max_group_size)}
    cluster = cluster.with_pools(pools).model_copy(update=limits)
    return RunPrediction(Scenario(version=1, cluster=cluster, jobs=tuple(jobs)), _tails(record, prefix), fixed)


def _beside_s(record: RunRecord, job_id: str, count: int) -> tuple[float, float]:
    """Return the mean seconds of a sync, and of the rest between the phases of an iteration, in the first iterations."""
    parts = measured_parts(record, job_id)[:count]
    usual = parts[1:] or parts
    sync_s = fmean(part.sync for part in usual)
    return sync_s, max(-sync_s, fmean(part.other for part in usual))


def _tails(record: RunRecord, prefix: Mapping[str, int]) -> TailModel | None:
    """Return a model of the tails in the first iterations, by the mean over all jobs, or None if no tail moved.

    A tail that moved while a rollout was already waiting had just reached its threshold; others had reached it before.
    """
    rollouts = [
        part
        for job_id, count in prefix.items()
        for part in chain.from_iterable(slices_of(record, job_id, count).values())
        if part.phase == "rollout" and not part.cold
    ]
    after: dict[bool, list[float]] = {True: [], False: []}  # shares of the seconds, by whether another rollout was waiting
    for part in rollouts:
        tails = [span for span in part.spans if span.tail]
        if tails:
            moved_s = min(span.from_s for span in tails)
            before_s = moved_s - _WAITING * (moved_s - part.start_s)
            waited = any(other.asked_s < before_s < other.start_s for other in rollouts if other.job_id != part.job_id)
            after[waited].append((moved_s - part.start_s) / (part.end_s - part.start_s))
    if not after[True] and not after[False]:
        return None
    threshold = fmean(after[True]) if after[True] else min(after[False])
    return SeenTails(threshold=threshold)


def until_interrupted(record: RunRecord) -> RunRecord:
    """Return the part of a run before the first restart of a job."""
    if not record.restarted:
        return record
    end_s = min([fact.at_s for fact in record.restarted] + [fact.at_s for fact in record.relaunched])
    return replace(
        record,
        log=tuple(event for event in record.log if event.at_s < end_s),
        phases=tuple(part for part in record.phases if part.end_s < end_s),
        iterations=tuple(sorted((i for i in (*record.iterations, *record.repeated) if i.end_s < end_s), key=lambda i: i.end_s)),
        repeated=(),
    )
