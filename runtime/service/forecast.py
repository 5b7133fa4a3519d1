"""What is expected of the queue, and of a job that would come: looked ahead on a copy, in a thread; no permit waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError, Unprocessable
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.preview import Preview, Waiting, preview, waiting
from runtime.coordinator.profiles import job_as_stated, load_profile, profile_key
from runtime.jobs.spec import JobSpec
from runtime.machine import Node
from runtime.owners.http.holdups import stuck_jobs
from runtime.owners.http.ledger import Ledger

MOST_PREVIEWED = 100  # jobs at once: what looking ahead takes grows with their square, and is a second or so for as many
_EVERY_S = 1.0  # between looks at a queue that changes
_AGAIN_S = 30.0  # and at one that does not: what is expected may have come later
_SHARE = 20  # looking takes at most so small a part of the time
_UNKNOWN = "nobody knows yet how long its phases take: it is profiled first"

T = TypeVar("T")


class QueueForecast:
    """Looks ahead.

    Args:
        ledger: Leases of the queue's run; when a job leaves whose lease is lost nobody knows.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._run = ledger, ledger.run
        self._known: dict[str, Waiting] = {}
        self._version: tuple[Any, ...] = ()
        self._next_s = self._stale_s = 0.0
        self._of_queue, self._of_previews = asyncio.Lock(), asyncio.Lock()

    async def waiting(self) -> Mapping[str, Waiting]:
        """What is known of the jobs that wait, by id; of the last second or more, and nothing where the policy cannot be copied."""
        async with self._of_queue:
            state, now_s = self._run.scheduler.state, monotonic()
            if now_s < self._next_s:
                return self._known
            stuck = stuck_jobs(self._ledger) if state.waiting else frozenset()
            version = (state.arrived, state.departed, state.rollout_nodes, state.training_nodes, tuple(state.waiting), stuck)
            if version != self._version or now_s >= self._stale_s:
                try:
                    expected = await self._ahead(partial(waiting, stuck=stuck)) if state.waiting else ()
                except PlanError:
                    expected = ()
                self._known, self._version = {one.job_id: one for one in expected}, version
                took_s = monotonic() - now_s
                self._next_s = monotonic() + max(_EVERY_S, _SHARE * took_s)
                self._stale_s = monotonic() + _AGAIN_S
        return self._known

    async def preview(self, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
        """What would become of jobs that came now, one after the other; `rollmux_env.scheduler.preview.Preview` explains the keys.

        A job of unknown phases counts for nothing in what would become of those after it.

        Raises:
            Unprocessable: no node could hold one, or the policy cannot be asked; one line.
        """
        plan = self._run.plan
        jobs = [await asyncio.to_thread(_job_of, spec, plan.nodes, plan.cluster.sides) for spec in specs]
        known = [job for job in jobs if job is not None]
        for job in known:
            if problem := self._run.capacity.too_large(job):
                raise Unprocessable(f"job {job.id}: {problem}")
        async with self._of_previews:  # a long one, of one user, keeps no other one from looking at the queue
            try:
                stuck = stuck_jobs(self._ledger)
                previews = iter(await self._ahead(lambda state, policy: preview(state, policy, *known, stuck=stuck)))
            except PlanError as error:
                raise Unprocessable(f"job {specs[0].id}: {error}") from None
        unknown = Preview(False, None, None, None, None, {}, len(self._run.scheduler.state.waiting) + 1, None, _UNKNOWN)
        return [asdict(unknown if job is None else next(previews)) for job in jobs]

    async def _ahead(self, look: Callable[[State, Policy], T]) -> T:
        """Look ahead from the present state.

        Raises:
            PlanError: the policy cannot be copied, or breaks an invariant; one line.
        """
        scheduler = self._run.scheduler
        try:
            policy = deepcopy(scheduler.planner.policy)
        except Exception as error:  # of a user's class
            raise PlanError(f"the policy cannot be copied: {type(error).__name__}") from None
        return await asyncio.to_thread(look, scheduler.planner.shown.copy(), policy)


def _job_of(spec: JobSpec, nodes: tuple[Node, ...], pools: tuple[str, ...]) -> Job | None:
    """A job as a policy would see it; None where nobody knows how long its phases take."""
    if spec.is_attached:
        return None if spec.measured_iterations else job_as_stated(spec, 0.0)
    profile = load_profile(profile_key(spec, [next(node for node in nodes if node.pool == pool) for pool in pools]))
    return profile.job(spec, 0.0) if profile is not None else None
