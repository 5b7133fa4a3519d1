"""Keys of the queue in scenario and job files: budgets of jobs, and quotas of users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, Index, NonNegative, Positive
from rollmux_env.validation_errors import field_error

if TYPE_CHECKING:
    from rollmux_env.keys.cluster import Cluster


class Budget(FileModel):
    """What a job may cost and how long it may stay. Exactly what is given counts."""

    usd: Positive | None = None
    """Dollars: of its groups, evenly among their members."""
    hours: Positive | None = None
    """Hours since its admission."""

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.usd is None and self.hours is None:
            raise field_error("needs usd, hours or both")
        return self


class Quota(FileModel):
    """The most that the jobs of a user may hold at once. Nodes and dollars of a group are those of its members, evenly."""

    nodes: Index | None = None
    """Nodes of all pools together; null is no limit."""
    usd_per_hour: NonNegative | None = None
    """Price of what they hold, $/h; null is no limit."""


def beyond_quota(user: str, nodes: Mapping[str, int], cluster: Cluster) -> str | None:
    """Why a job can never be placed alone, if its user's quota is in the way; in words.

    Args:
        nodes: that it asks for, by pool.
    """
    quota = cluster.quotas.get(user)
    if quota is None:
        return None
    count = sum(nodes.values())
    usd = sum(nodes[name] * pool.usd_per_node_hour for name, pool in cluster.pools.items())
    who = f"user {user}" if user else "the user without a name"
    if quota.nodes is not None and count > quota.nodes:
        return f"asks for {count} nodes; {who} has a quota of {quota.nodes}"
    if quota.usd_per_hour is not None and usd > quota.usd_per_hour * (1 + 1e-9):
        return f"asks for nodes of {usd:.10g} $/h; {who} has a quota of {quota.usd_per_hour:.10g}"
    return None


def queue_key(cluster: Cluster, jobs: Iterable[Any]) -> str | None:
    """The first of the keys `quotas`, `priority`, `user` and `budget` that is used, as a path; None: none.

    Args:
        jobs: of a scenario or of a job file.
    """
    if cluster.quotas:
        return "cluster.quotas"
    used = ((k, key) for k, job in enumerate(jobs) for key in ("priority", "user", "budget") if getattr(job, key))
    return next((f"jobs[{k}].{key}" for k, key in used), None)


def refuse_queue_keys(cluster: Cluster, jobs: Iterable[Any], who: str) -> None:
    """Say that something knows no queue but first come, first served.

    Raises:
        InputError: priorities, users, budgets or quotas are used; one line.
    """
    if (key := queue_key(cluster, jobs)) is not None:
        raise InputError(f"{who}: serves jobs first come, first served, and knows no {key.rpartition('.')[2]} ({key})")
