"""Keys of scenario files that are about the network between the pools: `cluster.network`, and `sync_gb` of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, Positive

if TYPE_CHECKING:
    from rollmux_env.keys.cluster import Cluster
    from rollmux_env.keys.job import Job

_ROUNDED = 1e-6  # relative: seconds and gigabytes of a model are rounded


class Network(FileModel):
    """The link between the pools, which the syncs of all jobs share."""

    link_gbps: Positive
    """Its rate, Gbit/s."""


def own_rate_gbps(job: Job, network: Network) -> float:
    """Rate of a job's sync where no other is on the link: its bytes over `sync_s`, Gbit/s. Without bytes it fills the link."""
    return network.link_gbps if job.sync_gb is None else min(8 * job.sync_gb / job.sync_s, network.link_gbps)


def broken_sync(job: Job, network: Network | None) -> tuple[str, str] | None:
    """What is wrong with a job's sync on the link: the key, and the problem; None: nothing."""
    if network is None:
        return None if job.sync_gb is None else ("sync_gb", "goes with cluster.network, which is missing")
    if job.sync_gb is not None and not job.sync_s:
        return "sync_gb", "goes with a sync_s above 0"
    if job.sync_gb is not None and (rate := 8 * job.sync_gb / job.sync_s) > network.link_gbps * (1 + _ROUNDED):
        problem = f"{job.sync_gb:.10g} GB in it need {rate:.6g} Gbit/s"
        return "sync_s", f"{problem}; cluster.network.link_gbps is {network.link_gbps:.10g}"
    if job.sync_s > job.solo_s:
        return "sync_s", f"is longer than the job's iteration, {job.solo_s:.6g} s: its syncs would queue on cluster.network's link"
    return None


def refuse_network(cluster: Cluster, who: str) -> None:
    """Raise an error where the pools are linked and somebody does not know of it.

    Raises:
        InputError: they are; one line.
    """
    if cluster.network is not None:
        raise InputError(f"cluster.network: does not go with {who}, where no sync is in another's way")
