"""A stream of jobs as columns, and what makes them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from rollmux_env.cluster.demand import demand_of
from rollmux_env.kernel.tables import Floats, Ints, Limits
from rollmux_env.network_keys import refuse_network
from rollmux_env.portable import dot
from rollmux_env.queue_keys import refuse_queue_keys
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Cluster, Scenario

NO_STEP = np.iinfo(np.int64).max


class Stream(NamedTuple):
    """The jobs of one stream in order of arrival, (n,) each.

    Attributes:
        arrival_s, rollout_s, training_s, sync_s: seconds. staleness: in versions. duration_s: fixed stay, or infinite.
        iterations: or infinite.
        slo: multiple of T_solo. rollout_gb, training_gb: host memory per node, GB. rollout_nodes, training_nodes: asked for.
        rollout_device_gb, training_device_gb: memory that the job keeps on each GPU between its phases, GB.
        rescale_nodes, rescale_s: (n, K) training seconds from so many nodes on, ascending; unused steps have NO_STEP nodes.
        movable: 0 where the job stays in its first place, else 1.
    """

    arrival_s: Floats
    rollout_s: Floats
    training_s: Floats
    sync_s: Floats
    staleness: Floats
    duration_s: Floats
    iterations: Floats
    slo: Floats
    rollout_gb: Floats
    training_gb: Floats
    rollout_device_gb: Floats
    training_device_gb: Floats
    rollout_nodes: Ints
    training_nodes: Ints
    rescale_nodes: Ints
    rescale_s: Floats
    movable: Ints

    @property
    def solo_s(self) -> Floats:
        """(n,) T_solo, seconds."""
        cycle_s = self.rollout_s + self.training_s + self.sync_s
        longest_s = np.maximum(np.maximum(self.rollout_s, self.training_s), cycle_s / (1 + self.staleness))
        return np.where(self.staleness > 0, longest_s, cycle_s)

    def solo_usd(self, limits: Limits) -> float:
        """What the stream costs under Solo-D: every job on its own nodes for its stay, $. A queue does not change it."""
        stay_s = np.minimum(self.duration_s, self.iterations * self.solo_s)
        usd_per_hour = self.rollout_nodes * limits.rollout_usd + self.training_nodes * limits.training_usd
        return dot(usd_per_hour, stay_s) / 3600


class Generator(Protocol):
    """Where streams come from.

    Attributes:
        cluster: of all its streams.
        jobs: most jobs of a stream. nodes: most rollout nodes of a job. steps: most rescaling steps of a job.
    """

    @property
    def cluster(self) -> Cluster: ...
    @property
    def jobs(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def steps(self) -> int: ...

    def stream(self, seed: int) -> Stream:
        """The stream of a seed."""
        ...

    def scenario(self, seed: int) -> Scenario:
        """The same stream, for `bench` and for tests."""
        ...


def stream_of(scenario: Scenario, steps: int | None = None) -> Stream:
    """A scenario's jobs as columns.

    Args:
        steps: columns of rescaling; None is as many as it takes.

    Raises:
        InputError: it has keys of the queue or a network, which environments do not know; one line.
    """
    refuse_network(scenario.cluster, "an environment")
    refuse_queue_keys(scenario.cluster, scenario.jobs, "environment")
    jobs = in_order_of_arrival(scenario)
    steps = max(len(job.training.by_nodes) for job in jobs) if steps is None else steps
    rescale_nodes = np.full((len(jobs), steps), NO_STEP)
    rescale_s = np.zeros((len(jobs), steps))
    demands = [demand_of(job, scenario.cluster) for job in jobs]
    for j, demand in enumerate(demands):
        for k, (nodes, seconds) in enumerate(demand.by_nodes):
            rescale_nodes[j, k], rescale_s[j, k] = nodes, seconds

    def floats(*values: float | None) -> Floats:
        return np.array([np.inf if value is None else value for value in values], dtype=np.float64)

    return Stream(
        arrival_s=floats(*(job.arrival_s for job in jobs)),
        rollout_s=floats(*(demand.rollout_s for demand in demands)),
        training_s=floats(*(demand.training_s for demand in demands)),
        sync_s=floats(*(job.sync_s for job in jobs)),
        staleness=floats(*(job.staleness for job in jobs)),
        duration_s=floats(*(job.duration_s for job in jobs)),
        iterations=floats(*(job.iterations for job in jobs)),
        slo=floats(*(job.slo for job in jobs)),
        rollout_gb=floats(*(demand.rollout_gb for demand in demands)),
        training_gb=floats(*(demand.training_gb for demand in demands)),
        rollout_device_gb=floats(*(demand.rollout_device_gb for demand in demands)),
        training_device_gb=floats(*(demand.training_device_gb for demand in demands)),
        rollout_nodes=np.array([demand.rollout_nodes for demand in demands], dtype=np.int64),
        training_nodes=np.array([demand.training_nodes for demand in demands], dtype=np.int64),
        rescale_nodes=rescale_nodes,
        rescale_s=rescale_s,
        movable=np.array([job.movable for job in jobs], dtype=np.int64),
    )
