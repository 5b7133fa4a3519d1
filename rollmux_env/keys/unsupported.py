"""Refusals of keys that a policy, a replay or an environment does not implement, each with a one-line message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster


def queue_key(cluster: Cluster, jobs: Iterable[Any], keys: Sequence[str] = ("priority", "user", "budget")) -> str | None:
    """Return the path of the first of the keys of the queue that is used, `cluster.quotas` included, or None.

    Args:
        cluster: Cluster of the file.
        jobs: Jobs of a scenario or of a job file.
        keys: Keys of a job to look for.
    """
    if cluster.quotas:
        return "cluster.quotas"
    used = ((k, key) for k, job in enumerate(jobs) for key in keys if getattr(job, key))
    return next((f"jobs[{k}].{key}" for k, key in used), None)


def refuse_queue_keys(cluster: Cluster, jobs: Iterable[Any], who: str) -> None:
    """Refuse a file with priorities, budgets or quotas for something that serves jobs first come, first served.

    A job's user is a label, which changes nothing there.

    Args:
        cluster: Cluster of the file.
        jobs: Jobs of the file.
        who: Name of what refuses, for the message.

    Raises:
        InputError: If one of these keys is used.
    """
    if (key := queue_key(cluster, jobs, ("priority", "budget"))) is not None:
        raise InputError(f"{who}: serves jobs first come, first served, and knows no {key.rpartition('.')[2]} ({key})")


def refuse_network(cluster: Cluster, who: str) -> None:
    """Refuse a cluster with a link between its pools for something in which syncs do not share one.

    Args:
        cluster: Cluster of the file.
        who: Name of what refuses, for the message.

    Raises:
        InputError: If the cluster has a network.
    """
    if cluster.network is not None:
        raise InputError(f"cluster.network: does not go with {who}, where no sync is in another's way")
