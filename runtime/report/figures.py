"""The figures of a run, from its record alone.

Warm iterations are all but a job's first in a run, which starts cold; where a job did only one, that one. The shared time of a
group is the time in which every job that was ever its member has its first iteration behind and its last one ahead: there the
group is as full as it gets, and nothing starts cold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.cluster.demand import demand_of, solo_usd_per_hour
from rollmux_env.cluster.events import Admitted
from rollmux_env.queue_keys import queue_key
from rollmux_env.replay.metrics import charged_usd_per_hour
from rollmux_env.report.lanes import POOLS, Lane, follow, shares
from runtime.facts import Iteration, PhaseSlice
from runtime.journal import state_of
from runtime.record import RunRecord
from runtime.report.shapes_used import shapes_used
from runtime.stays import Stay, stays_of

PHASES = ("rollout", "training")
REWARD, EVAL_REWARD = "reward", "eval_reward"


class Shared(NamedTuple):
    """The shared time of a group: its jobs, and from when to when, seconds."""

    group: int
    jobs: tuple[str, ...]
    from_s: float
    until_s: float


def figures(record: RunRecord) -> dict[str, Any]:
    """All figures of a run, as `results.json` has them; docs/reference/runs.md defines them. None: not measured."""
    lanes, _ = follow(record.started.cluster, record.log)
    span_s = _span(record)
    charged = charged_usd_per_hour(record.log, state_of(record))
    stays = stays_of(record) if any(job.shapes for job in record.jobs.values()) else {}
    jobs = {job_id: _job(record, job_id, stays.get(job_id, ())) for job_id in _job_ids(record)}
    return {
        "policy": record.started.policy,
        "dispatch": record.started.dispatch,
        "outcome": record.ended.outcome if record.ended else "killed",
        "seconds": span_s[1],
        "versions": record.started.versions,
        "nodes": [{"name": node.name, "pool": node.pool, "device": node.device} for node in record.started.nodes],
        "jobs": {job_id: job | _dollars_of(record, job_id, charged) for job_id, job in jobs.items()},
        "usd": sum(_usd(record, lane) for lane in lanes),
        "usd_solo": _usd_solo(record),
        "pools": {pool: _pool(record, lanes, pool, span_s) for pool in POOLS},
        "groups": [_group(record, lanes, shared) for shared in shared_times(record)],
        "throughput": throughput(record, lanes),
        "switches": {job_id: _switches(record, job_id) for job_id in _job_ids(record)},
        "permit_ms": _permits(record),
        "syncs": _syncs(record),
        **_charged(record),
    }


def _charged(record: RunRecord) -> dict[str, Any]:
    """Dollars by user and by priority, if the run's files say anything of them."""
    specs = [fact.spec for fact in record.submitted]
    if queue_key(record.started.cluster, specs) is None:
        return {}
    state = state_of(record)
    by_user: dict[str, float] = {}
    by_priority: dict[str, float] = {}
    for spec in specs:
        usd = state.charged_usd(spec.id) if state.knows(spec.id) else 0.0
        by_user[spec.user] = by_user.get(spec.user, 0.0) + usd
        by_priority[str(spec.priority)] = by_priority.get(str(spec.priority), 0.0) + usd
    return {"usd_by_user": by_user, "usd_by_priority": by_priority}


def warm(iterations: Sequence[Iteration]) -> Sequence[Iteration]:
    """All but the first, if there are more."""
    return iterations[1:] or iterations


def iteration_s(iterations: Sequence[Iteration]) -> float | None:
    """Mean seconds from the end of one warm iteration to the end of the next; None where there are none."""
    return (iterations[-1].end_s - warm(iterations)[0].start_s) / len(warm(iterations)) if iterations else None


def shared_times(record: RunRecord) -> list[Shared]:
    """The shared time of every group that has one: some are over before their last member begins."""
    times = []
    for group, jobs in _members(record).items():
        own = {job_id: record.iterations_of(job_id) for job_id in jobs}
        own = {job_id: iterations for job_id, iterations in own.items() if len(iterations) > 1}
        if own:
            from_s = max(iterations[0].end_s for iterations in own.values())
            until_s = min(iterations[-1].end_s for iterations in own.values())
            if from_s < until_s:
                times.append(Shared(group, tuple(own), from_s, until_s))
    return times


def throughput(record: RunRecord, lanes: Sequence[Lane]) -> dict[str, float | None] | None:
    """Work per provisioned node-hour against solo disaggregation; None unless every job that ran was also run alone.

    An iteration of a job is worth the node-seconds that it costs alone on nodes of its own. `gain` is what the shared times of all
    groups were worth over their provisioned node-seconds; `gain_whole_run` is that of all iterations over all node-seconds from the
    first admission to the end, starts and tails included. `bound` is what two phases on two nodes at once gain over one after the
    other, as measured in the same run.
    """
    alone_s = {job_id: iteration_s(solo.iterations_of(job_id)) for job_id, solo in record.solo.items()}
    ran = {iteration.job_id for iteration in record.iterations}
    if not ran or any(alone_s.get(job_id) is None for job_id in ran):
        return None
    worth: dict[str, float] = {}
    for job_id in ran:
        job = record.jobs[job_id]
        demand = demand_of(job, record.started.cluster)
        worth[job_id] = (alone_s[job_id] or 0.0) * (demand.rollout_nodes + demand.training_nodes)
    done = paid = 0.0
    for shared in shared_times(record):
        if all(job_id in worth for job_id in shared.jobs):
            done += sum(_progress(record, job_id, shared.from_s, shared.until_s) * worth[job_id] for job_id in shared.jobs)
            paid += _provisioned(lanes, shared.group, shared.from_s, shared.until_s)
    whole = sum(len(record.iterations_of(job_id)) * worth.get(job_id, 0.0) for job_id in _job_ids(record))
    whole_solo = sum(_provisioned(follow(solo.started.cluster, solo.log)[0]) for solo in record.solo.values())
    paid_whole = _provisioned(lanes)
    alone = sum(sum(bound.alone_s) for bound in record.bounds)
    bound = alone / sum(max(bound.parallel_s) for bound in record.bounds) if record.bounds else None
    gain = done / paid if paid else None
    return {
        "gain": gain,
        "bound": bound,
        "of_bound": gain / bound if gain and bound else None,
        "gain_whole_run": whole / paid_whole if paid_whole else None,
        "node_hours": paid_whole / 3600,
        "solo_node_hours": whole_solo / 3600,
    }


def _job_ids(record: RunRecord) -> list[str]:
    failed = [failure.job_id for failure in record.failed]
    return list(dict.fromkeys([*record.jobs, *failed]))


def _members(record: RunRecord) -> dict[int, list[str]]:
    """Ids of the jobs that were ever in each group."""
    members: dict[int, dict[str, None]] = defaultdict(dict)
    for part in record.phases:
        if part.group >= 0 and not part.profile:
            members[part.group][part.job_id] = None
    return {group: [*jobs] for group, jobs in members.items()}


def _span(record: RunRecord) -> tuple[float, float]:
    """From the first admission to the last thing that happened, seconds."""
    admitted = [event.at_s for event in record.log if isinstance(event, Admitted)]
    last = [record.ended.at_s] if record.ended else [part.end_s for part in record.phases]
    return min(admitted, default=0.0), max([*last, *(event.at_s for event in record.log[-1:])], default=0.0)


def _job(record: RunRecord, job_id: str, stays: Sequence[Stay]) -> dict[str, Any]:
    job, iterations = record.jobs.get(job_id), record.iterations_of(job_id)
    solo = record.solo.get(job_id)
    alone_s = iteration_s(solo.iterations_of(job_id)) if solo else None
    own_s = iteration_s(iterations)
    rewards, evaluations = (
        [iteration.metrics[name] for iteration in iterations if name in iteration.metrics] for name in (REWARD, EVAL_REWARD)
    )
    tenth = max(1, len(rewards) // 10)
    admitted = [event for event in record.log if isinstance(event, Admitted) and event.job_id == job_id]
    shapes = shapes_used(record, job_id, stays) if job and job.shapes and stays else None
    return {
        "iterations": len(iterations),
        "of": job.iterations if job else None,
        "failed": next((failure.problem for failure in record.failed if failure.job_id == job_id), None),
        **({"over_budget": True} if job_id in record.over_budget else {}),
        "strategy": admitted[0].placement.strategy if admitted else None,
        "reward_first": _finite(_mean(rewards[:tenth])),
        "reward_last": _finite(_mean(rewards[-tenth:])),
        "eval_reward_first": _finite(evaluations[0]) if evaluations else None,
        "eval_reward_last": _finite(evaluations[-1]) if evaluations else None,
        "iteration_s": own_s,
        "solo_iteration_s": alone_s,
        "profiled_iteration_s": job.solo_s if job else None,
        "slowdown": own_s / alone_s if own_s and alone_s else None,
        "slo": job.slo if job else None,
        **({"staleness": job.staleness, "staleness_max": _oldest(iterations)} if job and job.staleness else {}),
        **({"shapes": shapes} if shapes else {}),
        "worst_case_s": {phase: getattr(job, phase).worst_case_s for phase in PHASES} if job else None,
        "phase_s": {phase: _mean(part.end_s - part.start_s for part in _warm_phases(record, job_id, phase)) for phase in PHASES},
        "waits_s": {phase: _mean(part.start_s - part.asked_s for part in _warm_phases(record, job_id, phase)) for phase in PHASES},
        "restarts": sum(fact.job_id == job_id for fact in record.restarted),
        "repeated": sum(done.job_id == job_id for done in record.repeated),
        "checkpoint_s": _mean(checkpoint.seconds for checkpoint in record.checkpointed if checkpoint.job_id == job_id),
        "checkpoint_gb": _mean(checkpoint.gb for checkpoint in record.checkpointed if checkpoint.job_id == job_id),
        "host_gb": {phase: max((part.host_gb for part in _phases(record, job_id, phase)), default=None) for phase in PHASES},
        "device_gb": {phase: max((part.device_gb for part in _phases(record, job_id, phase)), default=None) for phase in PHASES},
    }


def _oldest(iterations: Sequence[Iteration]) -> float | None:
    """By how many versions the oldest sample was behind when it was trained; None where the job does not say."""
    both = [done.metrics for done in iterations if {"trained_version", "sampled_version"} <= done.metrics.keys()]
    return max((metrics["trained_version"] - metrics["sampled_version"] for metrics in both), default=None)


def _dollars_of(record: RunRecord, job_id: str, charged: Mapping[str, float]) -> dict[str, float | None]:
    """What a job was charged an hour while it had a place, and what nodes of its own would have cost."""
    job = record.jobs.get(job_id)
    solo = solo_usd_per_hour(job, record.started.cluster) if job else None
    return {"usd_per_hour": charged.get(job_id), "usd_per_hour_solo": solo}


def _usd(record: RunRecord, lane: Lane) -> float:
    """The price of a node for as long as it was provisioned."""
    return (lane.until_s - lane.from_s) / 3600 * record.started.cluster.pools[lane.owner].usd_per_node_hour


def _usd_solo(record: RunRecord) -> float:
    """What all iterations would have cost on nodes of their jobs' own: by the solo runs, else by the profiles."""
    usd = 0.0
    for job_id, job in record.jobs.items():
        solo = record.solo.get(job_id)
        alone_s = (iteration_s(solo.iterations_of(job_id)) if solo else None) or job.solo_s
        usd += len(record.iterations_of(job_id)) * alone_s / 3600 * solo_usd_per_hour(job, record.started.cluster)
    return usd


def _pool(record: RunRecord, lanes: Sequence[Lane], pool: str, span_s: tuple[float, float]) -> dict[str, float] | None:
    """Shares of the pool's provisioned node-seconds."""
    split = shares(record.phase_runs(), [lane for lane in lanes if lane.pool == pool], *span_s)
    return split._asdict() if split else None


def _group(record: RunRecord, lanes: Sequence[Lane], shared: Shared) -> dict[str, Any]:
    """A group in its shared time: the period, and shares of its node-seconds."""
    own = [lane for lane in lanes if lane.group == shared.group]
    phases = record.phase_runs()
    by_pool = {pool: shares(phases, [lane for lane in own if lane.pool == pool], shared.from_s, shared.until_s) for pool in POOLS}
    length_s = shared.until_s - shared.from_s
    return {
        "group": shared.group,
        "jobs": list(shared.jobs),
        "shared_s": length_s,
        "iteration_s": {
            job_id: length_s / done
            for job_id in shared.jobs
            if (done := _progress(record, job_id, shared.from_s, shared.until_s)) > 0
        },
        "pools": {pool: split._asdict() if split else None for pool, split in by_pool.items()},
    }


def _switches(record: RunRecord, job_id: str) -> dict[str, Any]:
    """Cold and warm switches of both phases, seconds: the whole, and parts by name. A cold one may be that of the profile."""
    by_phase = {}
    for phase in PHASES:
        every = [part for part in record.phases if part.job_id == job_id and part.pool == phase and part.ok]
        inits = [part for part in every if part.phase == "init"]
        cold = [part for part in every if part.cold and part.phase == phase]
        ready = [part for part in _phases(record, job_id, phase) if not part.cold]
        cold_s = _mean(part.load_s for part in cold)
        if cold_s is not None and inits:
            cold_s += fmean(part.end_s - part.start_s for part in inits)
        warm_s = _mean(part.load_s + part.offload_s for part in ready)
        by_phase[phase] = {
            "cold_s": cold_s,
            "warm_s": warm_s,
            "stays": _mean(part.stays for part in ready),
            "times_faster": cold_s / warm_s if cold_s and warm_s else None,
            "cold_stages_s": _stages([*inits, *cold]),
            "warm_stages_s": _stages(ready) | _parts(ready),
        }
    return by_phase


def _parts(parts: Sequence[PhaseSlice]) -> dict[str, float]:
    return {"load": fmean(p.load_s for p in parts), "offload": fmean(p.offload_s for p in parts)} if parts else {}


def _stages(parts: Sequence[PhaseSlice]) -> dict[str, float]:
    """Mean seconds of every stage that these phases name."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        for name, value in part.stages.items():
            seconds[name].append(value)
    return {name: fmean(values) for name, values in seconds.items()}


def _permits(record: RunRecord) -> dict[str, float] | None:
    """How long permits took to reach their phases, milliseconds."""
    values = [1e3 * part.permit_s for part in record.phases if part.permit_s > 0]
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 99)} if values else None


def _syncs(record: RunRecord) -> dict[str, Any]:
    own = [sync for sync in record.syncs if not sync.profile]
    return {
        "count": len(own),
        "mean_s": _mean(sync.end_s - sync.start_s for sync in own),
        "beside_others": sum(bool(sync.beside) for sync in own),
    }


def _progress(record: RunRecord, job_id: str, from_s: float, until_s: float) -> float:
    """Iterations that a job did between two times, with fractions."""
    done = 0.0
    for iteration in record.iterations_of(job_id):
        inside = min(iteration.end_s, until_s) - max(iteration.start_s, from_s)
        if inside > 0:
            done += inside / (iteration.end_s - iteration.start_s)
    return done


def _provisioned(
    lanes: Iterable[Lane], group: int | None = None, from_s: float = float("-inf"), until_s: float = float("inf")
) -> float:
    """Node-seconds that lanes have between two times."""
    return sum(
        max(0.0, min(lane.until_s, until_s) - max(lane.from_s, from_s)) for lane in lanes if group is None or lane.group == group
    )


def _phases(record: RunRecord, job_id: str, phase: str) -> list[PhaseSlice]:
    return [part for part in record.phases if part.job_id == job_id and part.phase == phase and not part.profile and part.ok]


def _warm_phases(record: RunRecord, job_id: str, phase: str) -> list[PhaseSlice]:
    parts = _phases(record, job_id, phase)
    return [part for part in parts if not part.cold] or parts


def _finite(value: float | None) -> float | None:
    """None in place of NaN and infinity, which a job may report and JSON does not have."""
    return value if value is not None and isfinite(value) else None


def _mean(values: Iterable[float]) -> float | None:
    items = list(values)
    return fmean(items) if items else None
