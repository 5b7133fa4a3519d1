"""Reports of a service: its jobs, groups and pools, while it runs, or from its journal when it does not run.

docs/reference/service_api.md explains the keys. Tables, JSON, the page and metrics are made from these reports.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from rollmux_client import ENDED

from rollmux_env.cluster.demand import demand_of, solo_usd_per_hour
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.replay.completion import hours_of
from rollmux_env.replay.stays import StayTimes, stays_of
from rollmux_env.report.job_shapes import shape_in_use
from rollmux_env.scheduler.order import QueueRules
from rollmux_env.scheduler.preview import Outlook, WaitForecast
from rollmux_env.scheduler.ranking import Ranking
from rollmux_env.scheduler.review import Pace
from runtime.coordinator.decision_lines import describe_reserved
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.overdue import Overdue, overdue_phases
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import JobSpec
from runtime.journal.facts import NodeShareSpan
from runtime.journal.write import read_run, state_of
from runtime.machine import Pool
from runtime.machines.nodes import POOLS
from runtime.owners.http.holdups import holdup, queue_holdup
from runtime.owners.http.ledger import Ledger
from runtime.service.address import continuing
from runtime.service.figures import RunFigures, ends_of, held_spans
from runtime.service.quotas import quotas_of, user_reports
from runtime.standstill import gap_warning

STATES = ("waiting", "parked", "profiling", "running", "moving", "lost", "stopped", "done", "over_budget", "failed", "cancelled")
WAIT = ("waiting", "parked")  # states of jobs without nodes
_TOGETHER = 25

T = TypeVar("T")


def _described(
    spec: JobSpec, name: str, problem: str | None, job: Job | None, iteration: int, metrics: Mapping[str, float], cluster: Cluster
) -> dict[str, Any]:
    """Return the report of a job; keys that need a placement or a place in the queue are None or empty.

    Args:
        spec: The job.
        name: Name of its state.
        problem: Line about a problem, or None.
        job: The job as the policy sees it, or None if its profile is unknown.
        iteration: Number of completed iterations.
        metrics: Metrics of the last iteration.
        cluster: Cluster, for prices.
    """
    return {
        "id": spec.id,
        "user": spec.user,
        "priority": spec.priority,
        "state": name,
        "reason": None,
        "position": None,
        "key": None,
        "eta_s": None,
        "done_eta_s": None,
        "ended_s": None,
        "completion_h": None,
        "queue_h": None,
        "parks": 0,
        "group": None,
        "nodes": [],
        "phase": None,
        "iteration": iteration,
        "iterations": spec.iterations,
        "iteration_s": None,
        "alone_s": job.solo_s if job is not None else None,
        "slowdown": None,
        "slo": spec.slo,
        "usd_per_hour": None,
        "usd_per_hour_solo": solo_usd_per_hour(job, cluster) if job is not None else None,
        "at_risk": False,
        "overdue": None,
        "usd": 0.0,
        "metrics": {key: value if isfinite(value) else None for key, value in metrics.items()},
        "profile": profile_of(job) if job is not None else None,
        "problem": problem,
    }


def profile_of(job: Job, shape: int = 0, training_nodes: int | None = None) -> dict[str, float]:
    """Return the seconds by which a job is planned: worst cases of the phases, the sync, and an iteration alone on its own nodes.

    Args:
        job: The job.
        shape: Number of its shape. It is in the result if the job has several shapes.
        training_nodes: Training nodes of its group, or None for those that the job asks for.
    """
    planned = shape_in_use(job, shape, training_nodes)
    seconds = {f"{phase}_s": worst_case_s for phase, worst_case_s in planned.worst_case_s.items()}
    return seconds | {"sync_s": job.sync_s, "solo_s": job.solo_s, **({"shape": shape} if job.shapes else {})}


def _counts(jobs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of jobs in each state."""
    counts = Counter(job["state"] for job in jobs)
    return {name: counts[name] for name in STATES}


def past_report(folder: Path) -> dict[str, Any]:
    """Return the report of a service that does not run: the keys of `Reports.all`, and `ended`, `ended_at` and `continue`.

    `ended` is `stopped`, `done` (a run that was over), `rolled over` (the journal's next part has not begun) or `killed` (the
    journal does not say that it ended). `ended_at` is the time of the end, or the last time in the journal, in ISO 8601 and local
    time. `continue` is the command that continues the service.

    Args:
        folder: Folder of the service.

    Raises:
        InputError: If there is no journal, or it cannot be read; one line.
    """
    record = read_run(folder)
    state, ends, known, jobs = state_of(record), ends_of(record), record.jobs, list[dict[str, Any]]()
    planned = record.planned_drains.values()
    stays = stays_of(record.log)
    for spec in (fact.spec for fact in record.submitted):
        running = state.knows(spec.id) and state.is_running(spec.id)
        end = ends.get(spec.id)
        name, problem = end[:2] if end is not None else ("stopped" if running else _waits(state, spec.id), "")
        metrics, done = record.metrics.get(spec.id, {}), record.done[spec.id]
        job = _described(spec, name, problem or None, known.get(spec.id), done, metrics, record.started.cluster)
        job |= {"usd": _charged_usd(state, spec.id, state.now_s), "ended_s": None if end is None else end.at_s}
        jobs.append(job | _waited(stays, spec.id, record.last_s, end is not None))
    return {
        "folder": str(folder.resolve()),
        "policy": record.started.policy,
        "dispatch": record.started.dispatch,
        "now_s": record.last_s,
        "stopping": False,
        "paused": None,
        "ended": record.ended.outcome if record.ended else "killed",
        "ended_at": datetime.fromtimestamp(record.wall_s(record.last_s)).astimezone().isoformat(timespec="seconds"),
        "continue": continuing(folder.resolve()),
        "states": _counts(jobs),
        "queue": [*state.waiting],
        "order": None,
        "completion": completion_of_ended(jobs, state),
        "users": [
            *user_reports(state, Counter(fact.spec.user for fact in record.submitted if fact.spec.id not in ends), state.now_s)
        ],
        "drains": [
            {"node": plan.node, "starts_s": plan.starts_s, "deadline_s": plan.deadline_s}
            | {"jobs": [], "waits_for": [], "overdue": False}
            for plan in planned
        ],
        "quotas": quotas_of(state.cluster),
        "jobs": jobs,
        "groups": [],
        "pools": {},
        "usd_per_hour": 0.0,
        "usd_per_hour_solo": 0.0,
        "throughput_gain": None,
    }


def _waits(state: State, job_id: str) -> str:
    """Return the state, one of `WAIT`, of a job without nodes."""
    return "parked" if job_id in state.stays.parked else "waiting"


def _waited(stays: StayTimes, job_id: str, now_s: float, over: bool) -> dict[str, Any]:
    """Return the completion, the time without a place and the parks of a job that has arrived, as in replays.

    Args:
        stays: Stays of all jobs.
        job_id: Id of the job.
        now_s: Present time, in seconds of the run's clock.
        over: Whether the job has ended; only then it has a completion.
    """
    if job_id not in stays.arrived_s:
        return {}
    times = stays.times(job_id, stays.departed_s.get(job_id, now_s) if over else now_s, 0.0)
    return {"completion_h": times.completion_h if over else None, "queue_h": times.queue_h, "parks": times.parks}


def completion_of_ended(jobs: Iterable[Mapping[str, Any]], state: State) -> dict[str, float] | None:
    """Return the hours of completion and of waiting of the jobs that are done, by the names of `figures` in results, or None."""
    done = [job for job in jobs if job["state"] in ("done", "over_budget") and job["completion_h"] is not None]
    if not done:
        return None
    weights = [state.job(job["id"]).weight if state.knows(job["id"]) else 1.0 for job in done]
    return {"jobs": len(done), **hours_of([job["completion_h"] for job in done], [job["queue_h"] for job in done], weights)}


def _order_of(rules: QueueRules | None) -> dict[str, Any] | None:
    """Return the order by which the queue is served, or None for first come, first served."""
    if rules is None:
        return None
    return {"name": rules.name, "unit": rules.unit, "backfill": rules.backfill, "park": rules.park}


def _charged_usd(state: State, job_id: str, now_s: float) -> float:
    if state.knows(job_id):
        return state.charges.usd(state.row(job_id), now_s)
    lent = state.charges.lent_charges(job_id, now_s)
    return 0.0 if lent is None else lent.usd


class Reports:
    """Reports of a run. The report of a job that has ended is computed once.

    Args:
        ledger: Leases of the run.
        figures: Observer of the run.
    """

    def __init__(self, ledger: Ledger, figures: RunFigures) -> None:
        self._ledger = ledger
        self._run = ledger.run
        self._figures = figures
        self._ended: dict[str, dict[str, Any]] = {}

    async def all(self, outlook: Outlook) -> dict[str, Any]:
        """Return the report of all jobs, groups and pools, as `rollmux status --format json` prints it.

        Args:
            outlook: Forecasts of the jobs that wait or run.
        """
        run, state = self._run, self._run.scheduler.state
        plan, planner = run.plan, run.scheduler.planner
        ranking = planner.ranking
        head = {
            "folder": plan.folder,
            "policy": plan.policy,
            "dispatch": plan.dispatch,
            "now_s": run.log.now(),
            "stopping": run.stopping,
            "paused": run.log.problem,
            "queue": ranking.queue,
            "order": _order_of(planner.rules),
            "users": [*user_reports(state, self._present(), run.log.now())],
            "quotas": quotas_of(state.cluster),
            "pools": self.pools(),
            "usd_per_hour": state.usd_per_hour,
        }
        groups = [group async for group in in_steps(groups_of(run))]
        turns = self._turns(ranking)
        views = (self._job(handle, turns.get(handle.id), outlook) for handle in (*run.handles.values(),))
        jobs = [job async for job in in_steps(views)]
        present = (group for group in groups if all(map(state.is_running, group["jobs"])))  # jobs may have ended in between
        return head | {
            "usd_per_hour_solo": sum(group["usd_per_hour_solo"] for group in groups),
            "throughput_gain": throughput_gain(run, present),
            "groups": groups,
            "completion": completion_of_ended(jobs, state),
            "states": _counts(jobs),
            "jobs": jobs,
        }

    def _present(self) -> Counter[str]:
        """Return the number of jobs that wait or run, by user."""
        return Counter(handle.spec.user for handle in self._run.handles.values() if not handle.life.is_gone)

    def job(self, handle: JobHandle, outlook: Outlook) -> dict[str, Any]:
        """Return the report of one job.

        Args:
            handle: The job.
            outlook: Forecasts of the jobs that wait or run.
        """
        return self._job(handle, self._turns(self._run.scheduler.planner.ranking).get(handle.id), outlook)

    def _turns(self, ranking: Ranking) -> dict[str, tuple[int, float | None]]:
        """Return the position in the queue, from 1, and the key in the order's unit of each waiting job."""
        rules, state = self._run.scheduler.planner.rules, self._run.scheduler.state
        keys = {} if rules is None else {job_id: rules.shown(key, state) for job_id, key in ranking.keys.items() if isfinite(key)}
        return {job_id: (position, keys.get(job_id)) for position, job_id in enumerate(ranking.queue, 1)}

    def states(self) -> Counter[str]:
        """Return the number of jobs in each state."""
        ended = Counter(job["state"] for job in self._ended.values())
        return ended + Counter(self.state_of(one) for one in self._run.handles.values() if one.id not in self._ended)

    def write_gauges(self) -> None:
        """Write what the run's pools, queue, leases and jobs are like now into the metrics."""
        run, metrics = self._run, self._figures.metrics
        for pool, view in self.pools().items():
            for state in ("busy", "idle", "free", "suspect", "draining"):
                metrics.write("rollmux_nodes", view[state], pool=pool, state=state)
            metrics.write("rollmux_pool_utilization", view["utilization"], pool=pool)
        metrics.write("rollmux_queue_length", len(run.scheduler.state.waiting))
        metrics.write("rollmux_usd_per_hour", run.scheduler.state.usd_per_hour)
        metrics.write("rollmux_suspect_nodes", len(self._ledger.suspect_nodes()))
        metrics.write("rollmux_paused", float(run.log.problem is not None))
        metrics.write("rollmux_stopping", float(run.stopping))
        holding = (handle for handle in run.handles.values() if handle.permits.holds)
        now_s = run.log.now()
        self._figures.overdue({handle.id: [*overdue_phases(run, handle, now_s)] for handle in holding})
        metrics.keep_jobs({handle.id for handle in run.handles.values() if not handle.life.is_gone})
        states = self.states()
        for name in STATES:
            metrics.write("rollmux_jobs", states[name], state=name)

    def state_of(self, handle: JobHandle) -> str:
        """Return the state of a job, one of `STATES`."""
        state = self._run.scheduler.state
        if handle.life.is_gone:
            return "stopped" if (end := self._figures.ends.get(handle.id)) is None else end.state
        if handle.id in self._ledger.suspected:
            return "lost"
        if handle.place.group is not None and handle.iteration == PROFILE:
            return "profiling"
        if not state.is_running(handle.id):
            return _waits(state, handle.id)
        return "moving" if self._run.must_leave(handle) or state.is_paused(handle.id) else "running"

    def _job(self, handle: JobHandle, turn: tuple[int, float | None] | None, outlook: Outlook) -> dict[str, Any]:
        if (ended := self._ended.get(handle.id)) is not None:
            return ended
        run, job_id, state = self._run, handle.id, self._run.scheduler.state
        job, name = state.job(job_id) if state.knows(job_id) else handle.job, self.state_of(handle)
        metrics = self._figures.reported.get(job_id, {})
        done = handle.iteration if handle.spec.is_attached else max(handle.counts.done, 0)
        report = _described(handle.spec, name, self._problem(handle), job, done, metrics, run.plan.cluster)
        report |= {"phase": handle.permits.phase, "usd": _charged_usd(state, job_id, run.log.now())} | self._pace(job_id, job)
        report |= _waited(self._figures.stays, job_id, run.log.now(), handle.life.is_gone)
        if turn is not None:
            report |= {"position": turn[0], "key": turn[1]}
        if not handle.life.is_gone:
            report |= self._prospects(handle, name, turn is not None, outlook)
        report |= self._place(handle, job)
        if handle.life.is_gone and name in ENDED:
            report["ended_s"] = self._figures.ends[job_id].at_s
            self._ended[job_id] = report
        return report

    def _prospects(self, handle: JobHandle, name: str, queued: bool, outlook: Outlook) -> dict[str, Any]:
        """Return what is expected of a job that has not ended, and what holds it up.

        Args:
            handle: The job.
            name: Name of its state.
            queued: Whether it has a position in the queue.
            outlook: Forecasts of the jobs that wait or run.
        """
        known = outlook.waiting.get(handle.id)
        return {
            "eta_s": known.eta_s if known is not None and queued else None,
            "done_eta_s": outlook.done_s.get(handle.id),
            "reason": self._reason(handle, queued, known) if name in WAIT else holdup(self._ledger, handle),
            "overdue": next((_described_overdue(one) for one in overdue_phases(self._run, handle, self._run.log.now())), None),
        }

    def _place(self, handle: JobHandle, job: Job | None) -> dict[str, Any]:
        """Return the group and nodes of a job that has some; if it is placed for good, also its price and planned times."""
        place, state = handle.place, self._run.scheduler.state
        report: dict[str, Any] = {}
        if place.group is not None:
            names = {node.name for nodes in place.nodes.values() for node in nodes}
            report |= {"group": place.group if place.group >= 0 else None, "nodes": sorted(names)}
        if job is not None and state.is_running(handle.id):
            group = state.group_of(handle.id)
            report["usd_per_hour"] = group.usd_per_hour / len(group.jobs)
            report["profile"] = profile_of(job, state.shape(handle.id), group.training_nodes or None)
        return report

    def _pace(self, job_id: str, job: Job | None) -> dict[str, Any]:
        """Return the recent iteration time of a job, the slowdown, and whether the SLO is at risk."""
        pace, review = _pace(self._run, job_id), self._run.scheduler.review
        iteration_s = pace.iteration_s if pace is not None else None
        return {
            "iteration_s": iteration_s,
            "slowdown": iteration_s / job.solo_s if iteration_s is not None and job is not None else None,
            "at_risk": review is not None and job_id in review.late,
        }

    def _reason(self, handle: JobHandle, queued: bool, known: WaitForecast | None) -> str:
        """Return the reason why a job waits, as a line."""
        if queued:
            parked = self._run.scheduler.state.stays.parked.get(handle.id)
            words = known.reason if known else f"parked{parked.words}" if parked else ""
            holdups = describe_reserved(self._run.scheduler, handle.id), queue_holdup(self._ledger)
            return "; ".join(filter(None, (words, *holdups))) or "there is no place for it now"
        if handle.place.awaits_owner:
            return "it waits for its owner to attach"
        if reason := self._run.scheduler.guests.quota_reason(handle.id, self._run.scheduler.state):
            return f"it waits to be profiled: {reason}"
        if handle.spec.arrival_s > self._run.log.now():
            return "it has not arrived yet"
        return "it arrives when those that came with it are profiled too" if handle.job is not None else "it waits to be profiled"

    def _problem(self, handle: JobHandle) -> str | None:
        if handle.life.is_gone:
            return None if (end := self._figures.ends.get(handle.id)) is None else end.problem or None
        if handle.checkpoints.disk_problem is not None:
            return f"its checkpoint cannot be written: {handle.checkpoints.disk_problem}"
        metrics = self._figures.reported.get(handle.id, {})
        return handle.resident_state.excess or gap_warning(metrics, handle.spec.top_p)

    def pools(self) -> dict[Pool, dict[str, Any]]:
        """Return the number of nodes of each pool in each condition, and its utilization.

        `busy` nodes run a phase. `idle` nodes belong to a group and run none. `free` nodes belong to no group. `suspect` nodes may
        still be used by lost leases. `draining` nodes are drained, whether or not they are still in use.
        """
        return {pool: self._pool(pool, self._run.log.now()) for pool in POOLS}

    def _pool(self, pool: Pool, now_s: float) -> dict[str, Any]:
        run = self._run
        nodes, suspects = run.nodes.nodes(pool), self._ledger.suspect_nodes().keys()
        drained = run.nodes.drained - suspects
        free = sum(node.name not in suspects for node in run.nodes.free(pool))
        holding: list[NodeShareSpan] = []
        for handle in run.handles.values():
            if handle.permits.holds:
                names = {node.name for phase in handle.permits.holds for node in handle.place.nodes_of(phase) if node.pool == pool}
                holding += (span for span in held_spans(run, handle, now_s) if span.node in names)
        draining = sum(node.name in drained for node in nodes)
        suspect = sum(node.name in suspects for node in nodes)
        busy = len({span.node for span in holding if span.until_s == now_s} - drained - suspects)
        return {
            "nodes": len(nodes),
            "busy": busy,
            "idle": len(nodes) - free - busy - suspect - draining,
            "free": free,
            "suspect": suspect,
            "draining": draining,
            "utilization": self._figures.usage.share(pool, len(nodes), holding, now_s),
        }


def _described_overdue(one: Overdue) -> dict[str, Any]:
    return {"phase": one.phase, "nodes": [*one.nodes], "held_s": one.held_s, "worst_case_s": one.worst_case_s}


def groups_of(run: RunState) -> Iterator[dict[str, Any]]:
    """Yield the report of each group: its nodes, its period in seconds, its price, and the price of all members alone, in $/h."""
    state, names = run.scheduler.state, run.nodes.assigned_by_group()
    for group in state.group_list():
        yield {
            "id": group.id,
            "jobs": [*group.jobs],
            "nodes": [*names.get(group.id, ())],
            "period_s": group.period_s,
            "usd_per_hour": group.usd_per_hour,
            "usd_per_hour_solo": sum(solo_usd_per_hour(state.job(job_id), run.plan.cluster) for job_id in group.jobs),
        }


def throughput_gain(run: RunState, groups: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the recent work per node-hour, as a multiple of that of the same jobs alone (solo).

    An iteration is worth the node-seconds that it takes alone: recent times of its phases without waits, or its profile, a worst
    case, while these are unknown.

    Args:
        run: State of the run.
        groups: Reports of groups. Only groups count in which the recent iteration time of every member is known.

    Returns:
        The multiple, or None if no group counts.
    """
    worth = nodes = 0.0
    for group in groups:
        jobs = [run.scheduler.state.job(job_id) for job_id in group["jobs"]]
        speeds = [speed for job in jobs if (speed := _speed(run, job))]
        if len(speeds) == len(jobs):
            demands = (demand_of(job, run.plan.cluster) for job in jobs)
            worth += sum(
                (demand.rollout_nodes + demand.training_nodes) * speed for demand, speed in zip(demands, speeds, strict=True)
            )
            nodes += len(group["nodes"])
    return worth / nodes if nodes else None


def _speed(run: RunState, job: Job) -> float | None:
    """Return the recent speed of a job as a multiple of its speed alone, or None if it is not known yet."""
    pace = _pace(run, job.id)
    if pace is None or not pace.iteration_s:
        return None
    return (pace.alone_s(job, run.scheduler.state.shape(job.id)) or job.solo_s) / pace.iteration_s


def _pace(run: RunState, job_id: str) -> Pace | None:
    review = run.scheduler.review
    return review.paces.get(job_id) if review is not None else None


async def in_steps(views: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let other tasks run after every few of them: a permit must not wait for a whole report."""
    for count, look in enumerate(views, 1):
        yield look
        if count % _TOGETHER == 0:
            await asyncio.sleep(0)
