"""Keys of scenario files about the network between the pools: `cluster.network`, and `sync_gb` of jobs."""

from __future__ import annotations

from rollmux_env.fields import FileModel, Positive

_ROUNDED = 1e-6  # relative tolerance, since predicted seconds and gigabytes are rounded


class Network(FileModel):
    """The link between the pools, which the syncs of all jobs share."""

    link_gbps: Positive
    """Rate of the link, Gbit/s."""

    def own_rate_gbps(self, sync_s: float, sync_gb: float | None) -> float:
        """Return the rate of a sync that has the link alone, in Gbit/s. Without `sync_gb` it fills the link."""
        return self.link_gbps if sync_gb is None else min(8 * sync_gb / sync_s, self.link_gbps)

    def sync_problem(self, sync_s: float, sync_gb: float | None, solo_s: float) -> tuple[str, str] | None:
        """Return why a job's sync does not fit the link, and the key that says so, or None.

        Args:
            sync_s: Duration of the sync, in seconds.
            sync_gb: Size of what it transfers, in GB, or None if it fills the link.
            solo_s: Iteration time of the job alone, in seconds.
        """
        if sync_gb is not None and not sync_s:
            return "goes with a sync_s above 0", "sync_gb"
        if sync_gb is not None and (rate := 8 * sync_gb / sync_s) > self.link_gbps * (1 + _ROUNDED):
            problem = f"{sync_gb:.10g} GB in it need {rate:.6g} Gbit/s"
            return f"{problem}; cluster.network.link_gbps is {self.link_gbps:.10g}", "sync_s"
        if sync_s > solo_s:
            return f"is longer than the job's iteration, {solo_s:.6g} s: its syncs would queue on cluster.network's link", "sync_s"
        return None
