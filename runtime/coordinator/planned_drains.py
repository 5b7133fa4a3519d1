"""Drains that begin later: at a time, or early enough for the jobs of a node to leave it by a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import inf
from time import time
from typing import Any

from rollmux_env.errors import InputError
from runtime.coordinator.node_changes import NodeChanges
from runtime.coordinator.run_loop import RunLoop
from runtime.coordinator.run_state import RunState
from runtime.journal.facts import DrainPlanned

_LOOKS_S = 5.0
_WRITES_S = 60.0  # allowance for an iteration and a checkpoint that take longer than the last ones


def leave_by_s(run: RunState, names: Collection[str]) -> float | None:
    """Return the first deadline of the drains of some nodes, in seconds since 1970, or None if there is none.

    Args:
        run: State of the run.
        names: Names of the nodes.
    """
    plans = (plan for name, plan in run.drain_plans.items() if name in names)
    return min((plan.deadline_s for plan in plans if plan.deadline_s is not None), default=None)


class PlannedDrains:
    """The drains of a run that begin later, or by whose deadline jobs have to have left a node.

    Args:
        run: The run.
        node_changes: Drains of nodes.
    """

    def __init__(self, run: RunLoop, node_changes: NodeChanges) -> None:
        self._run, self._changes = run, node_changes
        self._logged: set[str] = set()  # nodes of which a line says that jobs held them after the deadline

    def recall(self, plans: Mapping[str, DrainPlanned]) -> None:
        """Continue with the plans of the run before."""
        self._run.drain_plans.update(plans)

    def drain(self, name: str, starts_s: float | None = None, deadline_s: float | None = None) -> dict[str, Any]:
        """Drain a node now, or plan it.

        Args:
            name: Name of the node.
            starts_s: Latest time at which the drain begins, in seconds since 1970, or None.
            deadline_s: Time by which the jobs are to have left the node, in seconds since 1970, or None. The drain begins early
                enough for an iteration of each and its checkpoint. The owners of attached jobs learn the deadline at once.

        Returns:
            The answer of `NodeChanges.drain`, or for a later drain `drained` false, `starts_s`, `deadline_s`, and `waits_for`, ids
            of jobs that cannot leave before their end.

        Raises:
            InputError: If the deadline is before the start, or as in `NodeChanges.drain`; one line.
        """
        if starts_s is not None and deadline_s is not None and deadline_s < starts_s:
            raise InputError("deadline_s: is before starts_s")
        self._changes.check_drainable(name)
        plan = DrainPlanned(self._run.log.now(), name, starts_s, deadline_s)
        starts_at_s = self._start_s(plan)
        is_later = time() < starts_at_s < inf
        if is_later or deadline_s is not None:
            self._run.drain_plans[name] = plan
            self._run.log.write(plan)
        if not is_later:
            return self._begin(name)
        waits_for = self._changes.staying_on(name)
        line = f"{name}: is drained from {_format_time(starts_at_s)} on{_format_deadline(deadline_s)}"
        self._run.log.say(f"{line}; {', '.join(waits_for)} cannot leave it" if waits_for else line)
        return {"node": name, "drained": False, "starts_s": starts_at_s, "deadline_s": deadline_s, "waits_for": waits_for}

    def undrain(self, name: str) -> dict[str, Any]:
        """Use a drained node again, or drop the plan to drain it. Raises as `NodeChanges.undrain` does."""
        if name not in self._run.drain_plans:
            return self._changes.undrain(name)
        self._changes.check_writable()
        self._drop(name)
        if name in self._run.nodes.drained:
            return self._changes.undrain(name)
        self._run.log.say(f"{name}: is not going to be drained")
        return {"node": name, "drained": False}

    def reports(self) -> list[dict[str, Any]]:
        """Return the plans, and the drains that wait for jobs: those that have begun first, and then by start.

        Returns:
            For each `node`; `starts_s`, in seconds since 1970, or None once it has begun; `deadline_s`, or None; `jobs`, ids
            of the jobs on the node; `waits_for`, ids of those that cannot leave before their end; and `overdue`, whether jobs are
            on the node after the deadline.
        """
        drained = [DrainPlanned(0.0, name) for name in sorted(self._run.nodes.drained - self._run.drain_plans.keys())]
        views = [self._report(plan) for plan in self._run.drain_plans.values()]
        views += [view for view in map(self._report, drained) if view["jobs"]]
        return sorted(views, key=lambda view: view["starts_s"] or 0.0)

    def _report(self, plan: DrainPlanned) -> dict[str, Any]:
        name = plan.node
        return {
            "node": name,
            "starts_s": None if name in self._run.nodes.drained else self._start_s(plan),
            "deadline_s": plan.deadline_s,
            "jobs": self._changes.jobs_on(name),
            "waits_for": self._changes.staying_on(name),
            "overdue": bool(self._late(plan)),
        }

    async def follow(self) -> None:
        """Begin drains at their times, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOKS_S)

    def look(self) -> None:
        """Begin the drains whose time has come, and log which jobs hold a node after its deadline."""
        run = self._run
        if run.stopping or run.log.problem is not None:
            return
        for name, plan in [*self._run.drain_plans.items()]:
            if name not in run.nodes.drained:
                self._look_at_start(plan)
            elif name not in self._logged and (jobs := self._late(plan)):
                self._logged.add(name)
                run.log.say(f"{name}: is held by {', '.join(jobs)} after its deadline, {_format_time(plan.deadline_s or 0.0)}")

    def _look_at_start(self, plan: DrainPlanned) -> None:
        if self._start_s(plan) > time():
            return
        try:
            self._begin(plan.node)
        except InputError as error:  # the node has gone
            self._run.log.say(str(error))
            self._drop(plan.node)

    def _begin(self, name: str) -> dict[str, Any]:
        answer = self._changes.drain(name)
        if name in self._run.drain_plans and self._run.drain_plans[name].deadline_s is None:
            self._drop(name)
        return answer

    def _drop(self, name: str) -> None:
        del self._run.drain_plans[name]
        self._logged.discard(name)
        self._run.log.write(DrainPlanned(self._run.log.now(), name))

    def _late(self, plan: DrainPlanned) -> list[str]:
        """Return the ids of jobs that are on a drained node after the deadline."""
        is_late = plan.node in self._run.nodes.drained and plan.deadline_s is not None and plan.deadline_s <= time()
        return self._changes.jobs_on(plan.node) if is_late else []

    def _start_s(self, plan: DrainPlanned) -> float:
        """Return the time at which a drain begins, in seconds since 1970; infinite without start and deadline."""
        starts_s = inf if plan.starts_s is None else plan.starts_s
        return starts_s if plan.deadline_s is None else min(starts_s, plan.deadline_s - self._vacating_s(plan.node))

    def _vacating_s(self, name: str) -> float:
        """Return the longest time until the jobs of a node have finished an iteration and written a checkpoint, in seconds."""
        return max(map(self._vacating_of_job_s, self._changes.jobs_on(name)), default=0.0) + _WRITES_S

    def _vacating_of_job_s(self, job_id: str) -> float:
        run, handle = self._run, self._run.handles[job_id]
        if run.scheduler.state.is_running(job_id):
            return run.scheduler.state.group_of(job_id).period_s + handle.checkpoints.seconds
        longest_s, left = handle.profile.longest_s, handle.spec.measured_iterations - handle.iteration
        if left > 0 and {"rollout", "training"} <= longest_s.keys():
            return left * sum(longest_s.values())
        return run.plan.timeouts.profile_s  # nothing is known of a job before it is measured


def _format_time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _format_deadline(deadline_s: float | None) -> str:
    return "" if deadline_s is None else f", so that its jobs leave it by {_format_time(deadline_s)}"
