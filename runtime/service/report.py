"""What a service says of itself: all of it, or one of its jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar, get_args

from rollmux_env.scheduler.preview import Waiting
from runtime.execution.job_handle import JobHandle
from runtime.execution.run_state import RunState
from runtime.service.figures import Figures
from runtime.service.snapshot import (
    GroupView,
    JobState,
    JobView,
    state_of_job,
    take_groups,
    take_job_view,
    take_overview,
    throughput_gain,
)

STATES: tuple[str, ...] = get_args(JobState)
ENDED = ("done", "failed", "cancelled", "over_budget")
_TOGETHER = 25

T = TypeVar("T")


class Reports:
    """Looks at a run. Jobs that have ended are looked at once, however many there are.

    Args:
        run: that is looked at. figures: what is known of it.
    """

    def __init__(self, run: RunState, figures: Figures) -> None:
        self._run = run
        self._figures = figures
        self._ended: dict[str, dict[str, Any]] = {}

    async def all(self, queue: Mapping[str, Waiting]) -> dict[str, Any]:
        """Everything, as `rollmux status --format json` prints it; docs/reference/service_api.md explains the keys.

        Args:
            queue: what is known of jobs that wait.
        """
        overview = take_overview(self._run, self._figures)
        groups = [group async for group in _in_steps(take_groups(self._run))]
        positions = {job_id: position for position, job_id in enumerate(overview.queue, 1)}
        handles = (*self._run.handles.values(),)
        views = (self._job(handle, positions.get(handle.id), queue.get(handle.id)) for handle in handles)
        jobs = [job async for job in _in_steps(views)]
        counts = Counter(job["state"] for job in jobs)
        return vars(overview) | {
            "queue": [*overview.queue],
            "pools": {pool: vars(view) for pool, view in overview.pools.items()},
            "usd_per_hour_solo": sum(group.usd_per_hour_solo for group in groups),
            "throughput_gain": throughput_gain(self._run, (group for group in groups if self._is_there(group))),
            "groups": [view_report(group) for group in groups],
            "states": {state: counts.get(state, 0) for state in STATES},
            "jobs": jobs,
        }

    def _is_there(self, group: GroupView) -> bool:
        """Whether a group still has the members that it had."""
        return all(self._run.scheduler.state.is_running(job_id) for job_id in group.jobs)

    def job(self, handle: JobHandle, known: Waiting | None) -> dict[str, Any]:
        """One job.

        Args:
            known: of it, where it waits.
        """
        queue = self._run.scheduler.state.waiting
        return self._job(handle, queue.index(handle.id) + 1 if handle.id in queue else None, known)

    def states(self) -> Counter[str]:
        """How many jobs there are in every state."""
        handles = self._run.handles.values()
        ended = Counter(job["state"] for job in self._ended.values())
        return ended + Counter(state_of_job(self._run, self._figures, one) for one in handles if one.id not in self._ended)

    def _job(self, handle: JobHandle, position: int | None, known: Waiting | None) -> dict[str, Any]:
        if (ended := self._ended.get(handle.id)) is not None:
            return ended
        place = None
        if position is not None:
            reason = known.reason if known is not None else "there is no place for it now"
            place = Waiting(handle.id, position, known.eta_s if known is not None else None, reason)
        report = view_report(take_job_view(self._run, self._figures, handle, place))
        if handle.gone and report["state"] in ENDED:
            self._ended[handle.id] = report
        return report


async def _in_steps(views: Iterable[T]) -> AsyncIterator[T]:
    """Look at one thing after the other, and let others have their turn now and then: a permit is not to wait for all of them."""
    for count, look in enumerate(views, 1):
        yield look
        if count % _TOGETHER == 0:
            await asyncio.sleep(0)


def view_report(view: JobView | GroupView) -> dict[str, Any]:
    """A view as JSON has it."""
    return {key: [*value] if isinstance(value, tuple) else value for key, value in vars(view).items()}
