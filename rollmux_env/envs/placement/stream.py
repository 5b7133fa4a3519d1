"""Streams of jobs as records of the job table, and their sources."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from rollmux_env.cluster.demand import demand_of, write_known
from rollmux_env.envs import checks
from rollmux_env.envs.placement.types import Streams, stream_table
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import UNUSED, Limits, Records, begin_with, job_table
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.unsupported import refuse_network, refuse_queue_keys
from rollmux_env.portable import dot
from rollmux_env.replay.run import in_order_of_arrival
from rollmux_env.scenario import Scenario
from rollmux_env.user_code import GENERATOR, guarded
from rollmux_env.validation_errors import describe
from rollmux_env.workloads.own import OwnWorkload, SeededFunction, Source


class Generator(Protocol):
    """Source of streams.

    Attributes:
        cluster: Cluster of all streams.
        jobs: Largest number of jobs of a stream.
        nodes: Largest number of rollout nodes of a job.
        steps: Largest number of rescaling steps of a job.
        shapes: Largest number of shapes in a stream, summed over the jobs with several shapes, including shape 0.
    """

    cluster: Cluster
    jobs: int

    @property
    def nodes(self) -> int: ...  # noqa: D102 (the class describes them)

    @property
    def steps(self) -> int: ...  # noqa: D102

    @property
    def shapes(self) -> int: ...  # noqa: D102

    def stream(self, seed: int) -> Records:
        """Return the stream of a seed: records of the job table in order of arrival, as `stream_of` makes them from a scenario."""
        ...

    def scenario(self, seed: int) -> Scenario:
        """Return the same stream as a scenario, for `bench` and for tests."""
        ...


class Whole:
    """Generator made from a user's own workload.

    If jobs have more than four rollout nodes, more than two rescaling steps, or shapes, the workload also has `nodes`, `steps` and
    `shapes` of `Generator`.

    Raises:
        InputError: The source lacks an attribute of `OwnWorkload`.
    """

    def __init__(self, own: OwnWorkload) -> None:
        checks.has_attributes(own, ("cluster", "jobs", "scenario"), "cluster, jobs and scenario(seed)")
        self._own = own
        self.cluster, self.jobs = own.cluster, own.jobs
        self.nodes, self.steps, self.shapes = (getattr(own, name, most) for name, most in _DEFAULT_SIZES.items())

    def scenario(self, seed: int) -> Scenario:
        """Return the user's scenario of a seed.

        Raises:
            InputError: It is no scenario of the cluster, or has more jobs than stated.
        """
        scenario = guarded(self._own.scenario, GENERATOR)(seed)
        where = f"generator: the scenario of seed {seed}"
        if not isinstance(scenario, Scenario) or scenario.cluster != self.cluster:
            raise InputError(f"{where}: must be a Scenario with the generator's cluster")
        if len(scenario.jobs) > self.jobs:
            raise InputError(f"{where}: has {len(scenario.jobs)} jobs, and the generator says jobs = {self.jobs} at most")
        return scenario

    def stream(self, seed: int) -> Records:
        """Return the same stream as records.

        Raises:
            InputError: The scenario is not valid, as for `scenario`.
        """
        return stream_of(self.scenario(seed))


_DEFAULT_SIZES = {"nodes": 4, "steps": 2, "shapes": 0}  # sizes of jobs for which tables have room if a user's generator states none


def whole(generator: Generator | Source) -> Generator:
    """Return a generator with all attributes, completing a user's own workload if necessary.

    Raises:
        InputError: An attribute is missing or out of range.
    """
    names = ("cluster", "jobs", "nodes", "steps", "shapes", "stream", "scenario")
    own: Any = SeededFunction(generator) if callable(generator) and not hasattr(generator, "scenario") else generator
    made = cast("Generator", own) if all(hasattr(own, name) for name in names) else Whole(own)
    if not isinstance(made.cluster, Cluster):
        raise InputError(f"generator.cluster: must be a Cluster, not {describe(made.cluster)}")
    for name, least in (("jobs", 1), ("nodes", 0), ("steps", 0), ("shapes", 0)):
        checks.whole_number(f"generator.{name}", getattr(made, name), least)
    return made


def check_stream(generator: Generator, seed: int) -> Records:
    """Return the stream of a seed after checking every value that compiled code uses as an index or a time.

    Raises:
        InputError: The stream is no table of jobs, exceeds the generator's jobs, nodes, steps or shapes, or has a value out of
            range.
    """
    stream, where = guarded(generator.stream, GENERATOR)(seed), f"generator: the scenario of seed {seed}"
    if getattr(getattr(stream, "dtype", None), "names", None) != job_table(0, 1, 0).dtype.names or stream.ndim != 1:
        raise InputError(f"{where}: must be a table of jobs, as `stream_of` makes one")
    jobs = jobs_of(stream)
    if not 1 <= jobs <= generator.jobs:
        raise InputError(f"{where}: has {jobs} jobs, and the generator says jobs = {generator.jobs} at most")
    has = {
        "nodes": int(stream["rollout_nodes"].max()),
        "steps": int((stream["rescale_nodes"] < UNUSED).sum(axis=1).max()),
        "shapes": len(stream) - jobs,
    }
    for name, count in has.items():
        if count > (most := getattr(generator, name)):
            raise InputError(f"{where}: needs {name} = {count}, and the generator has {name} = {most}")
    for name, (low, high) in _ranges(generator.cluster, jobs, len(stream)).items():
        if not ((low <= stream[name]) & (stream[name] <= high)).all():
            raise InputError(f"{where}: {name} must be between {low} and {high}")
    if (np.diff(stream["arrival_s"][:jobs]) < 0).any():
        raise InputError(f"{where}: jobs must be in order of arrival")
    return stream


def _ranges(cluster: Cluster, jobs: int, rows: int) -> dict[str, tuple[float, float]]:
    """Return the least and the greatest value of the columns that are used as indices, counts or times."""
    most_s, pools = float(np.finfo(np.float64).max), len(cluster.pools)
    rollout_nodes = (0, 0) if cluster.one_device else (1, 2**31)  # on one device the job's training includes its rollout
    counts = {"rollout_nodes": rollout_nodes, "training_nodes": (1, 2**31)}
    numbers = {"rollout_pool": (0, pools - 1), "training_pool": (0, pools - 1), "first_shape": (0, rows - 1)}
    seconds = {name: (0.0, most_s) for name in ("rollout_s", "training_s", "sync_s", "arrival_s", "limit_s")}
    return {**counts, **numbers, "more_shapes": (-1, rows - jobs), "of_shape": (0, rows - jobs), **seconds}


def stream_of(scenario: Scenario) -> Records:
    """Convert a scenario's jobs to records of the job table in order of arrival, followed by the records of their shapes.

    Raises:
        InputError: The scenario has keys of the queue or a network, which environments do not support.
    """
    refuse_network(scenario.cluster, "an environment")
    refuse_queue_keys(scenario.cluster, scenario.jobs, "environment")
    jobs, numbers = in_order_of_arrival(scenario), {name: number for number, name in enumerate(scenario.cluster.pools)}
    demands = [[demand_of(job, scenario.cluster, shape) for shape in range(1 + len(job.shapes))] for job in jobs]
    every = [demand for own in demands for demand in own]
    first, shapes = len(jobs), sum(len(own) for own in demands if len(own) > 1)
    table = job_table(first + shapes, max(one.rollout_nodes for one in every), max(len(one.by_nodes) for one in every))
    for row, (job, own) in enumerate(zip(jobs, demands, strict=True)):
        rows = [row]
        table["first_shape"][row] = row
        if job.shapes:
            rows += range(first, first + len(own))
            table["first_shape"][rows], table["more_shapes"][rows] = first, -1
            table["more_shapes"][row], table["of_shape"][rows[1:]] = len(job.shapes), np.arange(len(own))
            first += len(own)
        for one in rows:
            write_known(table, one, job, own[table["of_shape"][one]], numbers, False)
        table["arrival_s"][rows] = job.arrival_s
        table["duration_s"][rows] = np.inf if job.duration_s is None else job.duration_s
        table["iterations"][rows] = np.inf if job.iterations is None else job.iterations
    return table


def jobs_of(stream: Records) -> int:
    """Return the number of jobs of a stream: the records before those of shapes."""
    return int(np.count_nonzero(stream["more_shapes"] >= 0))


def solo_usd(stream: Records, limits: Limits) -> float:
    """Return the cost of a stream under Solo-D in $: every job on its own nodes for its stay. A queue does not change it."""
    jobs, usd = stream[: jobs_of(stream)], limits.pools["usd"]
    stay_s = np.minimum(jobs["duration_s"], jobs["iterations"] * jobs["solo_s"])
    usd_per_hour = jobs["rollout_nodes"] * usd[jobs["rollout_pool"]] + jobs["training_nodes"] * usd[jobs["training_pool"]]
    return dot(usd_per_hour, stay_s) / 3600


def streams_for(generator: Generator, streams: int) -> Streams:
    """Create empty tables for a number of parallel streams of a generator."""
    pools, members = len(generator.cluster.pools), generator.cluster.max_group_size
    return stream_table(streams, pools, generator.jobs, members, generator.nodes, generator.steps, generator.shapes)


def load(streams: Streams, s: int, stream: Records) -> int:
    """Write a stream into row `s`, and return its number of jobs."""
    table, n, first = streams.jobs[s], jobs_of(stream), streams.order.shape[1]
    if table.dtype != stream.dtype:
        table["rescale_nodes"] = UNUSED  # an earlier stream may have used more steps
    for rows, part in ((table[:n], stream[:n]), (table[first : first + len(stream) - n], stream[n:])):
        begin_with(rows, part)
        if len(stream) > n:
            rows["first_shape"][rows["more_shapes"] != 0] += first - n
    return n
