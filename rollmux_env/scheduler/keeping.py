"""What jobs keep on GPUs between their phases, where that is more than is planned."""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Side
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase

_CHANGE = 0.01  # of what a job keeps on a GPU; less is how exactly that is measured


def job_keeping(state: State, job_id: str, phase: Side, device_gb: float) -> Job | None:
    """A running job with what one of its phases has been seen to keep, as far as there is memory; None: as is known already."""
    job, shape = state.job(job_id), state.shape(job_id)
    part: Phase = getattr(job.phases(shape), phase)
    more_gb = min(device_gb - part.device_gb, _room_gb(state, job_id, phase))
    if more_gb <= _CHANGE * device_gb:
        return None
    return job.known_anew(shape, phase, device_gb=part.device_gb + more_gb)


def _room_gb(state: State, job_id: str, phase: Side) -> float:
    """Memory that is left for more on each GPU of the nodes of a running job's phase, GB; infinite where there is no limit."""
    view, pools = state.view, state.limits.pools["device_gb"]
    group = view.groups[view.jobs["group"][state.row(job_id)]]
    if phase == "training" or state.cluster.one_device or group["exclusive"]:
        return float(pools[group["training_pool"]] - group["training_device_gb"])
    pinned = np.isin(group["node_number"][: group["n_nodes"]], state.pins(job_id))
    return float(pools[group["rollout_pool"]] - group["node_device_gb"][: group["n_nodes"]][pinned].max())
