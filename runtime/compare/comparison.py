"""Prediction of a real run by the event replay, compared with the rest of the run.

The replay uses the run's placements, moves and dispatch policy, and is repeated with many seeds. It is fitted to the first fifth of
each job's iterations and compared with the others: their mean time (the period), the time from the first job's fifth to the last
job's end (the makespan), and the parts of an iteration. The time in which processes waited for a core is reported too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from policies.dispatch import make_dispatch
from rollmux_env.errors import InputError
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.report.job_shapes import shape_in_use
from rollmux_env.report.tables import heading, make_table
from runtime.compare.parts import IterationParts, ends_of, groups_of, mean_parts, measured_parts, replayed_parts, slices_of
from runtime.compare.placements import RecordedPlacements, RunPlacements, places_of
from runtime.compare.prediction import SHARE, RunPrediction, predict_run, until_interrupted
from runtime.journal.record import RunRecord
from runtime.placement_spans import PlacementSpan, span_at, spans_of

_SEEDS = 32
_WORTH = 0.01  # share of an iteration from which a difference is reported in words


def compare(record: RunRecord) -> dict[str, Any]:
    """Predict a run from its first iterations, and compare the prediction with the others.

    Args:
        record: Record of the run.

    Returns:
        `jobs`: {id: {`predicted_s`, `measured_s`, `error`}} of iterations; a job with shapes also has `shapes`, a list of the same
        three with `shape`, `nodes` and `iterations`. `makespan`: the same three. `period_error`: the mean of the jobs' |error|.
        `iterations_seen`: number of iterations used for the prediction, by job. An error is predicted over measured, less 1.
        `cores`: {`before`, `after`}, shares of the warm phases' seconds in which they were ready and had no core, in the first
        iterations and in the others; None if the run did not record it. `groups`: a list of {`group`, `jobs`: {id: {`iterations`,
        `predicted_s`: {part: seconds}, `measured_s`: the same}}, `largest`: {`job`, `part`, `predicted_s`, `measured_s`}}.

    Raises:
        InputError: If too few iterations were completed, or a job was placed twice; one line.
    """
    record = until_interrupted(record)
    spans = spans_of(record)
    places = places_of(record, spans)
    done = {job_id: record.iterations_of(job_id) for job_id in places.first}
    if not done:
        raise InputError("compare: no job was placed in this run")
    for job_id, iterations in done.items():
        if len(iterations) < 2:
            raise InputError(f"compare: job {job_id} has done {len(iterations)} iterations; two or more are needed of each")
    prefix = {job_id: ceil(SHARE * len(iterations)) for job_id, iterations in done.items()}
    predicted, predicted_s = _predict(record, places, prefix, predict_run(record, places, spans, prefix))
    measured = {job_id: measured_parts(record, job_id) for job_id in done}
    ends_s = {job_id: [one.end_s for one in iterations] for job_id, iterations in done.items()}
    jobs: dict[str, dict[str, Any]] = {}
    for job_id, parts in measured.items():
        rest = slice(prefix[job_id], None)
        jobs[job_id] = _error(_mean_s(predicted[job_id][rest]), _mean_s(parts[rest]))
        if record.jobs[job_id].shapes:
            jobs[job_id]["shapes"] = _shapes(record, job_id, spans[job_id], predicted[job_id], parts, prefix[job_id])
    return {
        "jobs": jobs,
        "makespan": _error(predicted_s, makespan_s(ends_s, prefix)),
        "period_error": fmean(abs(job["error"]) for job in jobs.values()),
        "iterations_seen": prefix,
        "cores": _without_core(record, prefix),
        "groups": _groups(record, prefix, predicted, measured),
    }


def _without_core(record: RunRecord, prefix: Mapping[str, int]) -> dict[str, float] | None:
    """Return the shares of the warm phases' seconds without a core, in the first iterations and in the others."""
    if not any(part.core_wait_s for part in record.phases):
        return None
    seconds: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
    for job_id, first in prefix.items():
        for number, own in slices_of(record, job_id).items():
            waits = [(part.core_wait_s, part.end_s - part.start_s) for part in own if not part.cold and part.phase != "init"]
            seconds["before" if number < first else "after"] += waits
    shares = {}
    for when, pairs in seconds.items():
        total_s = sum(whole_s for _, whole_s in pairs)
        shares[when] = sum(min(waited_s, whole_s) for waited_s, whole_s in pairs) / total_s if total_s else 0.0
    return shares


def makespan_s(ends_s: Mapping[str, Sequence[float]], prefix: Mapping[str, int]) -> float:
    """Return the seconds from the time at which the first job had completed its first iterations to the end of the last job.

    Args:
        ends_s: Ends of the iterations of each job, in seconds.
        prefix: Number of first iterations of each job, which the prediction uses.
    """
    return max(ends[-1] for ends in ends_s.values()) - min(ends[prefix[job_id] - 1] for job_id, ends in ends_s.items())


def _predict(
    record: RunRecord, places: RunPlacements, prefix: Mapping[str, int], foretold: RunPrediction
) -> tuple[dict[str, list[IterationParts]], float]:
    """Replay the predicted scenario with many seeds, and return the mean parts of each job's iterations and the mean makespan."""
    dispatch = make_dispatch(record.started.dispatch)
    begin_s = {job_id: span.from_s for job_id, span in places.first.items()}
    whole_s = {job_id: [one.end_s - one.start_s for one in record.iterations_of(job_id)] for job_id in places.moves}
    iteration_s = {job_id: fmean(seconds) for job_id, seconds in whole_s.items()}
    replayed: list[dict[str, list[IterationParts]]] = []
    makespans_s = []
    for seed in range(_SEEDS):
        policy = RecordedPlacements(places, iteration_s, record.last_s)
        run = replay_events(foretold.scenario, policy, dispatch, seed, Watch(keep_phases=True), foretold.tails)
        replayed.append(replayed_parts(run, foretold.fixed, begin_s))
        makespans_s.append(makespan_s(ends_of(run), prefix))
    parts = {job_id: [mean_parts(own) for own in zip(*(one[job_id] for one in replayed), strict=True)] for job_id in foretold.fixed}
    return parts, fmean(makespans_s)


def _shapes(
    record: RunRecord,
    job_id: str,
    spans: Sequence[PlacementSpan],
    predicted: Sequence[IterationParts],
    measured: Sequence[IterationParts],
    first: int,
) -> list[dict[str, Any]]:
    """Return the errors of a job's iterations from number `first` on, by the shape and the nodes in which they ran."""
    job = record.jobs[job_id]
    by_place: dict[tuple[int, int], list[int]] = {}
    for number, done in enumerate(record.iterations_of(job_id)):
        span = span_at(spans, done.end_s)
        if number >= first:
            by_place.setdefault((span.shape, span.training_nodes), []).append(number)
    rows = []
    for (shape, training_nodes), numbers in by_place.items():
        seconds = (_mean_s([parts[number] for number in numbers]) for parts in (predicted, measured))
        nodes = shape_in_use(job, shape, training_nodes).nodes
        rows.append({"shape": shape, "nodes": nodes, "iterations": len(numbers), **_error(*seconds)})
    return rows


def _groups(
    record: RunRecord,
    prefix: Mapping[str, int],
    predicted: Mapping[str, Sequence[IterationParts]],
    measured: Mapping[str, Sequence[IterationParts]],
) -> list[dict[str, Any]]:
    """Return the mean parts of the iterations after the first ones, by group and job."""
    by_group: dict[int, dict[str, Any]] = {}
    for job_id, first in prefix.items():
        groups = groups_of(record, job_id)
        for group in dict.fromkeys(groups[first:]):
            numbers = [number for number in range(first, len(groups)) if groups[number] == group]
            means = (mean_parts([parts[number] for number in numbers]) for parts in (predicted[job_id], measured[job_id]))
            values: dict[str, Any] = dict(zip(("predicted_s", "measured_s"), (mean._asdict() for mean in means), strict=True))
            by_group.setdefault(group, {})[job_id] = {"iterations": len(numbers), **values}
    return [{"group": group, "jobs": jobs, "largest": _largest(jobs)} for group, jobs in sorted(by_group.items())]


def _largest(jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the part in which prediction and run differ most, or None if all differ by less than a hundredth of an iteration."""
    apart = [
        (abs(job["measured_s"][part] - job["predicted_s"][part]), job_id, part)
        for job_id, job in jobs.items()
        for part in IterationParts._fields
        if abs(job["measured_s"][part] - job["predicted_s"][part]) >= _WORTH * sum(job["measured_s"].values())
    ]
    if not apart:
        return None
    _, job_id, part = max(apart)
    return {"job": job_id, "part": part, **{key: jobs[job_id][key][part] for key in ("predicted_s", "measured_s")}}


def _mean_s(parts: Sequence[IterationParts]) -> float:
    return fmean(sum(one) for one in parts)


def _error(predicted_s: float, measured_s: float) -> dict[str, Any]:
    return {"predicted_s": predicted_s, "measured_s": measured_s, "error": predicted_s / measured_s - 1}


_WORDS = {
    "rollout": "the rollouts of {job} take {by} {more} than predicted",
    "training": "the trainings of {job} take {by} {more} than predicted",
    "sync": "the syncs of {job} take {by} {more} than predicted",
    "switch": "the switches of {job} take {by} {more} than predicted",
    "waiting": "{job} waits {by} {more} for nodes than predicted",
    "other": "what {job} does between its phases takes {by} {more} than predicted",
}


def comparison_table(comparison: Mapping[str, Any]) -> RenderableType:
    """Return tables of a comparison: jobs, and the parts of each group's iterations with a line about the largest difference."""
    rows: dict[str, Mapping[str, Any]] = {}
    for job_id, job in comparison["jobs"].items():
        rows[f"iteration of {job_id}"] = job
        for one in job.get("shapes", ()):
            nodes = " + ".join(str(count) for count in one["nodes"].values())
            rows[f"iteration of {job_id}, shape {one['shape']} ({nodes} nodes)"] = one
    rows["makespan"] = comparison["makespan"]
    table = make_table("", "predicted", "measured", "error")
    for name, row in rows.items():
        table.add_row(name, f"{row['predicted_s']:.2f} s", f"{row['measured_s']:.2f} s", f"{100 * row['error']:+.1f}%")
    prefix = ", ".join(f"{number} of {job_id}" for job_id, number in comparison["iterations_seen"].items())
    note = (
        f"predicted by the event replay from the profiles and the first iterations ({prefix}); measured: the iterations after them"
    )
    parts: list[RenderableType] = [heading("Prediction against the run"), table, Text(note, style="dim")]
    if cores := comparison["cores"]:
        shares = f"{100 * cores['before']:.1f}% of their seconds in the first iterations and {100 * cores['after']:.1f}% after them"
        parts.append(Text(f"phases were ready and had no core for {shares}"))
    for group in comparison["groups"]:
        parts += [heading(f"Group {group['group']}: seconds of an iteration"), _parts_table(group["jobs"]), Text(in_words(group))]
    return Group(*parts)


def in_words(group: Mapping[str, Any]) -> str:
    """Return a sentence about the largest difference between a group's prediction and its run."""
    largest = group["largest"]
    if largest is None:
        return "no part differs by a hundredth of an iteration"
    by_s = largest["measured_s"] - largest["predicted_s"]
    words = _WORDS[largest["part"]].format(job=largest["job"], by=f"{abs(by_s):.3f} s", more="more" if by_s > 0 else "less")
    return f"the largest difference: {words}, in each of its iterations"


def _parts_table(jobs: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = make_table("job", "", *IterationParts._fields, "iteration", left=2)
    for position, (job_id, job) in enumerate(jobs.items()):
        if position:
            table.add_section()
        rows = {name: [job[f"{name}_s"][part] for part in IterationParts._fields] for name in ("predicted", "measured")}
        apart = [b - a for a, b in zip(rows["predicted"], rows["measured"], strict=True)]
        for name, values in rows.items():
            table.add_row(job_id if name == "predicted" else "", name, *(f"{value:z.3f}" for value in (*values, sum(values))))
        table.add_row("", "difference", *(f"{value:+z.3f}" for value in (*apart, sum(apart))))
    return table
