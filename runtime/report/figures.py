"""The figures of a run, from its record alone.

Warm iterations are all but a job's first in a run, which starts cold; where a job did only one, that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.cluster.events import Admitted
from rollmux_env.replay.metrics import charged_usd_per_hour
from rollmux_env.report.lanes import POOLS, Lane, follow, shares
from runtime.journal.facts import Iteration
from runtime.journal.record import RunRecord
from runtime.journal.write import state_of
from runtime.report.dollars import charged_by, dollars_of, lane_usd, solo_usd
from runtime.report.measured import PHASES, finite, iteration_s, job_ids, mean, phases_of, solo_seconds, warm_phases
from runtime.report.shapes_used import shapes_used
from runtime.report.shared_time import group_figures, shared_times, throughput
from runtime.report.switches import permits_ms, switches
from runtime.stays import Stay, stays_of

REWARD, EVAL_REWARD = "reward", "eval_reward"


def figures(record: RunRecord) -> dict[str, Any]:
    """All figures of a run, as `results.json` has them; docs/reference/runs.md defines them. None: not measured."""
    lanes, _ = follow(record.started.cluster, record.log)
    span_s = _span(record)
    charged = charged_usd_per_hour(record.log, state_of(record))
    stays = stays_of(record) if any(job.shapes for job in record.jobs.values()) else {}
    jobs = {job_id: _job(record, job_id, stays.get(job_id, ())) for job_id in job_ids(record)}
    return {
        "policy": record.started.policy,
        "dispatch": record.started.dispatch,
        "outcome": record.ended.outcome if record.ended else "killed",
        "seconds": span_s[1],
        "versions": record.started.versions,
        "nodes": [{"name": node.name, "pool": node.pool, "device": node.device} for node in record.started.nodes],
        "jobs": {job_id: job | dollars_of(record, job_id, charged) for job_id, job in jobs.items()},
        "usd": sum(lane_usd(record, lane) for lane in lanes),
        "usd_solo": solo_usd(record),
        "pools": {pool: _pool(record, lanes, pool, span_s) for pool in POOLS},
        "groups": [group_figures(record, lanes, shared) for shared in shared_times(record)],
        "throughput": throughput(record, lanes),
        "switches": {job_id: switches(record, job_id) for job_id in job_ids(record)},
        "permit_ms": permits_ms(record),
        "syncs": _syncs(record),
        **charged_by(record),
    }


def _span(record: RunRecord) -> tuple[float, float]:
    """From the first admission to the last thing that happened, seconds."""
    admitted = [event.at_s for event in record.log if isinstance(event, Admitted)]
    last = [record.ended.at_s] if record.ended else [part.end_s for part in record.phases]
    return min(admitted, default=0.0), max([*last, *(event.at_s for event in record.log[-1:])], default=0.0)


def _job(record: RunRecord, job_id: str, stays: Sequence[Stay]) -> dict[str, Any]:
    job, iterations = record.jobs.get(job_id), record.iterations_of(job_id)
    alone = solo_seconds(record, job_id)
    alone_s = mean(alone)
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
        "reward_first": finite(mean(rewards[:tenth])),
        "reward_last": finite(mean(rewards[-tenth:])),
        "eval_reward_first": finite(evaluations[0]) if evaluations else None,
        "eval_reward_last": finite(evaluations[-1]) if evaluations else None,
        "iteration_s": own_s,
        "solo_iteration_s": alone_s,
        "solo_half_width_s": mean_interval(alone).half_width if alone else None,
        "solo_iterations": len(alone),
        "profiled_iteration_s": job.solo_s if job else None,
        "slowdown": own_s / alone_s if own_s and alone_s else None,
        "slo": job.slo if job else None,
        **({"staleness": job.staleness, "staleness_max": _oldest(iterations)} if job and job.staleness else {}),
        **({"shapes": shapes} if shapes else {}),
        "worst_case_s": {phase: getattr(job, phase).worst_case_s for phase in PHASES} if job else None,
        "phase_s": {phase: mean(part.end_s - part.start_s for part in warm_phases(record, job_id, phase)) for phase in PHASES},
        "waits_s": {phase: mean(part.start_s - part.asked_s for part in warm_phases(record, job_id, phase)) for phase in PHASES},
        "restarts": sum(fact.job_id == job_id for fact in record.restarted),
        "repeated": sum(done.job_id == job_id for done in record.repeated),
        "checkpoint_s": mean(checkpoint.seconds for checkpoint in record.checkpointed if checkpoint.job_id == job_id),
        "checkpoint_gb": mean(checkpoint.gb for checkpoint in record.checkpointed if checkpoint.job_id == job_id),
        "host_gb": {phase: max((part.host_gb for part in phases_of(record, job_id, phase)), default=None) for phase in PHASES},
        "device_gb": {phase: max((part.device_gb for part in phases_of(record, job_id, phase)), default=None) for phase in PHASES},
    }


def _oldest(iterations: Sequence[Iteration]) -> float | None:
    """By how many versions the oldest sample was behind when it was trained; None where the job does not say."""
    both = [done.metrics for done in iterations if {"trained_version", "sampled_version"} <= done.metrics.keys()]
    return max((metrics["trained_version"] - metrics["sampled_version"] for metrics in both), default=None)


def _pool(record: RunRecord, lanes: Sequence[Lane], pool: str, span_s: tuple[float, float]) -> dict[str, float] | None:
    """Shares of the pool's provisioned node-seconds."""
    split = shares(record.phase_runs(), [lane for lane in lanes if lane.pool == pool], *span_s)
    return split._asdict() if split else None


def _syncs(record: RunRecord) -> dict[str, Any]:
    own = [sync for sync in record.syncs if not sync.profile]
    return {
        "count": len(own),
        "mean_s": mean(sync.end_s - sync.start_s for sync in own),
        "beside_others": sum(bool(sync.beside) for sync in own),
    }
