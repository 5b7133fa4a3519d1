"""The event replay against a real run: what the run's beginning foretells, and what came.

A job is predicted from its first fifth of the iterations: how long its phases held their nodes, how that varied, and what else an
iteration took. Where a fifth says nothing of a phase, its profile stands in. Placements are those of the run, the dispatch policy
is the run's, and the replay is repeated with many seeds. What is compared is the rest: the mean time of an iteration behind the
first fifth (the period), and the time from the first job's fifth to the last job's end (the makespan).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from policies.dispatch import make_dispatch
from rollmux_env.cluster.events import Admitted, Arrived, Event, Moved, Placement
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.run import Run
from rollmux_env.report.tables import heading, make_table
from rollmux_env.scenario import Actual, Phase, Scenario, Switch, Training
from runtime.facts import Iteration, PhaseSlice
from runtime.record import RunRecord

SHARE = 0.2  # of the iterations that the prediction sees
_SEEDS = 32
_LEAST_S = 1e-6
_FIXED_CV = 1e-3  # phases that vary less than this do not vary


class Remainder(NamedTuple):
    """What came after the first fifth: mean seconds of an iteration of each job, and seconds until all were done."""

    iteration_s: dict[str, float]
    makespan_s: float


def compare(record: RunRecord) -> dict[str, Any]:
    """Foretell a run from its beginning, and compare.

    Returns:
        `jobs`: {id: {`predicted_s`, `measured_s`, `error`}} of iterations; `makespan`: the same three; `period_error`: the mean
        of the jobs' |error|; `iterations_seen`: {id: how many}. An error is predicted over measured, less 1.

    Raises:
        InputError: too little was run to the end, or a job or a tail was moved; one line.
    """
    if any(isinstance(event, Moved) for event in record.log):
        raise InputError("compare: jobs were moved in this run; only runs without moves can be compared")
    if any(part.spans for part in record.phases):
        raise InputError("compare: tails were migrated in this run; only runs without migration can be compared")
    record = until_interrupted(record)
    placements = {event.job_id: event.placement for event in record.log if isinstance(event, Admitted)}
    done = {job_id: [part for part in record.iterations if part.job_id == job_id] for job_id in placements}
    if not done:
        raise InputError("compare: no job was placed in this run")
    for job_id, iterations in done.items():
        if len(iterations) < 2:
            raise InputError(f"compare: job {job_id} has done {len(iterations)} iterations; two or more are needed of each")
    prefix = {job_id: ceil(SHARE * len(iterations)) for job_id, iterations in done.items()}
    scenario = predicted_scenario(record, done, prefix)
    dispatch = make_dispatch(record.started.dispatch)
    watch = Watch(keep_phases=True)
    runs = (replay_events(scenario, RecordedPlacements(placements), dispatch, seed, watch) for seed in range(_SEEDS))
    predictions = [remainder_of(ends_of(run), prefix) for run in runs]
    actual = remainder_of({job_id: [part.end_s for part in iterations] for job_id, iterations in done.items()}, prefix)
    jobs = {
        job_id: _error(fmean(prediction.iteration_s[job_id] for prediction in predictions), seconds)
        for job_id, seconds in actual.iteration_s.items()
    }
    return {
        "jobs": jobs,
        "makespan": _error(fmean(prediction.makespan_s for prediction in predictions), actual.makespan_s),
        "period_error": fmean(abs(job["error"]) for job in jobs.values()),
        "iterations_seen": prefix,
    }


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


def comparison_table(comparison: Mapping[str, Any]) -> RenderableType:
    """What `rollmux compare` prints."""
    table = make_table("", "predicted", "measured", "error")
    rows = {f"iteration of {job_id}": job for job_id, job in comparison["jobs"].items()} | {"makespan": comparison["makespan"]}
    for name, row in rows.items():
        table.add_row(name, f"{row['predicted_s']:.2f} s", f"{row['measured_s']:.2f} s", f"{100 * row['error']:+.1f}%")
    prefix = ", ".join(f"{number} of {job_id}" for job_id, number in comparison["iterations_seen"].items())
    note = (
        f"predicted by the event replay from the profiles and the first iterations ({prefix}); measured: the iterations after them"
    )
    return Group(heading("Prediction against the run"), table, Text(note, style="dim"))


def predicted_scenario(record: RunRecord, done: Mapping[str, Sequence[Iteration]], prefix: Mapping[str, int]) -> Scenario:
    """The run as a scenario of the event replay, from what the first iterations tell.

    Args:
        done: iterations of each job that is to be replayed. prefix: how many of them may be looked at.
    """
    admitted_s = {event.job_id: event.at_s for event in record.log if isinstance(event, Admitted)}
    jobs = []
    for job_id, iterations in done.items():
        job = record.jobs[job_id]
        parts = [part for part in record.phases if part.job_id == job_id and not part.profile and part.iteration < prefix[job_id]]
        rollout, training = (_phase(parts, phase, getattr(job, phase)) for phase in ("rollout", "training"))
        extras = [_beside_phases(iteration, parts) for iteration in iterations[: prefix[job_id]]]
        jobs.append(
            job.model_copy(
                update={
                    "arrival_s": admitted_s[job_id],
                    "iterations": len(iterations),
                    "rollout": rollout,
                    "training": training,
                    "sync_s": max(0.0, fmean(extras[1:] or extras)),
                    "drift": (),
                }
            )
        )
    cluster = record.started.cluster
    return Scenario(version=1, cluster=cluster, jobs=tuple(sorted(jobs, key=lambda job: job.arrival_s)))


class RecordedPlacements:
    """A placement policy that does again what was done."""

    keeps_slo = False

    def __init__(self, placements: Mapping[str, Placement]) -> None:
        self._placements = placements

    def decide(self, state: State, event: Event) -> Plan:
        """The recorded placement of a job that arrives; it waits where the jobs before it take longer than they did."""
        if not isinstance(event, Arrived):
            return ()
        job_id = event.job.id
        placement = self._placements.get(job_id)
        return (Place(job_id, placement),) if placement is not None and _has_nodes(state, placement) else (Wait(job_id),)


def _has_nodes(state: State, placement: Placement) -> bool:
    pools = (
        (state.cluster.rollout.max_nodes, state.rollout_nodes + placement.new_rollout_nodes),
        (state.cluster.training.max_nodes, state.training_nodes + placement.training_nodes),
    )
    return all(most is None or nodes <= most for most, nodes in pools)


def ends_of(run: Run) -> dict[str, list[float]]:
    """When each job's iterations ended in a replay: with their trainings, and their syncs behind them."""
    sync_s = {job.id: job.sync_s for job in run.scenario.jobs}
    ends: dict[str, list[float]] = {job_id: [] for job_id in sync_s}
    for phase in run.phases:
        if phase.phase == "training":
            ends[phase.job_id].append(phase.end_s + sync_s[phase.job_id])
    return ends


def remainder_of(ends_s: Mapping[str, Sequence[float]], prefix: Mapping[str, int]) -> Remainder:
    """The period and the makespan behind the iterations that were seen."""
    mean_s = {job_id: (ends[-1] - ends[prefix[job_id] - 1]) / (len(ends) - prefix[job_id]) for job_id, ends in ends_s.items()}
    begins_s = min(ends[prefix[job_id] - 1] for job_id, ends in ends_s.items())
    return Remainder(mean_s, max(ends[-1] for ends in ends_s.values()) - begins_s)


def _phase(parts: Iterable[PhaseSlice], name: str, profiled: Phase) -> Phase:
    """How long a phase holds its nodes, switches included; the cold start is what a first one took beyond that."""
    names = ("init", name) if name == "rollout" else (name,)
    own = [part for part in parts if part.phase in names and part.ok]
    warm = [part.end_s - part.start_s for part in own if part.phase == name and not part.cold]
    cold = sum(part.end_s - part.start_s for part in own if part.cold)
    mean_s = fmean(warm) if warm else profiled.worst_case_s + profiled.switch.warm_s
    cv = stdev(warm) / mean_s if len(warm) > 1 else 0.0
    actual = Actual(mean_fraction=1.0, cv=cv, cap=False) if cv > _FIXED_CV else None
    values = {"worst_case_s": max(mean_s, _LEAST_S), "actual": actual, "switch": Switch(cold_s=max(0.0, cold - mean_s))}
    return (Training if name == "training" else Phase).model_validate(
        {"nodes": profiled.nodes, "host_memory_gb": profiled.host_memory_gb, **values}
    )


def _beside_phases(iteration: Iteration, parts: Iterable[PhaseSlice]) -> float:
    """Seconds of an iteration in which the job neither held nodes nor waited for any: syncs, and messages."""
    own = [part for part in parts if part.iteration == iteration.number]
    return iteration.end_s - iteration.start_s - sum(part.end_s - min(part.asked_s, part.start_s) for part in own)


def _error(predicted_s: float, measured_s: float) -> dict[str, float]:
    return {"predicted_s": predicted_s, "measured_s": measured_s, "error": predicted_s / measured_s - 1}
