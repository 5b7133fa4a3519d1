"""What a service's jobs, groups and pools do right now: the answer to `rollmux status`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any

from runtime.execution.members import PROFILE, Runner
from runtime.execution.nodes import POOLS
from runtime.facts import Pool, Span

if TYPE_CHECKING:
    from runtime.service.service import Service

STATES = ("waiting", "profiling", "running", "moving", "stopped", "done", "failed", "cancelled")
_SPAN_S = 300.0  # that utilization is over


class Usage:
    """Node-seconds in which phases held nodes, of late; where a tail shares a node with the next rollout, each has its part of it.

    Attributes:
        since_s: when looking began.
    """

    def __init__(self) -> None:
        self.since_s = 0.0
        self._held: deque[tuple[Pool, Span]] = deque()

    def held(self, pool: Pool, spans: Iterable[Span], now_s: float) -> None:
        """A phase is over that held nodes, or parts of them."""
        self._held += ((pool, span) for span in spans)
        while self._held and self._held[0][1].until_s < now_s - _SPAN_S:
            self._held.popleft()

    def share(self, pool: Pool, nodes: int, holding: Iterable[Span], now_s: float) -> float:
        """Share of the last minutes' node-seconds of a pool.

        Args:
            nodes: all of the pool's. holding: what the phases that run have held until now.
        """
        from_s = max(self.since_s, now_s - _SPAN_S)
        spans = [*(span for held, span in self._held if held == pool), *holding]
        busy_s = sum(span.share * max(0.0, span.until_s - max(span.from_s, from_s)) for span in spans)
        return min(1.0, busy_s / (nodes * (now_s - from_s))) if nodes and now_s > from_s else 0.0


def make_report(service: Service) -> dict[str, Any]:
    """Everything, as `rollmux status --format json` prints it; docs/guides/serve.md explains the keys."""
    jobs = [_job(service, runner) for runner in service._runners.values()]
    counts = Counter(job["state"] for job in jobs)
    plan = service._plan
    return {
        "folder": plan.folder,
        "policy": plan.policy,
        "dispatch": plan.dispatch,
        "time_s": service._now(),
        "stopping": service._stopping,
        "states": {state: counts.get(state, 0) for state in STATES},
        "queue": [*service._state.waiting],
        "jobs": jobs,
        "groups": _groups(service),
        "pools": {pool: _pool(service, pool) for pool in POOLS},
        "usd_per_hour": service._state.usd_per_hour,
    }


def state_of_job(service: Service, runner: Runner) -> str:
    """One of `STATES`."""
    job_id, state = runner.spec.id, service._state
    if job_id in service.ends:
        return service.ends[job_id][0]
    if runner.gone:
        return "stopped"
    if runner.gang is not None and runner.iteration == PROFILE:
        return "profiling"
    if not state.knows(job_id) or not state.is_running(job_id):
        return "waiting"
    return "moving" if runner.moves_to is not None or state.is_paused(job_id) else "running"


def _job(service: Service, runner: Runner) -> dict[str, Any]:
    job_id, pace = runner.spec.id, service.paces.get(runner.spec.id)
    known = service._state.job(job_id) if service._state.knows(job_id) else runner.job
    iteration_s = pace.iteration_s if pace else None
    reward = service.metrics_of.get(job_id, {}).get("reward")
    return {
        "id": job_id,
        "state": state_of_job(service, runner),
        "group": runner.gang.number if runner.gang and runner.gang.number >= 0 else None,
        "nodes": sorted({node.name for nodes in runner.nodes.values() for node in nodes}) if runner.gang else [],
        "phase": runner.hold.pool if runner.hold else None,
        "iteration": max(runner.done, 0),
        "of": runner.spec.iterations,
        "iteration_s": iteration_s,
        "slowdown": iteration_s / known.solo_s if iteration_s is not None and known is not None else None,
        "slo": runner.spec.slo,
        "at_risk": job_id in service.late,
        "reward": reward if reward is not None and isfinite(reward) else None,
        "problem": service.ends.get(job_id, ("", ""))[1] or None,
    }


def _groups(service: Service) -> list[dict[str, Any]]:
    ground = service._ground
    return [
        {
            "group": group.id,
            "jobs": [*group.jobs],
            "nodes": [ground.node(group.id, "rollout", number).name for number in group.rollout_nodes]
            + [ground.node(group.id, "training", number).name for number in range(group.training_nodes)],
            "period_s": group.period_s,
            "usd_per_hour": group.usd_per_hour,
        }
        for group in service._state.group_list()
    ]


def _pool(service: Service, pool: Pool) -> dict[str, Any]:
    nodes, now_s = service._ground.nodes(pool), service._now()
    holding = [
        span
        for runner in service._runners.values()
        if runner.hold is not None and service._pool_of(runner, runner.hold.pool) == pool
        for span in service.held(runner, now_s)
    ]
    busy, free = len({span.node for span in holding if span.until_s == now_s}), len(service._ground.free(pool))
    return {
        "nodes": len(nodes),
        "busy": busy,
        "idle": len(nodes) - free - busy,
        "free": free,
        "utilization": service.usage.share(pool, len(nodes), holding, now_s),
    }
