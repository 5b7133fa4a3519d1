"""What a run's beginning foretells: the run as a scenario of the event replay, and how the tails of its rollouts go.

A job is predicted from its first fifth of the iterations: how long its phases held their nodes, how that varied, and what else an
iteration took. Where a fifth says nothing of a phase, its profile stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.cluster.events import Admitted
from rollmux_env.kernel.tables import Floats
from rollmux_env.scenario import Actual, Drift, Job, Phase, Scenario, Switch, Training
from rollmux_env.timing.migration import Migration
from rollmux_env.timing.tail import TailModel
from runtime.compare.cores import without_core_s
from runtime.compare.parts import Fixed, measured_parts, slices_of
from runtime.compare.placements import Places
from runtime.facts import PhaseSlice
from runtime.record import RunRecord

SHARE = 0.2  # of the iterations that the prediction sees
_LEAST_S = 1e-6
_FIXED_CV = 1e-3  # phases that vary less than this do not vary
_WAITING = 0.05  # of the seconds before a tail moved, in which another rollout waited already
_ANY_SLO = 1e9  # of a job that was moved: that it was allowed to is known


class Foretold(NamedTuple):
    """A run as it is foretold.

    Attributes:
        scenario: for the event replay. tails: of rollouts that are migrated; None where none was by then.
        fixed: of each job, what the replay does not tell apart.
    """

    scenario: Scenario
    tails: TailModel | None
    fixed: dict[str, Fixed]


class _PhaseForecast(NamedTuple):
    """A phase of the scenario, and what of it is a warm switch, seconds."""

    phase: Phase
    switch_s: float


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


def seen_iterations(count: int) -> int:
    """How many of a job's iterations the prediction sees."""
    return ceil(SHARE * count)


def foretell(record: RunRecord, places: Places, prefix: Mapping[str, int], knows_cores: bool = False) -> Foretold:
    """The run as a scenario of the event replay, from what the first iterations tell.

    Args:
        prefix: how many iterations of each job may be looked at; jobs that are not in it are left out.
        knows_cores: phases take what they took of a core in the first iterations, and besides, in every iteration, as long as they
            had none in it: of that alone, all of the run is known.
    """
    admitted_s = {event.job_id: event.at_s for event in record.log if isinstance(event, Admitted)}
    jobs: list[Job] = []
    fixed: dict[str, Fixed] = {}
    for job_id in sorted(prefix, key=lambda job_id: admitted_s[job_id]):
        job, moves = record.jobs[job_id], job_id in places.moves
        slices = slices_of(record, job_id)
        parts = [part for number, own in slices.items() if number < prefix[job_id] for part in own]
        rollout, training = (_phase(parts, name, getattr(job, name), moves, knows_cores) for name in ("rollout", "training"))
        began = [part.cold for part in parts if part.phase == "rollout" and part.iteration == 0]
        early_s = rollout.phase.switch.cold_s + training.phase.switch.cold_s if moves and not any(began) else 0.0
        beside = measured_parts(record, job_id)[: prefix[job_id]]
        beside = beside[1:] or beside
        sync_s = fmean(part.sync for part in beside)
        other_s = max(-sync_s, fmean(part.other for part in beside))
        fixed[job_id] = Fixed(rollout.switch_s, training.switch_s, sync_s, other_s)
        after_s = jobs[-1].arrival_s if jobs else 0.0  # the order of arrivals stays
        values: dict[str, Any] = {
            "arrival_s": max(after_s, admitted_s[job_id] - early_s),
            "iterations": sum(one.job_id == job_id for one in record.iterations),
            "rollout": rollout.phase,
            "training": training.phase,
            "sync_s": sync_s + other_s,
            "drift": _waits(slices, rollout.phase, training.phase) if knows_cores else (),
        }
        if moves:
            values |= {"slo": _ANY_SLO, "movable": True}
        jobs.append(job.model_copy(update=values))
    cluster = record.started.cluster
    pools = {name: pool.model_copy(update={"node_memory_gb": None}) for name, pool in cluster.pools.items()}
    limits = {"migration_s": 0.0, "max_group_size": max(len(jobs), cluster.max_group_size)}
    cluster = cluster.with_pools(pools).model_copy(update=limits)
    return Foretold(Scenario(version=1, cluster=cluster, jobs=tuple(jobs)), _tails(record, prefix), fixed)


def _phase(parts: Iterable[PhaseSlice], name: str, profiled: Phase, moves: bool, knows_cores: bool) -> _PhaseForecast:
    """How long a phase holds its nodes, switches included; the cold start is what a first one took beyond that.

    Args:
        moves: the job has another cold start before it, for which the profile's stands in where the parts have none.
        knows_cores: the seconds without a core are left out.
    """
    own = [part for part in parts if part.phase in (("init", name) if name == "rollout" else (name,))]
    warm = [part for part in own if part.phase == name and not part.cold]
    seconds = [part.end_s - part.start_s - (without_core_s(part) if knows_cores else 0.0) for part in warm]
    switches = [part.end_s - part.start_s - (part.done_s - part.run_s) for part in warm]
    mean_s = fmean(seconds) if warm else profiled.worst_case_s + profiled.switch.warm_s
    cold_s = sum(part.end_s - part.start_s for part in own if part.cold)
    cold_s = max(0.0, cold_s - mean_s, profiled.switch.cold_s if moves and not cold_s else 0.0)
    cv = stdev(seconds) / mean_s if len(seconds) > 1 and mean_s > _LEAST_S else 0.0
    actual = Actual(mean_fraction=1.0, cv=cv, cap=False) if cv > _FIXED_CV else None
    values = {"worst_case_s": max(mean_s, _LEAST_S), "actual": actual, "switch": Switch(cold_s=cold_s)}
    phase = (Training if name == "training" else Phase).model_validate({"nodes": profiled.nodes, **values})
    return _PhaseForecast(phase, fmean(switches) if warm else profiled.switch.warm_s)


def _waits(slices: Mapping[int, Sequence[PhaseSlice]], rollout: Phase, training: Phase) -> tuple[Drift, ...]:
    """Factors on the seconds of each iteration's phases, for those in which they had no core."""
    entries = []
    for number in sorted(slices):
        waited_s = {"rollout": 0.0, "training": 0.0, "init": 0.0}
        for part in slices[number]:
            waited_s[part.phase] += without_core_s(part)
        factors = {phase: 1 + waited_s[phase] / own.worst_case_s for phase, own in (("rollout", rollout), ("training", training))}
        entries.append(Drift(iteration=number, **factors))
    return tuple(entries)


def _tails(record: RunRecord, prefix: Mapping[str, int]) -> TailModel | None:
    """How tails went in the first iterations, in the mean over all jobs; None where there was none.

    A tail that moved when a rollout was waiting already had just reached its threshold; others had reached it before.
    """
    early = [
        part for job_id in prefix for number, own in slices_of(record, job_id).items() if number < prefix[job_id] for part in own
    ]
    rollouts = [part for part in early if part.phase == "rollout" and not part.cold]
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
