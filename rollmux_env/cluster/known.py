"""What is known of a job in a shape, as columns of the job table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmux_env.cluster.demand import Demand
from rollmux_env.kernel.period import own_period
from rollmux_env.kernel.tables import LIMITS, UNUSED, Records
from rollmux_env.keys.job import Job


def write_known(jobs: Records, row: int, job: Job, demand: Demand, pools: Mapping[str, int], switches: bool) -> None:
    """Write what is known of a job into a row of the table, in the shape that the row has.

    Args:
        demand: what the job asks for in that shape.
        pools: numbers of the pools, by name.
        switches: switches are planned.
    """
    shape = int(jobs["of_shape"][row])
    solo_s = job.solo_s
    steps = jobs["rescale_s"].shape[1]
    unused = steps - len(demand.by_nodes)
    values: dict[str, Any] = {
        "rollout_s": demand.rollout_s,
        "training_s": demand.training_s,
        "sync_s": job.sync_s,
        "staleness": job.staleness,
        "solo_s": solo_s,
        "alone_s": own_period(demand.rollout_s, demand.training_s, job.sync_s, job.staleness) if shape else solo_s,
        **dict.fromkeys(LIMITS, job.slo * solo_s),
        "rollout_gb": demand.rollout_gb,
        "training_gb": demand.training_gb,
        "rollout_device_gb": demand.rollout_device_gb,
        "training_device_gb": demand.training_device_gb,
        "rollout_pool": pools[demand.rollout_pool],
        "training_pool": pools[demand.training_pool],
        "rollout_nodes": demand.rollout_nodes,
        "training_nodes": demand.training_nodes,
        "rescale_nodes": (*(nodes for nodes, _ in demand.by_nodes), *[UNUSED] * unused),
        "rescale_s": (*(seconds for _, seconds in demand.by_nodes), *jobs["rescale_s"][row, steps - unused :].tolist()),
        "movable": job.movable,
    }
    if switches:
        values["rollout_warm_s"], values["training_warm_s"] = demand.rollout_warm_s, demand.training_warm_s
        values["cold_s"] = sum(phase.switch.cold_s for phase in job.phases(shape))
    jobs[[*values]][row] = tuple(values.values())  # all at once: one after the other takes four times as long
