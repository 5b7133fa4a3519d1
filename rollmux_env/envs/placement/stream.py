"""A stream of jobs as columns, and what makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollmux_env.cluster.demand import Demand, demand_of
from rollmux_env.kernel.tables import Floats, Ints, Limits
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.keys.network import refuse_network
from rollmux_env.keys.queue import refuse_queue_keys
from rollmux_env.portable import dot
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Scenario

NO_STEP = np.iinfo(np.int64).max


class StreamShapes(NamedTuple):
    """The shapes of those jobs of a stream that have several, (s,) each: job by job, the own one first.

    Attributes:
        job: which one it is, of the stream. of_shape: number of the shape. The others are as of `Stream`.
    """

    job: Ints
    of_shape: Ints
    rollout_s: Floats
    training_s: Floats
    rollout_gb: Floats
    training_gb: Floats
    rollout_device_gb: Floats
    training_device_gb: Floats
    rollout_pool: Ints
    training_pool: Ints
    rollout_nodes: Ints
    training_nodes: Ints
    rescale_nodes: Ints
    rescale_s: Floats


class Stream(NamedTuple):
    """The jobs of one stream in order of arrival, (n,) each.

    Attributes:
        arrival_s, rollout_s, training_s, sync_s: seconds. staleness: in versions. duration_s: fixed stay, or infinite.
        iterations: or infinite.
        slo: multiple of T_solo. rollout_gb, training_gb: host memory per node, GB. rollout_nodes, training_nodes: asked for.
        rollout_pool, training_pool: numbers of the pools, in the order of `Cluster.pools`.
        rollout_device_gb, training_device_gb: memory that the job keeps on each GPU between its phases, GB.
        rescale_nodes, rescale_s: (n, K) training seconds from so many nodes on, ascending; unused steps have NO_STEP nodes.
        movable: 0 where the job stays in its first place, else 1.
        shapes: of the jobs that have several; None where none has.
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
    rollout_pool: Ints
    training_pool: Ints
    rollout_nodes: Ints
    training_nodes: Ints
    rescale_nodes: Ints
    rescale_s: Floats
    movable: Ints
    shapes: StreamShapes | None = None

    @property
    def solo_s(self) -> Floats:
        """(n,) T_solo, seconds."""
        return alone_s(self.rollout_s, self.training_s, self.sync_s, self.staleness)

    def solo_usd(self, limits: Limits) -> float:
        """What the stream costs under Solo-D: every job on its own nodes for its stay, $. A queue does not change it."""
        stay_s = np.minimum(self.duration_s, self.iterations * self.solo_s)
        usd = limits.pools["usd"]
        usd_per_hour = self.rollout_nodes * usd[self.rollout_pool] + self.training_nodes * usd[self.training_pool]
        return dot(usd_per_hour, stay_s) / 3600


class Generator(Protocol):
    """Where streams come from.

    Attributes:
        cluster: of all its streams.
        jobs: most jobs of a stream. nodes: most rollout nodes of a job. steps: most rescaling steps of a job.
        shapes: most shapes of a stream, of those of its jobs that have several, the own ones counted.
    """

    @property
    def cluster(self) -> Cluster: ...
    @property
    def jobs(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def shapes(self) -> int: ...

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
    steps = most_steps(jobs, scenario.cluster) if steps is None else steps
    numbers = [*scenario.cluster.pools]
    demands = [demand_of(job, scenario.cluster) for job in jobs]
    shaped = [(j, shape) for j, job in enumerate(jobs) for shape in range(1 + len(job.shapes) if job.shapes else 0)]

    def floats(*values: float | None) -> Floats:
        return np.array([np.inf if value is None else value for value in values], dtype=np.float64)

    return Stream(
        arrival_s=floats(*(job.arrival_s for job in jobs)),
        sync_s=floats(*(job.sync_s for job in jobs)),
        staleness=floats(*(job.staleness for job in jobs)),
        duration_s=floats(*(job.duration_s for job in jobs)),
        iterations=floats(*(job.iterations for job in jobs)),
        slo=floats(*(job.slo for job in jobs)),
        movable=np.array([job.movable for job in jobs], dtype=np.int64),
        shapes=None
        if not shaped
        else StreamShapes(
            job=np.array([j for j, _ in shaped]),
            of_shape=np.array([shape for _, shape in shaped]),
            **_asked([demand_of(jobs[j], scenario.cluster, shape) for j, shape in shaped], numbers, steps),
        ),
        **_asked(demands, numbers, steps),
    )


def most_steps(jobs: Sequence[Job], cluster: Cluster) -> int:
    """Most rescaling steps of a job in any shape."""
    return max(len(demand_of(job, cluster, shape).by_nodes) for job in jobs for shape in range(1 + len(job.shapes)))


def _asked(demands: Sequence[Demand], numbers: Sequence[str], steps: int) -> dict[str, Any]:
    """Columns of what jobs ask of the pools, which are numbered in this order."""
    rescale_nodes = np.full((len(demands), steps), NO_STEP)
    rescale_s = np.zeros((len(demands), steps))
    for j, demand in enumerate(demands):
        for k, (nodes, seconds) in enumerate(demand.by_nodes):
            rescale_nodes[j, k], rescale_s[j, k] = nodes, seconds
    columns: dict[str, Any] = {"rescale_nodes": rescale_nodes, "rescale_s": rescale_s}
    for phase in ("rollout", "training"):
        for name in ("s", "gb", "device_gb"):
            columns[f"{phase}_{name}"] = np.array([getattr(demand, f"{phase}_{name}") for demand in demands], dtype=np.float64)
        pools = [numbers.index(getattr(demand, f"{phase}_pool")) for demand in demands]
        columns[f"{phase}_pool"] = np.array(pools, dtype=np.int64)
        columns[f"{phase}_nodes"] = np.array([getattr(demand, f"{phase}_nodes") for demand in demands], dtype=np.int64)
    return columns


def alone_s(rollout_s: Floats, training_s: Floats, sync_s: Floats, staleness: Floats) -> Floats:
    """(n,) seconds of an iteration of each job alone."""
    cycle_s = rollout_s + training_s + sync_s
    longest_s = np.maximum(np.maximum(rollout_s, training_s), cycle_s / (1 + staleness))
    return np.where(staleness > 0, longest_s, cycle_s)
