"""The figures of a job of a run, computed from the run's record alone.

Warm iterations are all but the first one, which starts cold. If a job completed only one iteration, that one counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from statistics import fmean
from typing import Any, TypeVar

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.cluster.events import Admitted, Parked, Reprofiled
from rollmux_env.keys.job import Job
from rollmux_env.report.job_shapes import shape_in_use
from runtime.journal.facts import IterationSlice, PhaseSlice
from runtime.journal.record import RunRecord
from runtime.placement_spans import PlacementSpan, span_at
from runtime.standstill import PATIENCE, warnings

PHASES = ("rollout", "training")
Kind = TypeVar("Kind")


def job_figures(record: RunRecord, job_id: str, spans: Sequence[PlacementSpan]) -> dict[str, Any]:
    """Return the figures of a job in `results.json`, except dollars and switches.

    Args:
        record: Record of the run.
        job_id: Id of the job.
        spans: Spans of the job, as in `runtime.placement_spans.spans_of`; empty if no job of the run has shapes.
    """
    job, iterations = record.jobs.get(job_id), record.iterations_of(job_id)
    phases, away = _phases(record, job_id), parked_spans(record, job_id)
    usual = {name: _warm(parts) or parts for name, parts in phases.items()}
    return {
        "iterations": len(iterations),
        "of": job.iterations if job else None,
        "failed": next((failure.problem for failure in record.failed if failure.job_id == job_id), None),
        **({"over_budget": True} if job_id in record.over_budget else {}),
        "strategy": next((event.placement.strategy for event in _events(record, Admitted) if event.job_id == job_id), None),
        **_rewards(iterations),
        **_warnings(record, job_id, iterations),
        **_paces(job, iterations, solo_seconds(record, job_id), away),
        **({"parks": len(away), "parked_s": sum(until_s - from_s for from_s, until_s in away)} if away else {}),
        **_ages(job, iterations),
        **({"shapes": _shapes(record, job, spans, phases)} if job and job.shapes and spans else {}),
        "worst_case_s": {phase: getattr(job, phase).worst_case_s for phase in PHASES} if job else None,
        "phase_s": _by_phase(usual, lambda part: part.end_s - part.start_s),
        "waits_s": _by_phase(usual, lambda part: part.start_s - part.asked_s),
        **_checkpoints(record, job_id),
        "host_gb": _by_phase(phases, lambda part: part.host_gb, _most),
        "device_gb": _by_phase(phases, lambda part: part.device_gb, _most),
    }


def lines_about(jobs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return lines about jobs, to be printed below a table.

    Args:
        jobs: Figures of the jobs, by id.
    """
    budgets = [
        f"{job_id}: its budget was spent after {job['iterations']} iterations"
        for job_id, job in jobs.items()
        if job.get("over_budget")
    ]
    parks = [
        f"{job_id}: parked {count} time{'s' if count > 1 else ''}; its iterations are without these {job['parked_s']:.1f} s"
        for job_id, job in jobs.items()
        if (count := job.get("parks"))
    ]
    ages = [
        f"{job_id}: trained on samples of weights up to {job['staleness_max']:.0f} versions old, {job['staleness']} at most"
        for job_id, job in jobs.items()
        if job.get("staleness_max") is not None
    ]
    unsound = [
        f"{job_id}: iteration {warning['iteration'] + 1}: {warning['text']}"
        for job_id, job in jobs.items()
        for warning in job.get("warnings", ())
    ]
    return budgets + parks + ages + unsound


def switches(record: RunRecord, job_id: str) -> dict[str, Any]:
    """Return the cold and warm switches of both phases, in seconds: the total, and its stages by name.

    A cold switch may be that of the job's profile.
    """
    every = [part for part in record.phases if part.job_id == job_id and part.ok]
    warm = {name: _warm(parts) for name, parts in _phases(record, job_id).items()}
    return {phase: _switch(phase, [part for part in every if part.pool == phase], warm[phase]) for phase in PHASES}


def _switch(phase: str, every: Sequence[PhaseSlice], warm: Sequence[PhaseSlice]) -> dict[str, Any]:
    """Return the switches of one phase.

    Args:
        phase: Name of the phase.
        every: All phases and inits on its nodes, including those of the profile.
        warm: Warm phases.
    """
    inits = [part for part in every if part.phase == "init"]
    cold = [part for part in every if part.cold and part.phase == phase]
    cold_s, warm_s = _cold_start_s(inits, cold), mean(part.load_s + part.offload_s for part in warm)
    whole = {"load": mean(part.load_s for part in warm), "offload": mean(part.offload_s for part in warm)}
    return {
        "cold_s": cold_s,
        "warm_s": warm_s,
        "stays": mean(part.stays for part in warm),
        "times_faster": cold_s / warm_s if cold_s and warm_s else None,
        "cold_stages_s": _stages([*inits, *cold]),
        "warm_stages_s": _stages(warm) | (whole if warm else {}),
    }


def _cold_start_s(inits: Sequence[PhaseSlice], cold: Sequence[PhaseSlice]) -> float | None:
    """Return the mean seconds of a cold start, which are those of its init and of loading, or None if there was none."""
    load_s, made_s = mean(part.load_s for part in cold), mean(part.end_s - part.start_s for part in inits)
    return None if load_s is None and made_s is None else (load_s or 0.0) + (made_s or 0.0)


def _stages(parts: Sequence[PhaseSlice]) -> dict[str, float]:
    """Return the mean seconds of every stage that the phases name."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        for name, value in part.stages.items():
            seconds[name].append(value)
    return {name: fmean(values) for name, values in seconds.items()}


def _checkpoints(record: RunRecord, job_id: str) -> dict[str, float | None]:
    """Return how often a job was restarted, how many iterations were repeated, and what its checkpoints took."""
    written = [fact for fact in record.checkpointed if fact.job_id == job_id]
    return {
        "restarts": sum(fact.job_id == job_id for fact in record.restarted),
        "repeated": sum(done.job_id == job_id for done in record.repeated),
        "checkpoint_s": mean(fact.seconds for fact in written),
        "checkpoint_gb": mean(fact.gb for fact in written),
    }


def _rewards(iterations: Sequence[IterationSlice]) -> dict[str, float | None]:
    """Return the mean rewards of the first and the last tenth of the iterations, and the first and the last evaluation."""
    rewards, evaluations = (
        [done.metrics[name] for done in iterations if name in done.metrics] for name in ("reward", "eval_reward")
    )
    tenth = max(1, len(rewards) // 10)
    return {
        "reward_first": _finite(mean(rewards[:tenth])),
        "reward_last": _finite(mean(rewards[-tenth:])),
        "eval_reward_first": _finite(evaluations[0]) if evaluations else None,
        "eval_reward_last": _finite(evaluations[-1]) if evaluations else None,
    }


def _warnings(record: RunRecord, job_id: str, iterations: Sequence[IterationSlice]) -> dict[str, list[dict[str, Any]]]:
    """Return the warnings about a job's training: `iteration` (from 0) and `text` of each; no key if there are none."""
    top_p = next((fact.spec.top_p for fact in record.submitted if fact.spec.id == job_id), 1.0)
    lines = [
        {"iteration": done.number, "text": text}
        for k, done in enumerate(iterations)
        for text in warnings([one.metrics for one in iterations[max(0, k - PATIENCE) : k + 1]], top_p)
    ]
    return {"warnings": lines} if lines else {}


def _paces(
    job: Job | None, iterations: Sequence[IterationSlice], alone: Sequence[float], away: Sequence[tuple[float, float]]
) -> dict[str, float | None]:
    """Return the seconds of an iteration: in the run (mean over warm iterations), alone, and by the profile.

    Args:
        job: The job, or None if it is unknown.
        iterations: Iterations of the job in the run.
        alone: Seconds of its iterations alone.
        away: Times between which it was parked, which do not count.
    """
    warm, alone_s = iterations[1:] or iterations, mean(alone)
    away_s = sum(until_s - from_s for from_s, until_s in away if warm and warm[0].start_s < from_s < warm[-1].end_s)
    own_s = (warm[-1].end_s - warm[0].start_s - away_s) / len(warm) if warm else None
    return {
        "iteration_s": own_s,
        "solo_iteration_s": alone_s,
        "solo_half_width_s": mean_interval(alone).half_width if alone else None,
        "solo_iterations": len(alone),
        "profiled_iteration_s": job.solo_s if job else None,
        "slowdown": own_s / alone_s if own_s and alone_s else None,
        "slo": job.slo if job else None,
    }


def _ages(job: Job | None, iterations: Sequence[IterationSlice]) -> dict[str, float | None]:
    """Return the largest difference in versions between training and sampling weights; None if the job does not report it."""
    if job is None or not job.staleness:
        return {}
    both = [done.metrics for done in iterations if {"trained_version", "sampled_version"} <= done.metrics.keys()]
    oldest = max((metrics["trained_version"] - metrics["sampled_version"] for metrics in both), default=None)
    return {"staleness": job.staleness, "staleness_max": oldest}


def _shapes(
    record: RunRecord, job: Job, spans: Sequence[PlacementSpan], phases: Mapping[str, Sequence[PhaseSlice]]
) -> list[dict[str, Any]]:
    """Return the shapes that a job has had, in order, once per number of training nodes.

    Returns:
        For each, `shape` (its number), `nodes` by phase, `iterations`, `iteration_s` (mean; without the first one in a place, which
        starts cold), `phase_s` (means of warm phases), and the figures by which it is planned, in their last version:
        `worst_case_s` by phase and `alone_s` of an iteration.
    """
    job = next((event.job for event in reversed(_events(record, Reprofiled)) if event.job.id == job.id), job)
    seconds: dict[PlacementSpan, list[float]] = defaultdict(list)
    for done in record.iterations_of(job.id):
        seconds[span_at(spans, done.end_s)].append(done.end_s - done.start_s)
    used = []
    for shape, training_nodes in dict.fromkeys((span.shape, span.training_nodes) for span in spans):
        own = [span for span in spans if (span.shape, span.training_nodes) == (shape, training_nodes)]
        planned = shape_in_use(job, shape, training_nodes)
        here = {name: [part for part in _warm(parts) if span_at(spans, part.end_s) in own] for name, parts in phases.items()}
        used.append(
            {
                "shape": shape,
                "nodes": planned.nodes,
                "iterations": sum(len(seconds[span]) for span in own),
                "iteration_s": mean(value for span in own for value in seconds[span][1:] or seconds[span]),
                "phase_s": _by_phase(here, lambda part: part.end_s - part.start_s),
                "worst_case_s": planned.worst_case_s,
                "alone_s": planned.alone_s,
            }
        )
    return used


def parked_spans(record: RunRecord, job_id: str) -> list[tuple[float, float]]:
    """Return the times between which a job was parked, each from its departure to its next place or the end of the record."""
    spans: list[tuple[float, float]] = []
    for event in record.log:
        if isinstance(event, Parked) and event.job_id == job_id:
            spans.append((event.at_s, record.last_s))
        elif isinstance(event, Admitted) and event.job_id == job_id and spans:
            spans[-1] = min(spans[-1], (spans[-1][0], event.at_s))
    return spans


def job_ids(record: RunRecord) -> list[str]:
    """Return the ids of the jobs that were profiled or have failed, in that order."""
    return list(dict.fromkeys([*record.jobs, *(failure.job_id for failure in record.failed)]))


def solo_seconds(record: RunRecord, job_id: str) -> list[float]:
    """Return the seconds of a job's iterations alone, from the end of one to the end of the next, without the first one."""
    ends_s = [done.end_s for done in record.solo if done.job_id == job_id]
    return [end_s - before_s for before_s, end_s in pairwise(ends_s)]


def mean(values: Iterable[float]) -> float | None:
    """Return the mean, or None for no values."""
    items = list(values)
    return fmean(items) if items else None


def _most(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def _by_phase(
    phases: Mapping[str, Iterable[PhaseSlice]],
    value: Callable[[PhaseSlice], float],
    of: Callable[[Iterable[float]], float | None] = mean,
) -> dict[str, float | None]:
    return {name: of(value(part) for part in parts) for name, parts in phases.items()}


def _phases(record: RunRecord, job_id: str) -> dict[str, list[PhaseSlice]]:
    """Return the completed phases of a job by name, without those of its profile."""
    parts = [part for part in record.phases if part.job_id == job_id and not part.profile and part.ok]
    return {name: [part for part in parts if part.phase == name] for name in PHASES}


def _warm(parts: Iterable[PhaseSlice]) -> list[PhaseSlice]:
    return [part for part in parts if not part.cold]


def _events(record: RunRecord, kind: type[Kind]) -> list[Kind]:
    return [event for event in record.log if isinstance(event, kind)]


def _finite(value: float | None) -> float | None:
    """Return None in place of NaN and infinity, which a job may report and JSON cannot express."""
    return value if value is not None and isfinite(value) else None
