"""Notices to operators: failed, over budget, lost and overdue jobs, used-up quotas, and jobs that stay on drained nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from time import time
from typing import Any

from rollmux_env.cluster.events import OverBudget
from rollmux_env.scheduler.quotas import describe_usage, is_used_up
from rollmux_env.validation_errors import one_line
from runtime.coordinator.overdue import overdue_phases
from runtime.coordinator.planned_drains import PlannedDrains
from runtime.coordinator.run_loop import RunLoop
from runtime.journal.facts import JobFailed, NodesSuspected
from runtime.journal.record import RunRecord
from runtime.journal.write import Unwritable
from runtime.service.sender import Sender

_LOOKS_S = 60.0  # interval at which phases and quotas are looked at
_OVERDUE_S = 60.0  # seconds over the worst case from which a phase is worth a notice
_LONGEST = 500  # characters of a text
_Condition = tuple[tuple[str, ...], str | None, str]  # key that begins with the kind of notice, id of the job, and text


class Notices:
    """Writer of the notices of a run. They are delivered when the facts behind them are on disk.

    Args:
        run: State of the run.
        senders: Sender to each kind of receiver.
        drains: Drains with a deadline.
        before: Record of the service that this one continues, or None for a new one.
    """

    def __init__(self, run: RunLoop, senders: Sequence[Sender], drains: PlannedDrains, before: RunRecord | None = None) -> None:
        self._run = run
        self._before = before
        self._drains = drains
        self._senders = senders
        self._pending: list[dict[str, Any]] = []
        self._known: set[tuple[str, ...]] | None = None  # conditions that last, of which a notice was written

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
        """Look at phases, quotas and drains from time to time, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOKS_S)

    def look(self) -> None:
        """Write notices of overdue phases, of users who have used up their month, and of jobs that stay on a drained node."""
        now_s, now = self._run.log.now(), set[tuple[str, ...]]()
        known = {key for key, *_ in self._written(now_s)} if self._known is None else self._known
        staying = self._staying(time(), self._run.nodes.drained)
        for key, job_id, text in (*self._overdue(now_s), *self._at_limit(now_s), *staying):
            if key not in now | known:
                self._write(key[0], job_id, text, "" if job_id else key[1])
            now.add(key)
        self._known = now

    def _written(self, now_s: float) -> Iterator[_Condition]:
        """Yield the conditions of which the service that this one continues has written notices.

        The clock continues where that service ended, which had looked at most an interval before that.
        """
        if self._before is not None:
            yield from self._overdue(now_s - _LOOKS_S)
            yield from self._at_limit(now_s - _LOOKS_S)
            yield from self._staying(self._before.wall_s(self._before.last_s) - _LOOKS_S, self._before.drained_nodes)

    def _overdue(self, at_s: float) -> Iterator[_Condition]:
        for handle in self._run.handles.values():
            for one in overdue_phases(self._run, handle, at_s) if handle.permits.holds else ():
                if one.held_s - one.worst_case_s > _OVERDUE_S:
                    yield ("overdue", handle.id), handle.id, one.description

    def _at_limit(self, at_s: float) -> Iterator[_Condition]:
        state = self._run.scheduler.state
        for user in state.charges.users() if state.cluster.quotas else ():
            if is_used_up(state, user, at_s):
                yield ("quota_reached", user), None, describe_usage(state, user, at_s)

    def _staying(self, wall_s: float, drained: Collection[str]) -> Iterator[_Condition]:
        """Yield the jobs that cannot leave a node that is drained by a deadline, and after it all jobs that are on the node.

        Args:
            wall_s: Time that is compared with the deadline, in seconds since 1970.
            drained: Names of the nodes that were drained at that time.
        """
        for drain in self._drains.reports():
            node, deadline_s = drain["node"], drain["deadline_s"]
            if node in drained and deadline_s is not None:
                late = deadline_s <= wall_s
                words = f"is on {node} after its deadline" if late else f"cannot leave {node}, which is drained"
                for job_id in drain["jobs" if late else "waits_for"]:
                    yield ("drain", node, job_id, str(deadline_s), str(late)), job_id, f"{words}, {_utc(deadline_s)}"

    def _write(self, kind: str, job_id: str | None, text: str, user: str = "") -> None:
        handle = None if job_id is None else self._run.handles.get(job_id)
        at = _utc(datetime.now(UTC).timestamp())
        notice = {"kind": kind, "at": at, "service": self._run.plan.folder, "job": job_id}
        notice |= {"user": user if handle is None else handle.spec.user, "text": one_line(text, _LONGEST)}
        self._pending.append(notice)
        if len(self._pending) == 1:
            self._run.spawn(self._tell())

    async def _tell(self) -> None:
        with contextlib.suppress(Unwritable):
            await self._run.log.durable()
        pending, self._pending = self._pending, []
        for notice in pending:
            for sender in self._senders:
                sender.put(notice)


def _utc(wall_s: float) -> str:
    """Return a time in seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
