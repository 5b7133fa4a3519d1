"""`rollout`: long-tail migration (RollMux), tail batching (RollPacker), adaptive parallelism (OrchestrRL), beside their papers."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.rollouts import (
    AT,
    COLUMNS,
    DOLLARS,
    GAIN,
    OVER_BEST,
    SECONDS,
    RolloutCase,
    Stage,
    packed_s,
    pair_s,
    rollout_rows,
    sized_s,
    step_s,
    stream_usd,
    sweep,
)
from rollmux_env.bench.suites.published import published_suite
from rollmux_env.bench.tables.rollmux import PACKED_JOBS, PackedJob, packed_lengths
from rollmux_env.published import source

# Correlation of the lengths of one prompt's responses, which RollPacker does not print.
ALIKE = (0.0, 0.5)

# RollPacker's gains of a whole step: tail batching, + rewards as responses finish, + planner, + stream trainer.
STEPS = dict(source("rollpacker").table("steps", tuple[float, float, float, float]))
STAGES = {
    "plain": Stage("plain", False),
    "tail-batching": Stage("tail-batching", False),
    "+ rewards": Stage("tail-batching", True),
    "+ planner": Stage("tail-batching+parallelism-planner", True),
    "+ stream trainer": Stage("tail-batching+stream-trainer", True),
}

SIZED = {"14B": (1, 2, 4, 8), "32B": (2, 4, 8)}  # sizes of replicas that OrchestrRL's case compares: ours

MIGRATION = "tail-migration,careful=true"
BOTH = f"tail-batching+{MIGRATION}"


Measured = tuple[RolloutCase, dict[tuple[str, str], float]]  # a case, and what the papers have for it, by policy and heading


def rewards_and_training_s(name: str) -> tuple[float, float]:
    """What the published gains leave for rewards and training, seconds, if steps are all these and rewards can be hidden."""
    job = PACKED_JOBS[name]
    first, second, *_ = STEPS[name]
    base_s = (job.plain_s - job.batched_s) / (1 - 1 / first)
    return base_s / first - base_s / second, base_s / second - job.batched_s


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


def _step(name: str, job: PackedJob) -> Measured:
    measure = partial(step_s, job, rewards_and_training_s(name), STAGES)
    case = RolloutCase(f"{name} on {job.gpus} H800: step, derived", tuple(STAGES), measure)
    return case, {(stage, GAIN): gain for stage, gain in zip(tuple(STAGES)[1:], STEPS[name], strict=True)}


def _at(policy: str, *sizes: int) -> tuple[str, ...]:
    return tuple(f"{policy}{AT}{parallel}" for parallel in sizes)


def _sized(size: str, gain: float) -> Measured:
    sizes = SIZED[size]
    static, ends = _at("plain", *sizes), (sizes[0], sizes[-1])
    adaptive = _at("adaptive-parallelism", *ends)
    policies = (*static, *adaptive, *_at("tail-batching", *ends), *_at("tail-batching+adaptive-parallelism", *ends))
    measure = partial(sized_s, size, 48, packed_lengths(16384))
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
    *(_step(name, job) for name, job in PACKED_JOBS.items()),
    *(_sized(size, gain) for size, (gain,) in source("orchestrrl").table("adaptive_parallelism", tuple[float])),
    (_STREAM, {}),
)
CASES = tuple(case for case, _ in _MEASURED)
SWEPT = ("tail-batching", "tail-migration", "adaptive-parallelism", "tail-batching+tail-migration")

SUITE = published_suite(
    "rollpacker",
    "rollout",
    columns=COLUMNS,
    paper={(case.label, policy, heading): figure for case, papers in _MEASURED for (policy, heading), figure in papers.items()},
    measure=partial(rollout_rows, CASES),
    compares="rollout policies, and has its own",
    sweep=partial(sweep, SWEPT),
)
