"""Generators: where an environment's streams come from. The same seed gives the same stream, as columns or as a `Scenario`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from rollmux_env.cluster.demand import demand_of
from rollmux_env.envs.placement.stream import Stream, most_steps, stream_of
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.portable import uniform
from rollmux_env.scenario import Scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import describe, not_one_of
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.catalogue import PHASES_S, make_job, memory_gb, paper_cluster
from rollmux_env.workloads.production import OPTIONS as PRODUCTION_OPTIONS
from rollmux_env.workloads.production import TYPE_COUNTS, draw_production, production_cluster
from rollmux_env.workloads.profiles import JOBS, NAMES, draw_profile, draw_times
from rollmux_env.workloads.profiles import OPTIONS as PROFILE_OPTIONS
from rollmux_env.workloads.shapes import most_shapes


class Fixed:
    """Streams that are given: one scenario, or several of one cluster, of which the seed draws one.

    Raises:
        InputError: no scenario, or scenarios of different clusters.
    """

    def __init__(self, *scenarios: Scenario) -> None:
        if not scenarios or any(scenario.cluster != scenarios[0].cluster for scenario in scenarios):
            raise InputError("generator: needs at least one scenario, all of one cluster")
        self.cluster = scenarios[0].cluster
        jobs = [job for scenario in scenarios for job in scenario.jobs]
        self.jobs = max(len(scenario.jobs) for scenario in scenarios)
        self.nodes = max(demand_of(job, self.cluster, shape).rollout_nodes for job in jobs for shape in range(1 + len(job.shapes)))
        self.steps = most_steps(jobs, self.cluster)
        self.shapes = max(sum(1 + len(job.shapes) for job in scenario.jobs if job.shapes) for scenario in scenarios)
        self._scenarios = scenarios
        self._streams = [stream_of(scenario, self.steps) for scenario in scenarios]

    def stream(self, seed: int) -> Stream:
        """The stream of number `seed` modulo how many there are."""
        return self._streams[seed % len(self._streams)]

    def scenario(self, seed: int) -> Scenario:
        """The same stream as a scenario."""
        return self._scenarios[seed % len(self._scenarios)]


class Workload:
    """A seeded workload of `rollmux_env.workloads`: `production`, `mixed`, `balanced`, `rollout-heavy` or `train-heavy`.

    Args:
        name: of the workload.
        options: as in `WorkloadOptions`, but for the seed: `jobs`, `stays`, `slo`, `max_group_size`, `shapes`, ...

    Raises:
        InputError: no such workload, or options that it does not have.
    """

    steps = 0

    def __init__(self, name: str = "production", **options: Any) -> None:
        if name != "production" and name not in NAMES:
            raise InputError(f"generator: {not_one_of(name, ('production', *NAMES))}")
        used = PRODUCTION_OPTIONS if name == "production" else PROFILE_OPTIONS
        for option in options:
            if option not in used - {"seed"}:
                raise InputError(f"generator: {name} has no option {describe(option)}{did_you_mean(option, used - {'seed'})}")
        self._options = WorkloadOptions(**options)
        self._options.reject_unused(name, used - {"seed"})
        self.name = name
        self.cluster = production_cluster(self._options) if name == "production" else paper_cluster(self._options.max_group_size)
        self.jobs = self._options.jobs or (sum(TYPE_COUNTS.values()) if name == "production" else JOBS)
        self.nodes = (4 if self._options.shapes else 2) if name == "production" else 1
        self.shapes = most_shapes(self._options) * self.jobs

    def stream(self, seed: int) -> Stream:
        """The stream of a seed: the draws of `scenario`, without its models."""
        options = replace(self._options, seed=seed)
        if self.shapes or options.asynchronous:
            return stream_of(self.scenario(seed), self.steps)
        gb: Floats
        nodes: Ints
        if self.name == "production":
            jobs = draw_production(options)
            times = jobs.arrivals_s, jobs.stays_s
            rows, types = _types(options.semantics == "paper")
            columns = types[[rows[kind] for kind in jobs.kinds]]
            rollout_s, training_s = columns[:, 0].copy(), columns[:, 1].copy()
            gb, nodes = columns[:, 2:4], columns[:, 4:6].astype(np.int64)
            slos = jobs.slos
        else:
            times = draw_times(options)
            cells = draw_profile(self.name, options, len(times[0]))
            rollout_s, training_s, slos = np.array(cells.rollouts_s), np.array(cells.trainings_s), cells.slos
            gb, nodes = np.tile(memory_gb(7), (len(slos), 1)), np.ones((len(slos), 2), dtype=np.int64)
        n = len(slos)
        stay_s = np.array(times[1])
        solo_s = rollout_s + training_s
        fixed = options.stays == "fixed"
        forever = np.full(n, np.inf)
        return Stream(
            arrival_s=np.array(times[0]),
            rollout_s=rollout_s,
            training_s=training_s,
            sync_s=np.zeros(n),
            staleness=np.zeros(n),
            duration_s=stay_s if fixed else forever,
            iterations=forever if fixed else np.maximum(1.0, np.rint(stay_s / solo_s)),
            slo=np.array(slos),
            rollout_gb=gb[:, 0],
            training_gb=gb[:, 1],
            rollout_device_gb=np.zeros(len(slos)),
            training_device_gb=np.zeros(len(slos)),
            rollout_pool=np.zeros(n, dtype=np.int64),
            training_pool=np.ones(n, dtype=np.int64),
            rollout_nodes=nodes[:, 0],
            training_nodes=nodes[:, 1],
            rescale_nodes=np.zeros((n, 0), dtype=np.int64),
            rescale_s=np.zeros((n, 0)),
            movable=np.ones(n, dtype=np.int64),
        )

    def scenario(self, seed: int) -> Scenario:
        """The stream that `rollmux workload NAME --seed SEED` writes."""
        return make_workload(self.name, replace(self._options, seed=seed))


class Toy:
    """Rounds of four jobs whose best placement is known: for tests, and to see a learner learn in seconds.

    Of each round first comes a job that mostly rolls out, then a balanced one, one that mostly trains and has no slack, and another
    balanced one, all at once and for an hour. Groups hold two. The first two go together at no cost, and then the others do not:
    Algorithm 1 ends with three groups. Two groups are enough, and no fewer can be: first with third, second with fourth. So the
    least cost is `best` times that of Solo-D, and the way to it is to pay for a group that the next job does not need.

    Args:
        rounds: of four jobs.
    """

    nodes, steps, shapes, best = 1, 0, 0, 0.5

    def __init__(self, rounds: int = 4) -> None:
        self.jobs = 4 * rounds
        pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
        self.cluster = Cluster(rollout=pool, training=pool, max_group_size=2)

    def stream(self, seed: int) -> Stream:
        """The stream of a seed, which draws how long an iteration of each round's jobs is."""
        return stream_of(self.scenario(seed), self.steps)

    def scenario(self, seed: int) -> Scenario:
        """The same stream as a scenario."""
        scales = np.round(0.5 + 1.5 * uniform(seed, "toy", self.jobs // 4), 3)
        kinds = ((80, 20, 2.0), (50, 50, 2.0), (20, 80, 1.0), (50, 50, 2.0))
        jobs = tuple(
            Job(
                id=f"toy-{k:03d}",
                arrival_s=7200.0 * (k // 4),
                duration_s=3600.0,
                slo=kinds[k % 4][2],
                rollout=Phase(worst_case_s=float(kinds[k % 4][0] * scales[k // 4])),
                training=Training(worst_case_s=float(kinds[k % 4][1] * scales[k // 4])),
            )
            for k in range(self.jobs)
        )
        return Scenario(version=1, cluster=self.cluster, jobs=jobs)


@cache
def _types(paper: bool) -> tuple[dict[str, int], Floats]:
    """Row of every type of the production stream, and by row rollout and training seconds, GB and nodes."""
    types = []
    for kind in TYPE_COUNTS:
        job = make_job(kind, kind, iterations=1, training_nodes=1 if paper else None)
        phases = (job.rollout, job.training)
        types.append((*PHASES_S[kind][:2], *(p.host_memory_gb for p in phases), *(float(p.nodes) for p in phases)))
    return {kind: row for row, kind in enumerate(TYPE_COUNTS)}, np.array(types)
