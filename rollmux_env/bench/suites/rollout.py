"""`rollout`: long-tail migration (RollMux), tail batching (RollPacker), adaptive parallelism (OrchestrRL), beside their papers.

A case measures one figure for each policy and seed: seconds (of a rollout, or of an iteration) or dollars per work-hour. The gain
of a policy is the figure of the first policy divided by its figure, per seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from rollmux_env.bench.harness import Task, run_task
from rollmux_env.bench.intervals import ratios
from rollmux_env.bench.suite import Column, Makers, SuiteRow, make_measured_row
from rollmux_env.bench.suites.published import make_published_suite
from rollmux_env.bench.suites.tables import PACKED_JOBS, PackedJob, make_packed_lengths
from rollmux_env.published import source
from rollmux_env.replay.outcome import Outcome
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.rollout.setting import Setting
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.timing.calibration import ROLLMUX
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.lengths import LengthDistribution, Lognormal
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import fitting_replicas
from rollmux_env.timing.tail import migration_of
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.catalogue import paper_cluster
from rollmux_env.workloads.modelled import with_models
from rollmux_env.workloads.options import WorkloadOptions

SECONDS, DOLLARS, GAIN, OVER_BEST = "seconds", "$/work-h", "gain", "gain, best size"
AT = " at TP "  # separates a policy's name and the number of GPUs per replica
ROLLOUTS = 20  # number of rollouts of a measurement
ITERATIONS = 60  # number of iterations of each job of a pair
QUICK_JOBS = 50  # number of jobs of a shorter stream
_PROMPT_TOKENS, _PROMPTS, _EACH = 1024, 128, 8


Measure = Callable[[str, int, bool, Makers], float]


@dataclass(frozen=True)
class RolloutCase:
    """One comparison.

    Attributes:
        label: Name of the case within the suite.
        policies: Policies to compare; gains are relative to the first.
        measure: Function of (policy, seed, quick, makers) that returns the figure.
        heading: Heading of the figure, SECONDS or DOLLARS.
        static: Policies that differ only in the size of their replicas. The best of them is a second baseline.
        derived: Whether the rows are stages of a system instead of policies by name.
    """

    label: str
    policies: tuple[str, ...]
    measure: Measure
    heading: str = SECONDS
    static: tuple[str, ...] = ()
    derived: bool = False


COLUMNS = (Column(SECONDS, digits=1, style=""), Column(DOLLARS, digits=2, style=""), Column(GAIN), Column(OVER_BEST))


def rollout_rows(
    cases: Sequence[RolloutCase], seeds: Sequence[int], quick: bool, makers: Makers, added: Sequence[str] = ()
) -> list[SuiteRow]:
    """Measure every case: one row per case and policy, in order.

    Args:
        cases: Cases to measure.
        seeds: Seeds of the lengths.
        quick: Whether to use shorter streams.
        makers: Factories of policies.
        added: Further rollout policies, for the cases that compare policies by name.
    """
    rows = []
    for case in cases:
        policies = dict.fromkeys((*case.policies, *(added if "tail-batching" in case.policies and not case.derived else ())))
        measured = {policy: [case.measure(policy, seed, quick, makers) for seed in seeds] for policy in policies}
        best = min(case.static, key=lambda policy: sum(measured[policy]), default=None)
        for policy, own in measured.items():
            values: dict[str, Sequence[float | None]] = {case.heading: own, GAIN: ratios(measured[case.policies[0]], own)}
            if best is not None:
                values[OVER_BEST] = ratios(measured[best], own)
            rows.append(make_measured_row(case.label, policy, (SECONDS, DOLLARS, OVER_BEST, GAIN), values))
    return rows


def setting(
    size: str, gpu: str, gpus: int, parallel: int, lengths: LengthDistribution, step_s: float = ROLLMUX.step_s, alike: float = 0.5
) -> Setting:
    """Return the setting of RollPacker's rollouts: 128 prompts with 8 responses each. Prompts of 1,024 tokens are assumed.

    Replicas may have any size inside a machine that divides the GPUs and whose cache holds the longest response.

    Args:
        size: Size name of the model.
        gpu: GPU type, a key of `GPUS`.
        gpus: Number of GPUs.
        parallel: Number of GPUs per replica.
        lengths: Distribution of the response lengths.
        step_s: Fixed overhead of a decode step, in seconds.
        alike: Correlation of the lengths of one prompt's responses.
    """
    hardware = achieved(gpu, GPUS[gpu], replace(ROLLMUX, step_s=step_s))
    fitting = fitting_replicas(SHAPES[size], hardware, gpus, _PROMPT_TOKENS + lengths.cap)
    return Setting(fitting, gpus, parallel, _PROMPTS, _EACH, _PROMPT_TOKENS, lengths, alike)


def sized_s(size: str, gpus: int, lengths: LengthDistribution, policy: str, seed: int, quick: bool, makers: Makers) -> float:
    """Return the mean seconds of rollouts on H800.

    Args:
        size: Size name of the model.
        gpus: Number of GPUs.
        lengths: Distribution of the response lengths.
        policy: Text `policy at TP n`, with the initial number of GPUs per replica.
        seed: Seed of the lengths.
        quick: Ignored.
        makers: Factories of policies.
    """
    name, _, parallel = policy.partition(AT)
    return rollout_s(partial(setting, size, "H800", gpus, int(parallel), lengths), name, seed, quick, makers)


def rollout_s(make: Callable[[], Setting], policy: str, seed: int, quick: bool, makers: Makers) -> float:
    """Return the mean seconds of a job's rollouts."""
    job = JobRollouts(make(), makers.rollout(policy), seed)
    return float(np.mean([job.next().seconds for _ in range(ROLLOUTS)]))


def make_packed_setting(job: PackedJob, step_s: float, alike: float) -> Setting:
    """Return the setting of one of RollPacker's jobs."""
    return setting(job.size, "H800", job.gpus, job.parallel, make_packed_lengths(job.cap), step_s, alike)


@lru_cache
def fit_step_s(packed: PackedJob, plain: RolloutPolicy) -> float:
    """Fit the fixed seconds of a decode step so that a plain rollout takes the published time."""
    low, high = 0.0, 0.05
    for _ in range(12):
        middle = (low + high) / 2
        job = JobRollouts(make_packed_setting(packed, middle, 0.5), plain, 0)
        slow = np.mean([job.next().seconds for _ in range(5)]) > packed.plain_s
        low, high = (low, middle) if slow else (middle, high)
    return (low + high) / 2


def packed_s(packed: PackedJob, alike: float, policy: str, seed: int, quick: bool, makers: Makers) -> float:
    """Return the seconds of a rollout, with a decode step fitted so that a plain rollout takes the published seconds."""
    step_s = fit_step_s(packed, makers.rollout("plain"))
    return rollout_s(partial(make_packed_setting, packed, step_s, alike), policy, seed, quick, makers)


def pair_s(kinds: tuple[str, str], policy: str, seed: int, quick: bool, makers: Makers) -> float:
    """Return the seconds of an iteration of two jobs that share a node of each pool in strict round robin.

    Both jobs are present throughout.

    Args:
        kinds: Types of the two jobs.
        policy: Rollout policy.
        seed: Seed of the lengths.
        quick: Ignored.
        makers: Factories of policies.
    """
    jobs = [{"id": f"{kind}-{k}", **_PAIRED} for k, kind in enumerate(kinds)]
    cluster = paper_cluster().model_dump()
    bare = parse_scenario({"version": 1, "cluster": cluster, "jobs": jobs})
    outcome = _replay_events("rollmux,prune=false", policy, with_models(bare), seed, makers)
    if outcome.metrics.peak_gpus["rollout"] != 8:
        raise AssertionError("the pair was not placed together")
    return outcome.metrics.hours * 3600 / ITERATIONS


def _replay_events(placement: str, policy: str, scenario: Scenario, seed: int, makers: Makers) -> Outcome:
    """Run an event replay of jobs with models under a rollout policy."""
    inside = makers.rollout(policy)
    dispatch = makers.dispatch(makers.migrating("round-robin", inside))
    return run_task(makers.placement, Task(placement, seed, scenario, dispatch, rollout=inside)).outcome


_ONE_NODE = {"nodes": 1, "worst_case_s": 1.0}
_PAIRED = {"arrival_s": 0.0, "iterations": ITERATIONS, "slo": 10.0, "rollout": _ONE_NODE, "training": _ONE_NODE}


def stream_usd(policy: str, seed: int, quick: bool, makers: Makers) -> float:
    """Return the dollars per work-hour of the production stream in an event replay.

    Args:
        policy: Text `placement/rollout policy`.
        seed: Seed of the stream and of the lengths.
        quick: Whether to use a shorter stream.
        makers: Factories of policies.
    """
    placement, _, inner = policy.partition("/")
    return _replay_events(placement, inner, _stream(seed, quick), seed, makers).metrics.usd_per_work_hour


@lru_cache(maxsize=8)
def _stream(seed: int, quick: bool) -> Scenario:
    return with_models(make_workload("production", WorkloadOptions(seed=seed, jobs=QUICK_JOBS if quick else None)))


class GainPoint(NamedTuple):
    """The gain of one policy at one point of the sweep.

    Attributes:
        varied: Quantity that is varied.
        value: Value of the quantity.
        policy: Rollout policy.
        gain: Gain of the policy over `plain`.
        unit: Unit in which the gain is computed, `seconds` or `GPU-seconds`.
    """

    varied: str
    value: float
    policy: str
    gain: float
    unit: str


_UNITS = ("seconds", "GPU-seconds")
_MIDDLE = {"tail weight": 1.2, "prompts": 32.0, "GPUs": 16.0}
_VARIED = {
    "tail weight": (0.3, 0.6, 0.9, 1.2, 1.5, 1.8),
    "prompts": (8.0, 16.0, 32.0, 64.0, 128.0),
    "GPUs": (4.0, 8.0, 16.0, 32.0, 64.0),
}


def sweep(policies: Sequence[str], seed: int, makers: Makers) -> list[GainPoint]:
    """Return the gains of policies over `plain` around a 14B job on 16 H20.

    The job has 32 prompts with 8 responses of median 700 and at most 16k tokens. One of three quantities is varied: the tail weight
    (sigma of the lognormal lengths), the prompts, the GPUs. A gain is in seconds of a rollout. For a policy that migrates tails it
    is in GPU-seconds until the GPUs are free for another job.

    Args:
        policies: Rollout policies to compare with `plain`.
        seed: Seed of the lengths.
        makers: Factories of policies.
    """
    points = []
    for varied, values in _VARIED.items():
        for value in values:
            at = _MIDDLE | {varied: value}
            lengths = Lognormal(16384, 700.0, at["tail weight"])
            where = replace(setting("14B", "H20", int(at["GPUs"]), 1, lengths), prompts=int(at["prompts"]))
            costs = {name: _compute_rollout_means(where, makers.rollout(name), seed) for name in ("plain", *policies)}
            for name in policies:
                unit = 0 if migration_of(makers.rollout(name)) is None else 1
                points.append(GainPoint(varied, value, name, costs["plain"][unit] / costs[name][unit], _UNITS[unit]))
    return points


def _compute_rollout_means(where: Setting, policy: RolloutPolicy, seed: int) -> tuple[float, float]:
    """Return the mean seconds of rollouts, and the mean GPU-seconds that they hold.

    A rollout holds all GPUs until its tail moves, then the tail's share.
    """
    job, migration = JobRollouts(where, policy, seed), migration_of(policy)
    seconds, gpu_s = 0.0, 0.0
    for _ in range(ROLLOUTS):
        one = job.next()
        seconds += one.seconds
        moved_s = one.seconds if migration is None else one.done_s(migration.at)
        gpu_s += where.gpus * (moved_s + (migration.share if migration else 1.0) * (one.seconds - moved_s))
    return seconds / ROLLOUTS, gpu_s / ROLLOUTS


# Assumed correlations of the lengths of one prompt's responses, which RollPacker does not print.
ALIKE = (0.0, 0.5)

SIZED = {"14B": (1, 2, 4, 8), "32B": (2, 4, 8)}  # replica sizes of OrchestrRL's case, assumed

MIGRATION = "tail-migration,careful=true"
BOTH = f"tail-batching+{MIGRATION}"


Measured = tuple[RolloutCase, dict[tuple[str, str], float]]  # a case, and the papers' figures by policy and heading


def _pair(first: str, second: str, gain: float) -> Measured:
    policies = ("plain", "tail-migration", MIGRATION, "tail-batching", BOTH)
    return RolloutCase(f"{first} and {second}", policies, partial(pair_s, (first, second))), {("tail-migration", GAIN): gain}


def _packed(name: str, job: PackedJob, alike: float) -> Measured:
    policies = ("plain", "tail-batching", "tail-batching,each_engine=true")
    return RolloutCase(f"{name} on {job.gpus} H800, alike {alike:g}", policies, partial(packed_s, job, alike)), {
        ("plain", SECONDS): job.plain_s,
        ("tail-batching", SECONDS): job.batched_s,
        ("tail-batching", GAIN): job.plain_s / job.batched_s,
    }


def _at(policy: str, *sizes: int) -> tuple[str, ...]:
    return tuple(f"{policy}{AT}{parallel}" for parallel in sizes)


def _sized(size: str, gain: float) -> Measured:
    sizes = SIZED[size]
    static, ends = _at("plain", *sizes), (sizes[0], sizes[-1])
    adaptive = _at("adaptive-parallelism", *ends)
    policies = (*static, *adaptive, *_at("tail-batching", *ends), *_at("tail-batching+adaptive-parallelism", *ends))
    measure = partial(sized_s, size, 48, make_packed_lengths(16384))
    return RolloutCase(f"{size}-16k on 48 H800", policies, measure, static=static), {(one, OVER_BEST): gain for one in adaptive}


_STREAM = RolloutCase(
    "production stream",
    (
        *("solo/plain", "solo/tail-batching", "rollmux/plain", "rollmux/tail-batching"),
        *("rollmux/tail-migration", "rollmux/tail-batching+tail-migration"),
    ),
    stream_usd,
    DOLLARS,
)
_MEASURED: tuple[Measured, ...] = (
    *(_pair(first, *rest) for first, rest in source("rollmux").table("migration", tuple[str, float])),
    *(_packed(name, job, alike) for name, job in PACKED_JOBS.items() for alike in ALIKE),
    *(_sized(size, gain) for size, (gain,) in source("orchestrrl").table("adaptive_parallelism", tuple[float])),
    (_STREAM, {}),
)
CASES = tuple(case for case, _ in _MEASURED)
SWEPT = ("tail-batching", "tail-migration", "adaptive-parallelism", "tail-batching+tail-migration")

SUITE = make_published_suite(
    "rollpacker",
    "rollout",
    columns=COLUMNS,
    paper={(case.label, policy, heading): figure for case, papers in _MEASURED for (policy, heading), figure in papers.items()},
    measure=partial(rollout_rows, CASES),
    compares="rollout policies",
    adds="rollout",
    sweep=partial(sweep, SWEPT),
)
