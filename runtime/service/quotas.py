"""Quotas and usage of a service's users: quotas are set while it runs, checked at submissions, and reported.

What users may hold at once and in a month is checked by the scheduler at every decision (`rollmux_env.scheduler.quotas`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from time import time
from typing import Any

from rollmux_env.cluster.apply import change
from rollmux_env.cluster.events import Ticked
from rollmux_env.cluster.months import month_of
from rollmux_env.cluster.state import State
from rollmux_env.errors import Stopping, TooMany, Unprocessable
from rollmux_env.fields import EVERY_USER
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.facts import MonthStarted, QuotaChanged
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.run_loop import RunLoop
from runtime.jobs.spec import JobSpec
from runtime.journal.record import RunRecord
from runtime.journal.write import Unwritable
from runtime.report.usage import Row, Waits, usage_rows

_LOOKS_S = 60.0  # interval at which the calendar is read


class UserQuotas:
    """The quotas of a service's users.

    Args:
        run: State of the run.
        record: Record of the run that continues, or None for a new one.

    Attributes:
        waits: Waits and parks of the jobs, for which another object follows the events of the run.
    """

    def __init__(self, run: RunLoop, record: RunRecord | None) -> None:
        self._run = run
        self._first_month = month_of(time()) if record is None else record.first_month
        self.waits = Waits(self._first_month, () if record is None else record.log)

    @property
    def month(self) -> str:
        """The calendar month for which node-hours are counted now."""
        months = self._run.scheduler.state.months
        return months[-1].name if months else self._first_month

    def usage(self) -> Iterator[Row]:
        """Yield what each job since the last roll-over has used in each month; see `runtime.report.usage.usage_rows`."""
        now = self._run.scheduler.state.copy()
        change(now, Ticked(self._run.log.now()))  # a phase may last for hours, in which no event happens
        return usage_rows(now, self.waits, self._first_month)

    def set(self, user: str, quota: Quota | None) -> None:
        """Give a user another quota from now on. Jobs that run keep their places.

        Args:
            user: Name of the user, or `*` for each user who has no own quota.
            quota: The quota, or None to remove the user's own.

        Raises:
            Stopping: If the service is stopping; one line.
            Unwritable: If the journal cannot be written; one line.
        """
        run = self._run
        if run.stopping or run.over.done():
            raise Stopping("the service is stopping; ask the next one")
        if run.log.problem is not None:
            raise Unwritable(run.log.problem)
        line = f"quota of {described(user)}: {'none of its own' if quota is None else format_quota(quota) or 'no limit'}"
        run.apply(Consequences((QuotaChanged(user, quota),), lines=(line,)))

    def check(self, specs: Sequence[JobSpec]) -> None:
        """Check that jobs are within the quotas of their users that concern submissions.

        Raises:
            TooMany: If a user would have more jobs than the quota; one line.
            Unprocessable: If a job has no limit of its time, or a longer one than its user's; one line.
        """
        cluster, more = self._run.scheduler.state.cluster, Counter(spec.user for spec in specs)
        present = (
            Counter(handle.spec.user for handle in self._run.handles.values() if not handle.life.is_gone) if cluster.quotas else {}
        )
        for spec in specs:
            quota = cluster.quota_of(spec.user)
            if quota is None:
                continue
            if quota.jobs is not None and present[spec.user] + more[spec.user] > quota.jobs:
                raise TooMany(f"job {spec.id}: {described(spec.user)} has {present[spec.user]} jobs, and a quota of {quota.jobs}")
            hours = None if spec.budget is None else spec.budget.hours
            if quota.run_hours is not None and (hours is None or hours > quota.run_hours):
                raise Unprocessable(
                    f"job {spec.id}: budget.hours: {'is missing' if hours is None else f'{hours:g} is too long'}; "
                    f"{described(spec.user)} has a quota of {quota.run_hours:g} h for a job"
                )

    async def follow_calendar(self) -> None:
        """Begin each calendar month in the accounts, until cancelled."""
        while True:
            now = month_of(time())
            if now > self.month and not self._run.stopping and self._run.log.problem is None:
                self._run.apply(Consequences((MonthStarted(now),)))
            await asyncio.sleep(_LOOKS_S)


def user_reports(state: State, present: Mapping[str, int], now_s: float) -> Iterator[dict[str, Any]]:
    """Yield what each user holds, has used in this month, and may hold.

    Args:
        state: State of the cluster.
        present: Number of jobs that wait or run, by user.
        now_s: Present time, in seconds of the run's clock.
    """
    users = {*present, *state.charges.users(), *(state.cluster.quotas.keys() - {EVERY_USER})}
    for user in sorted(users):
        share, used_h = state.charges.user_share(user), state.charges.month_h(user, now_s)
        quota = state.cluster.quota_of(user)
        if quota is None and not present.get(user) and not used_h:
            continue
        yield {
            "user": user,
            "jobs": present.get(user, 0),
            "nodes": share.nodes,
            "usd_per_hour": share.usd_per_hour,
            "node_hours": used_h,
            "usage_h": state.charges.usage_h(user, now_s),
            "quota": None if quota is None else quota_as_json(quota),
        }


def quotas_of(cluster: Cluster) -> dict[str, dict[str, float]]:
    """Return the quotas as they have been set, by user or `*`, each as its limits by key."""
    return {user: quota_as_json(quota) for user, quota in cluster.quotas.items()}


def quota_as_json(quota: Quota) -> dict[str, float]:
    """Return the limits that a quota has, by key."""
    return quota.model_dump(exclude_none=True)


def format_quota(quota: Quota) -> str:
    """Return a quota as `rollmux quota set` takes it."""
    return " ".join(f"{key}={value:g}" for key, value in quota_as_json(quota).items())


def described(user: str) -> str:
    """Return words for a user, or for each user who has no own quota."""
    return "every other user" if user == EVERY_USER else f"user {user}" if user else "the user without a name"


def cluster_differences(file: Cluster, known: Cluster) -> Iterator[str]:
    """Yield the keys of a cluster file whose values are not those of the journal, with both.

    Args:
        file: Cluster as the file has it. Only keys that it states are compared.
        known: Cluster as the journal has it, which holds.
    """
    for user in sorted(file.quotas.keys() | known.quotas.keys()) if "quotas" in file.model_fields_set else ():
        one, other = file.quotas.get(user), known.quotas.get(user)
        if one != other:
            words = ("none" if quota is None else format_quota(quota) or "no limit" for quota in (one, other))
            yield "quotas.{}: {} in the file, {} in the journal".format(user or '""', *words)
    for key in sorted(file.model_fields_set - {"quotas", "rollout", "training", "by_name"}):
        if getattr(file, key) != getattr(known, key):
            yield f"{key}: {getattr(file, key)} in the file, {getattr(known, key)} in the journal"
    for name, pool in file.pools.items():
        recorded = known.pools.get(name)
        for key in sorted(pool.model_fields_set & {"gpu", "gpus_per_node", "usd_per_gpu_hour", "max_nodes"}):
            if recorded is not None and getattr(pool, key) != getattr(recorded, key):
                yield f"{name}.{key}: {getattr(pool, key)} in the file, {getattr(recorded, key)} in the journal"
