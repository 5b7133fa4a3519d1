"""Drains that begin later: at a time, or early enough for the jobs of a node to leave it by a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from time import time
from typing import Any

from rollmux_env.errors import InputError
from runtime.coordinator.node_changes import NodeChanges
from runtime.coordinator.run_loop import RunLoop
from runtime.journal.facts import DrainPlanned

_LOOKS_S = 5.0
_WRITES_S = 60.0  # allowance for checkpoints and for an iteration that takes longer than planned


class PlannedDrains:
    """The drains of a run that are to begin later.

    Args:
        run: The run.
        node_changes: Drains of nodes.

    Attributes:
        plans: Plans by name of the node.
    """

    def __init__(self, run: RunLoop, node_changes: NodeChanges) -> None:
        self._run, self._changes = run, node_changes
        self.plans: dict[str, DrainPlanned] = {}

    def recall(self, plans: Mapping[str, DrainPlanned]) -> None:
        """Continue with the plans of the run before."""
        self.plans = {**plans}

    def drain(self, name: str, starts_s: float | None = None, deadline_s: float | None = None) -> dict[str, Any]:
        """Drain a node now, or plan it.

        Args:
            name: Name of the node.
            starts_s: Latest time at which the drain begins, in seconds since 1970, or None.
            deadline_s: Time by which the jobs are to have left the node, in seconds since 1970, or None. The drain begins early
                enough for an iteration of each and its checkpoint: the longest period and a minute before.

        Returns:
            The answer of `NodeChanges.drain`, or for a later drain `drained` false, `starts_s` and `deadline_s`.

        Raises:
            InputError: If the deadline is before the start, or as in `NodeChanges.drain`; one line.
        """
        if starts_s is not None and deadline_s is not None and deadline_s < starts_s:
            raise InputError("deadline_s: is before starts_s")
        self._changes.check_drainable(name)
        plan = DrainPlanned(self._run.log.now(), name, starts_s, deadline_s)
        begins_s = self._begins_s(plan)
        if begins_s <= time() or begins_s == inf:
            return self._begin(name)
        self.plans[name] = plan
        self._run.log.write(plan)
        self._run.log.say(f"{name}: is drained from {_clock(begins_s)} on" + _until(deadline_s))
        return {"node": name, "drained": False, "starts_s": begins_s, "deadline_s": deadline_s}

    def undrain(self, name: str) -> dict[str, Any]:
        """Use a drained node again, or drop the plan to drain it. Raises as `NodeChanges.undrain` does."""
        if name not in self.plans:
            return self._changes.undrain(name)
        self._changes.check_writable()
        self._drop(name)
        self._run.log.say(f"{name}: is not going to be drained")
        return {"node": name, "drained": False}

    def reports(self) -> list[dict[str, Any]]:
        """Return node, start and deadline of each plan, by start, in seconds since 1970."""
        views = (
            {"node": name, "starts_s": self._begins_s(plan), "deadline_s": plan.deadline_s} for name, plan in self.plans.items()
        )
        return sorted(views, key=lambda view: view["starts_s"])

    async def follow(self) -> None:
        """Begin drains at their times, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOKS_S)

    def look(self) -> None:
        """Begin the drains whose time has come."""
        if self._run.stopping or self._run.log.problem is not None:
            return
        for name, plan in [*self.plans.items()]:
            if self._begins_s(plan) <= time():
                try:
                    self._begin(name)
                except InputError as error:  # it is drained already, or has gone
                    self._run.log.say(str(error))
                    self._drop(name)

    def _begin(self, name: str) -> dict[str, Any]:
        answer = self._changes.drain(name)
        if name in self.plans:
            self._drop(name)
        return answer

    def _drop(self, name: str) -> None:
        del self.plans[name]
        self._run.log.write(DrainPlanned(self._run.log.now(), name))

    def _begins_s(self, plan: DrainPlanned) -> float:
        """Return the time at which a drain begins, in seconds since 1970; infinite without start and deadline."""
        starts_s = inf if plan.starts_s is None else plan.starts_s
        return starts_s if plan.deadline_s is None else min(starts_s, plan.deadline_s - self._leave_s(plan.node))

    def _leave_s(self, name: str) -> float:
        """Return the longest time until the jobs of a node have finished an iteration and written a checkpoint, in seconds."""
        state, seats = self._run.scheduler.state, self._run.scheduler.members.seats.values()
        periods_s = (
            state.group_of(seat.job_id).period_s for seat in seats if name in seat.nodes() and state.is_running(seat.job_id)
        )
        return max(periods_s, default=0.0) + _WRITES_S


def _clock(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _until(deadline_s: float | None) -> str:
    return "" if deadline_s is None else f", so that its jobs leave it by {_clock(deadline_s)}"
