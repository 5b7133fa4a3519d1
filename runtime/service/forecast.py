"""Forecasts for the queue and for jobs that might be submitted.

They are computed on a copy of the state, in a thread: permits do not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError, Unprocessable
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.preview import Outlook, Preview, forecast_arrivals, forecast_jobs
from runtime.coordinator.decision_lines import describe_confined
from runtime.coordinator.profiles import job_as_stated, load_profile, profile_key
from runtime.jobs.spec import JobSpec
from runtime.machine import Node
from runtime.owners.http.holdups import stuck_jobs
from runtime.owners.http.ledger import Ledger

MOST_PREVIEWED = 100  # jobs at once: the time grows with their square, and is about a second for this number
_EVERY_S = 1.0  # shortest interval between forecasts of a queue that changes
_AGAIN_S = 30.0  # interval for a queue that does not change: expected departures may be late
_SHARE = 20  # forecasts take at most 1 / 20 of the time
_UNKNOWN = "it is not known yet how long its phases take: it is profiled first"

NOTHING_KNOWN = Outlook({}, {})

T = TypeVar("T")


class QueueForecast:
    """Forecasts of the queue and of possible submissions.

    Args:
        ledger: Leases of the run. The end of a job with a lost lease is unknown.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._run = ledger, ledger.run
        self._known = NOTHING_KNOWN
        self._version: tuple[Any, ...] = ()
        self._next_s = self._stale_s = 0.0
        self._of_queue, self._of_previews = asyncio.Lock(), asyncio.Lock()

    async def outlook(self) -> Outlook:
        """Return the forecasts of the jobs that wait or run.

        They may be a second old, or older if they take long to compute. Nothing is known if the policy cannot be copied.
        """
        async with self._of_queue:
            state, now_s = self._run.scheduler.state, monotonic()
            forms = bool(state.waiting) and not self._known.waiting  # a queue that has just formed is looked at at once
            if now_s < self._next_s and not forms:
                return self._known
            stuck = stuck_jobs(self._ledger)
            counts = (state.arrived, state.departed, state.rollout_nodes, state.training_nodes, len(state.months))
            version = (*counts, tuple(state.waiting), stuck, state.cluster)
            if version != self._version or now_s >= self._stale_s:
                present = bool(state.waiting or state.tables.order.size)
                look = partial(forecast_jobs, stuck=stuck, confined=describe_confined(self._run.scheduler, state.waiting))
                try:
                    self._known = await self._ahead(look) if present else NOTHING_KNOWN
                except PlanError:
                    self._known = NOTHING_KNOWN
                self._version = version
                took_s = monotonic() - now_s
                self._next_s = monotonic() + max(_EVERY_S, _SHARE * took_s)
                self._stale_s = monotonic() + _AGAIN_S
        return self._known

    async def preview(self, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
        """Return the placement or the place in the queue that each job would get if it were submitted now, in this order.

        A job without a known profile is assumed to take no nodes from the jobs after it. `rollmux_env.scheduler.preview.Preview`
        explains the keys.

        Args:
            specs: Jobs in order.

        Raises:
            Unprocessable: If a job does not fit on any node, or the policy cannot be asked; one line.
        """
        plan = self._run.plan
        jobs = [await asyncio.to_thread(_job_of, spec, plan.nodes, plan.cluster.sides) for spec in specs]
        known = [job for job in jobs if job is not None]
        for job in known:
            if problem := self._run.capacity.too_large(job):
                raise Unprocessable(f"job {job.id}: {problem}")
        async with self._of_previews:  # a separate lock: a long preview of one user does not delay forecasts of the queue
            try:
                stuck = stuck_jobs(self._ledger)
                previews = iter(await self._ahead(lambda state, policy: forecast_arrivals(state, policy, *known, stuck=stuck)))
            except PlanError as error:
                raise Unprocessable(f"job {specs[0].id}: {error}") from None
        unknown = Preview(False, None, None, None, None, {}, len(self._run.scheduler.state.waiting) + 1, None, None, _UNKNOWN)
        return [asdict(unknown if job is None else next(previews)) for job in jobs]

    async def _ahead(self, look: Callable[[State, Policy], T]) -> T:
        """Run a function in a thread, on a copy of the present state and of the policy.

        Args:
            look: Function of the state and the policy.

        Raises:
            PlanError: If the policy cannot be copied, or breaks an invariant; one line.
        """
        scheduler = self._run.scheduler
        try:
            policy = deepcopy(scheduler.planner.policy)
        except Exception as error:  # a user's class may raise anything
            raise PlanError(f"the policy cannot be copied: {type(error).__name__}") from None
        return await asyncio.to_thread(look, scheduler.planner.shown.copy(), policy)


def _job_of(spec: JobSpec, nodes: tuple[Node, ...], pools: tuple[str, ...]) -> Job | None:
    """Return a job as a policy would see it, or None if its profile is unknown.

    Args:
        spec: The job.
        nodes: All nodes of the run.
        pools: Pools of the cluster's two sides, rollout and training.
    """
    if spec.is_attached:
        return None if spec.measured_iterations else job_as_stated(spec, 0.0)
    profile = load_profile(profile_key(spec, [next(node for node in nodes if node.pool == pool) for pool in pools]))
    return profile.job(spec, 0.0) if profile is not None else None
