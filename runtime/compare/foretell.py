"""What a run's beginning foretells: the run as a scenario of the event replay, and how the tails of its rollouts go.

A job is predicted from its first fifth of the iterations: how long its phases held their nodes, how that varied, and what else an
iteration took. Where a fifth says nothing of a phase, its profile stands in.
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
from runtime.compare.parts import Fixed, measured_parts, slices_of
from runtime.compare.placements import Places
from runtime.journal.facts import PhaseSlice
from runtime.journal.record import RunRecord
from runtime.stays import Stay, stay_at

SHARE = 0.2  # of the iterations that the prediction sees
_WAITING = 0.05  # of the seconds before a tail moved, in which another rollout waited already
_ANY_SLO = 1e9  # of a job that was moved: that it was allowed to is known

_LEAST_S = 1e-6
_FIXED_CV = 1e-3  # phases that vary less than this do not vary


class PhaseForecast(NamedTuple):
    """A phase of the scenario, and what of it is a warm switch, seconds."""

    phase: Phase
    switch_s: float


class PhasesForecast(NamedTuple):
    """Both phases in a shape."""

    rollout: PhaseForecast
    training: PhaseForecast

    @property
    def shape(self) -> Shape:
        """As a shape of a job."""
        rollout, training = (
            {key: getattr(one.phase, key) for key in ("nodes", "worst_case_s", "actual", "switch")} for one in self
        )
        return Shape(
            rollout=PhaseShape().model_copy(update=rollout), training=TrainingShape().model_copy(update=training | {"by_nodes": {}})
        )


def forecast_phases(
    job: Job, early: Mapping[int, Sequence[PhaseSlice]], shapes: Mapping[int, int], moves: bool
) -> list[PhasesForecast]:
    """How long phases hold their nodes, switches included, by number of the shape.

    Args:
        job: as it was profiled. early: phases of the first iterations, by number. shapes: that of each iteration.
        moves: the job has another cold start after its first one, for which the profile's stands in where they show none.
    """
    by_shape: list[list[PhaseSlice]] = [[] for _ in range(1 + len(job.shapes))]
    for number, parts in early.items():
        by_shape[shapes[number]] += parts
    return [*map(PhasesForecast, *(_by_shape(by_shape, name, job, moves) for name in ("rollout", "training")))]


def _by_shape(by_shape: Sequence[Sequence[PhaseSlice]], name: str, job: Job, moves: bool) -> list[PhaseForecast]:
    """A phase in each shape.

    A shape that the first iterations do not show takes what the profile says of it, times as long as they took of what it says of
    the shape that they show most of.
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
    """A phase by what is known of it; the cold start is what a first one took beyond a warm one."""
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


class Foretold(NamedTuple):
    """A run as it is foretold.

    Attributes:
        scenario: for the event replay. tails: of rollouts that are migrated; None where none was by then.
        fixed: of each job, what the replay does not tell apart.
    """

    scenario: Scenario
    tails: TailModel | None
    fixed: dict[str, Fixed]


@dataclass(frozen=True)
class SeenTails(TailModel):
    """Tails as they went in a run so far, all alike. What a tail takes on fewer nodes, and a rollout beside one, is in the seconds
    that were measured, so nothing is added to them.

    Attributes:
        threshold: share of a rollout's seconds after which its tail may move.
    """

    threshold: float = 1.0
    move_s: float = 0.0

    def rate(self, share: float) -> float:
        """Speed of a rollout beside a tail: see above."""
        return 1.0

    def draw(self, generator: np.random.Generator, migration: Migration, count: int) -> tuple[Floats, Floats]:
        """See `TailModel.draw`."""
        return np.full(count, self.threshold), np.ones(count)


def foretell(record: RunRecord, places: Places, stays: Mapping[str, Sequence[Stay]], prefix: Mapping[str, int]) -> Foretold:
    """The run as a scenario of the event replay, from what the first iterations tell.

    Args:
        stays: of each job, as `runtime.stays.stays_of` tells them.
        prefix: how many iterations of each job may be looked at; jobs that are not in it are left out.
    """
    jobs: list[Job] = []
    fixed: dict[str, Fixed] = {}
    for job_id in sorted(prefix, key=lambda job_id: places.first[job_id].from_s):
        job, moves = record.jobs[job_id], job_id in places.moves
        early = slices_of(record, job_id, prefix[job_id])
        shapes = {number: stay_at(stays[job_id], own[-1].end_s).shape for number, own in early.items()}
        forecast = forecast_phases(job, early, shapes, moves)
        first = forecast[places.first[job_id].shape]
        begins_cold = any(part.cold for part in early.get(0, ()) if part.phase == "rollout")
        early_s = 0.0 if begins_cold or not moves else sum(one.phase.switch.cold_s for one in first)
        sync_s, other_s = _beside_s(record, job_id, prefix[job_id])
        fixed[job_id] = Fixed(first.rollout.switch_s, first.training.switch_s, sync_s, other_s)
        after_s = jobs[-1].arrival_s if jobs else 0.0  # the order of arrivals stays
        values: dict[str, Any] = {
            "arrival_s": max(after_s, places.first[job_id].from_s - early_s),
            "iterations": len(record.iterations_of(job_id)),
            "rollout": forecast[0].rollout.phase,
            "training": forecast[0].training.phase,
            "shapes": tuple(one.shape for one in forecast[1:]),
            "sync_s": sync_s + other_s,
            "drift": (),
        }
        jobs.append(job.model_copy(update=values | ({"slo": _ANY_SLO, "movable": True} if moves else {})))
    cluster = record.started.cluster
    pools = {name: pool.model_copy(update={"node_memory_gb": None}) for name, pool in cluster.pools.items()}
    limits = {"migration_s": 0.0, "max_group_size": max(len(jobs), cluster.max_group_size)}
    cluster = cluster.with_pools(pools).model_copy(update=limits)
    return Foretold(Scenario(version=1, cluster=cluster, jobs=tuple(jobs)), _tails(record, prefix), fixed)


def _beside_s(record: RunRecord, job_id: str, count: int) -> tuple[float, float]:
    """Seconds of a sync, and of what else comes between the phases of an iteration, as the first ones show."""
    parts = measured_parts(record, job_id)[:count]
    usual = parts[1:] or parts
    sync_s = fmean(part.sync for part in usual)
    return sync_s, max(-sync_s, fmean(part.other for part in usual))


def _tails(record: RunRecord, prefix: Mapping[str, int]) -> TailModel | None:
    """How tails went in the first iterations, in the mean over all jobs; None where there was none.

    A tail that moved when a rollout was waiting already had just reached its threshold; others had reached it before.
    """
    rollouts = [
        part
        for job_id, count in prefix.items()
        for part in chain.from_iterable(slices_of(record, job_id, count).values())
        if part.phase == "rollout" and not part.cold
    ]
    after: dict[bool, list[float]] = {True: [], False: []}  # shares of the seconds: somebody was waiting, or not
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
    """A run as far as nothing had to be restarted: what came before the first restart of a job."""
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
