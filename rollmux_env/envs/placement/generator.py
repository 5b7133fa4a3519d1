"""Generators: sources of an environment's streams. The same seed gives the same stream, as columns or as a `Scenario`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rollmux_env.envs.placement.stream import Generator, stream_of, whole
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import LIMITS, UNUSED, Floats, Records, job_table
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.portable import uniform
from rollmux_env.scenario import Scenario, load_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import is_whole
from rollmux_env.validation_errors import describe, not_one_of
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.catalogue import PHASES_S, make_job, memory_gb, paper_cluster
from rollmux_env.workloads.own import Source, is_own, own_source
from rollmux_env.workloads.philly import OPTIONS as PHILLY_OPTIONS
from rollmux_env.workloads.philly import PhillyTrace
from rollmux_env.workloads.production import OPTIONS as PRODUCTION_OPTIONS
from rollmux_env.workloads.production import TYPE_COUNTS, draw_production, production_cluster
from rollmux_env.workloads.profiles import JOBS, NAMES, draw_profile, draw_times
from rollmux_env.workloads.profiles import OPTIONS as PROFILE_OPTIONS
from rollmux_env.workloads.shapes import most_shapes

_REQUIREMENTS = ("rollout_s", "training_s", "rollout_gb", "training_gb", "rollout_nodes", "training_nodes")
_SCENARIO_FILES = (".yaml", ".yml", ".json")
_GENERATED_WORKLOADS = ("production", *NAMES)  # workloads without a trace


def find_generator(named: Generator | Source | str, options: Mapping[str, Any] | None = None) -> Generator:
    """Return the generator of a workload.

    Args:
        named: Generator, workload of a user as an object, or name of a workload of RollMux or, as `module:name`, of a user; or the
            path of a scenario file.
        options: Options of a named workload, or None for its defaults. A scenario file has none.

    Raises:
        InputError: There is no such workload, it lacks an attribute, or it does not have an option.
    """
    options = options or {}
    if isinstance(named, Fixed):
        return named
    if not isinstance(named, str):
        return whole(named)
    if is_own(named):
        return whole(own_source(named, [f"{key}={json.dumps(value)}" for key, value in options.items()]))
    if Path(named).suffix in _SCENARIO_FILES:
        if options:
            option = next(iter(options))
            raise InputError(
                f"generator: {named}: a scenario file has no options, such as {option}; "
                "a training has none with environment.options={}"
            )
        return Fixed(load_scenario(named))
    if Path(named).suffix == ".csv":
        raise InputError(f"generator: {named}: a CSV file is a trace: the workload philly with the option csv has its jobs")
    if named not in (known := (*_GENERATED_WORKLOADS, "philly")):
        raise InputError(f"generator: {not_one_of(named, known, ', a scenario file (.yaml, .json), or module:name of your own')}")
    return Philly(**options) if named == "philly" else Workload(named, **options)


class Fixed:
    """Given streams: one scenario, or several of one cluster, from which the seed selects one.

    Raises:
        InputError: There is no scenario, or the scenarios have different clusters.
    """

    def __init__(self, *scenarios: Scenario) -> None:
        if not scenarios or any(scenario.cluster != scenarios[0].cluster for scenario in scenarios):
            raise InputError("generator: needs at least one scenario, all of one cluster")
        self.cluster = scenarios[0].cluster
        self._scenarios = scenarios
        self.jobs = max(len(scenario.jobs) for scenario in scenarios)

    @cached_property
    def _streams(self) -> list[Records]:
        """Tables for `RollMux/Placement-v0`, which refuses some scenarios that `RollMux/Queue-v0` plays."""
        return [stream_of(scenario) for scenario in self._scenarios]

    @cached_property
    def nodes(self) -> int:
        """Largest number of rollout nodes of a job."""
        return max(int(stream["rollout_nodes"].max()) for stream in self._streams)

    @cached_property
    def steps(self) -> int:
        """Largest number of steps of a job's rescaling table."""
        return max(int((stream["rescale_nodes"] < UNUSED).sum(axis=1).max()) for stream in self._streams)

    @cached_property
    def shapes(self) -> int:
        """Largest number of further shapes of a stream's jobs."""
        streams = zip(self._streams, self._scenarios, strict=True)
        return max(len(stream) - len(scenario.jobs) for stream, scenario in streams)

    def stream(self, seed: int) -> Records:
        """Return the stream with the number `seed` modulo the number of streams."""
        return self._streams[seed % len(self._streams)]

    def scenario(self, seed: int) -> Scenario:
        """Return the same stream as a scenario."""
        return self._scenarios[seed % len(self._scenarios)]


class Mixture:
    """Streams of several generators in turn: the seed modulo their number selects one, and its stream has the same seed.

    Args:
        generators: Generators of one cluster. One that is given twice is drawn twice as often.

    Raises:
        InputError: There is no generator, or they have different clusters.
    """

    def __init__(self, *generators: Generator) -> None:
        if not generators or any(generator.cluster != generators[0].cluster for generator in generators):
            raise InputError("generator: a mixture needs at least one workload, all of one cluster")
        self.cluster = generators[0].cluster
        self._generators = generators
        self.jobs = max(generator.jobs for generator in generators)
        self.nodes = max(generator.nodes for generator in generators)
        self.steps = max(generator.steps for generator in generators)
        self.shapes = max(generator.shapes for generator in generators)

    def stream(self, seed: int) -> Records:
        """Return the stream of a seed."""
        return self._generators[seed % len(self._generators)].stream(seed)

    def scenario(self, seed: int) -> Scenario:
        """Return the same stream as a scenario."""
        return self._generators[seed % len(self._generators)].scenario(seed)


class Philly(PhillyTrace):
    """The workload `philly`: arrivals and stays from a trace, phase times and SLOs drawn by the seed.

    Args:
        options: Options of `WorkloadOptions` other than the seed: `csv`, `jobs`, `window_start_h`, ...

    Raises:
        InputError: The trace cannot be used, or the workload does not have one of the options.
    """

    steps = shapes = 0

    def __init__(self, /, **options: Any) -> None:
        super().__init__(_workload_options("philly", PHILLY_OPTIONS, options))

    def stream(self, seed: int) -> Records:
        """Return the stream of a seed."""
        return stream_of(self.scenario(seed))


class Workload:
    """A seeded workload of `rollmux_env.workloads`: `production`, `mixed`, `balanced`, `rollout-heavy` or `train-heavy`.

    Args:
        name: Name of the workload.
        options: Options of `WorkloadOptions` other than the seed: `jobs`, `stays`, `slo`, `max_group_size`, `shapes`, ...

    Raises:
        InputError: There is no such workload, or it does not have one of the options.
    """

    steps = 0

    def __init__(self, name: str = "production", /, **options: Any) -> None:
        if name not in _GENERATED_WORKLOADS:
            raise InputError(f"generator: {not_one_of(name, _GENERATED_WORKLOADS)}")
        self._options = _workload_options(name, PRODUCTION_OPTIONS if name == "production" else PROFILE_OPTIONS, options)
        self.name = name
        self.cluster = production_cluster(self._options) if name == "production" else paper_cluster(self._options.max_group_size)
        self.jobs = self._options.jobs or (sum(TYPE_COUNTS.values()) if name == "production" else JOBS)
        self.nodes = (4 if self._options.shapes else 2) if name == "production" else 1
        self.shapes = most_shapes(self._options) * self.jobs

    def stream(self, seed: int) -> Records:
        """Return the stream of a seed: the draws of `scenario`, without building its models."""
        options = replace(self._options, seed=seed)
        if self.shapes or options.asynchronous:
            return stream_of(self.scenario(seed))
        if self.name == "production":
            jobs = draw_production(options)
            arrivals_s, stays_s, slos = jobs.arrivals_s, jobs.stays_s, jobs.slos
            rows, types = _types(options.semantics == "paper")
            asked: Iterable[Any] = types[[rows[kind] for kind in jobs.kinds]].T
        else:
            arrivals_s, stays_s = draw_times(self.name, options)
            cells = draw_profile(self.name, options, len(arrivals_s))
            slos = cells.slos
            asked = (cells.rollouts_s, cells.trainings_s, *memory_gb(7), 1, 1)
        stream, stay_s = job_table(len(slos), self.nodes, self.steps), np.array(stays_s)
        for name, column in zip(_REQUIREMENTS, asked, strict=True):
            stream[name] = column
        stream["solo_s"] = stream["alone_s"] = stream["rollout_s"] + stream["training_s"]
        limit_s = np.array(slos) * stream["solo_s"]
        for name in LIMITS:
            stream[name] = limit_s
        stream["arrival_s"], stream["training_pool"], stream["first_shape"] = arrivals_s, 1, np.arange(len(slos))
        if options.stays == "fixed":
            stream["duration_s"] = stay_s
        else:
            stream["iterations"] = np.maximum(1.0, np.rint(stay_s / stream["solo_s"]))
        return stream

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario that `rollmux workload NAME --seed SEED` writes."""
        return make_workload(self.name, replace(self._options, seed=seed))


class Toy:
    """Rounds of four jobs with a known best placement, for tests and for a learner that improves within seconds.

    In each round a rollout-heavy job arrives, then a balanced one, a training-heavy one without slack, and another balanced one,
    all at once and for an hour. Groups have at most two members. If the first two jobs share a group, which costs nothing extra,
    the others cannot share one, so Algorithm 1 ends with three groups. The optimum is two groups, the first job with the third and
    the second with the fourth. Its cost is `best` times that of Solo-D. To reach it, the agent pays for a group that the next job
    does not need.

    Args:
        rounds: Number of rounds of four jobs.

    Raises:
        InputError: `rounds` is no such number.
    """

    nodes, steps, shapes, best = 1, 0, 0, 0.5

    def __init__(self, rounds: int = 4) -> None:
        if not is_whole(rounds) or rounds < 1:
            raise InputError(f"rounds: must be a whole number of at least 1, not {describe(rounds)}")
        self.jobs = 4 * rounds
        pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
        self.cluster = Cluster(rollout=pool, training=pool, max_group_size=2)

    def stream(self, seed: int) -> Records:
        """Return the stream of a seed, which draws the duration of an iteration for each round."""
        return stream_of(self.scenario(seed))

    def scenario(self, seed: int) -> Scenario:
        """Return the same stream as a scenario."""
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


def _workload_options(name: str, used: frozenset[str], options: Mapping[str, Any]) -> WorkloadOptions:
    """Return the options of a workload, none of which is outside `used`."""
    known = used - {"seed"}
    for option in options:
        if option not in known:
            raise InputError(f"generator: {name} has no option {describe(option)}{did_you_mean(option, known)}")
    return WorkloadOptions(**options)


@cache
def _types(paper: bool) -> tuple[dict[str, int], Floats]:
    """Return the row of every job type of the production stream, and its rollout and training seconds, GB and nodes by row."""
    types = []
    for kind in TYPE_COUNTS:
        job = make_job(kind, kind, iterations=1, training_nodes=1 if paper else None)
        phases = (job.rollout, job.training)
        types.append((*PHASES_S[kind][:2], *(p.host_memory_gb for p in phases), *(float(p.nodes) for p in phases)))
    return {kind: row for row, kind in enumerate(TYPE_COUNTS)}, np.array(types)
