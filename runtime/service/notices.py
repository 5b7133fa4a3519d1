"""Notices to operators: failed, over budget, lost and overdue jobs, and quotas that are used up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rollmux_env.cluster.events import OverBudget
from rollmux_env.scheduler.quotas import is_used_up, used_words
from rollmux_env.validation_errors import one_line
from runtime.coordinator.overdue import overdue_phases
from runtime.coordinator.run_loop import RunLoop
from runtime.journal.facts import JobFailed, NodesSuspected
from runtime.journal.write import Unwritable
from runtime.service.sender import Sender

_LOOKS_S = 60.0  # interval at which phases and quotas are looked at
_OVERDUE_S = 60.0  # seconds over the worst case from which a phase is worth a notice
_LONGEST = 500  # characters of a text


class Notices:
    """Writer of the notices of a run. They are delivered when the facts behind them are on disk.

    Args:
        run: State of the run.
        senders: Sender to each kind of receiver.
    """

    def __init__(self, run: RunLoop, senders: Sequence[Sender]) -> None:
        self._run = run
        self._senders = senders
        self._pending: list[dict[str, Any]] = []
        self._known: set[tuple[str, str]] = set()  # overdue jobs and users at their limit, of which a notice was written
        if not run.handles:  # no job of this part of the journal was charged: notices were written before the roll-over
            self._known |= {("quota_reached", user) for user in self._users_at_limit()}

    def follow(self, entry: object) -> None:
        """Take a fact that was written to the journal."""
        match entry:
            case JobFailed(job_id=job_id, where=where, problem=problem):
                self._write("failed", job_id, f"failed in {where}: {problem}")
            case OverBudget(job_id=job_id):
                self._write("over_budget", job_id, "its budget is spent")
            case NodesSuspected(job_id=job_id, nodes=nodes):
                self._write("lost", job_id, f"its lease is lost; {' '.join(nodes)} may still be in use")

    async def watch(self) -> None:
        """Look at phases and quotas from time to time, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOKS_S)

    def look(self) -> None:
        """Write notices of phases that have become overdue, and of users who have used up their month."""
        run = self._run
        now: set[tuple[str, str]] = set()
        for handle in run.handles.values():
            if not handle.permits.holds:
                continue
            for one in overdue_phases(run, handle, run.log.now()):
                if one.held_s - one.worst_case_s > _OVERDUE_S:
                    now.add(("overdue", handle.id))
                    if ("overdue", handle.id) not in self._known:
                        self._write("overdue", handle.id, one.description)
        for user in self._users_at_limit():
            now.add(("quota_reached", user))
            if ("quota_reached", user) not in self._known:
                self._write("quota_reached", None, used_words(run.scheduler.state, user), user)
        self._known = now

    def _users_at_limit(self) -> list[str]:
        state = self._run.scheduler.state
        return [user for user in state.charges.users() if is_used_up(state, user)] if state.cluster.quotas else []

    def _write(self, kind: str, job_id: str | None, text: str, user: str = "") -> None:
        handle = None if job_id is None else self._run.handles.get(job_id)
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        notice = {"kind": kind, "at": at, "service": self._run.plan.folder, "job": job_id}
        notice |= {"user": user if handle is None else handle.spec.user, "text": one_line(text, _LONGEST)}
        self._pending.append(notice)
        if len(self._pending) == 1:
            self._run.spawn(self._tell())

    async def _tell(self) -> None:
        with contextlib.suppress(Unwritable):
            await self._run.durable()
        pending, self._pending = self._pending, []
        for notice in pending:
            for sender in self._senders:
                sender.put(notice)
