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
    PublishedJob,
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
from rollmux_env.bench.suite import Suite
from rollmux_env.bench.tables.rollmux import PACKED_JOBS, packed_lengths

# RollMux, arXiv 2512.11306: gain of long-tail migration for pairs of jobs that share their nodes.
PAIRS = {("7B-4k", "7B-4k"): 1.12, ("7B-8k", "7B-8k"): 1.19, ("7B-8k", "14B-8k"): 1.06, ("14B-8k", "14B-8k"): 1.28}

# RollPacker, arXiv 2509.21009: seconds of a rollout, plain and with tail batching, by (size, H800s, tensor parallelism, cap).
PACKED = {
    (size, devices, parallel, cap // 1024): (plain_s, batched_s)
    for (size, cap, devices, parallel, plain_s), batched_s in zip(PACKED_JOBS, (47.0, 88.0, 170.0), strict=True)
}

# Correlation of the lengths of one prompt's responses, which it does not print.
ALIKE = (0.0, 0.5)

# Its ablation, gains of a whole step: (tail batching, + rewards as responses finish, + planner, + stream trainer).
_GAINS = (1.30, 2.01, 2.01, 2.03), (1.48, 1.99, 2.02, 2.22), (2.21, 2.48, 2.52, 2.56)
STEPS = dict(zip(PACKED, _GAINS, strict=True))
STAGES = {
    "plain": Stage("plain", False),
    "tail-batching": Stage("tail-batching", False),
    "+ rewards": Stage("tail-batching", True),
    "+ planner": Stage("tail-batching+parallelism-planner", True),
    "+ stream trainer": Stage("tail-batching+stream-trainer", True),
}

# OrchestrRL, arXiv 2601.01209: gain in throughput on 48 H800 over the best static configuration; the sizes to compare are ours.
SIZED = {"14B": (1.40, (1, 2, 4, 8)), "32B": (1.34, (2, 4, 8))}

MIGRATION = "tail-migration,careful=true"
BOTH = f"tail-batching+{MIGRATION}"


Key = tuple[str, int, int, int]
Measured = tuple[RolloutCase, dict[tuple[str, str], float]]  # a case, and what the papers have for it, by policy and heading


def rewards_and_training_s(key: Key) -> tuple[float, float]:
    """What the published gains leave for rewards and training, seconds, if steps are all these and rewards can be hidden."""
    plain_s, batched_s = PACKED[key]
    first, second, *_ = STEPS[key]
    base_s = (plain_s - batched_s) / (1 - 1 / first)
    return base_s / first - base_s / second, base_s / second - batched_s


def _job(key: Key) -> tuple[str, PublishedJob]:
    """A label, and the job."""
    size, gpus, parallel, cap = key
    return f"{size}-{cap}k on {gpus} H800", PublishedJob(size, gpus, parallel, packed_lengths(1024 * cap), PACKED[key][0])


def _pair(kinds: tuple[str, str], gain: float) -> Measured:
    policies = ("plain", "tail-migration", MIGRATION, "tail-batching", BOTH)
    return RolloutCase(" and ".join(kinds), policies, partial(pair_s, kinds)), {("tail-migration", GAIN): gain}


def _packed(key: Key, alike: float) -> Measured:
    (label, job), (plain_s, batched_s) = _job(key), PACKED[key]
    policies = ("plain", "tail-batching", "tail-batching,each_engine=true")
    return RolloutCase(f"{label}, alike {alike:g}", policies, partial(packed_s, job, alike)), {
        ("plain", SECONDS): plain_s,
        ("tail-batching", SECONDS): batched_s,
        ("tail-batching", GAIN): plain_s / batched_s,
    }


def _step(key: Key) -> Measured:
    label, job = _job(key)
    case = RolloutCase(f"{label}: step, derived", tuple(STAGES), partial(step_s, job, rewards_and_training_s(key), STAGES))
    return case, {(stage, GAIN): gain for stage, gain in zip(tuple(STAGES)[1:], STEPS[key], strict=True)}


def _at(policy: str, *sizes: int) -> tuple[str, ...]:
    return tuple(f"{policy}{AT}{parallel}" for parallel in sizes)


def _sized(size: str, gain: float, sizes: tuple[int, ...]) -> Measured:
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
    *(_pair(kinds, gain) for kinds, gain in PAIRS.items()),
    *(_packed(key, alike) for key in PACKED for alike in ALIKE),
    *(_step(key) for key in STEPS),
    *(_sized(size, gain, sizes) for size, (gain, sizes) in SIZED.items()),
    (_STREAM, {}),
)
CASES = tuple(case for case, _ in _MEASURED)
SWEPT = ("tail-batching", "tail-migration", "adaptive-parallelism", "tail-batching+tail-migration")

SUITE = Suite(
    name="rollout",
    title="Inside rollouts: seconds of a rollout, or of an iteration of a pair; $/work-h of a stream",
    source="RollMux, RollPacker, OrchestrRL",
    cases=(),
    columns=COLUMNS,
    paper={(case.label, policy, heading): figure for case, papers in _MEASURED for (policy, heading), figure in papers.items()},
    differences=(
        "Pairs: on-policy, no schedule beats one job alone. Two 14B-8k jobs can gain 1.10x at most here (1.09x by the phase "
        "times that the paper prints), so 1.28x needs longer rollouts than these; beside 7B-8k, the 14B-8k job alone is the bound, "
        "and careful=true leaves its tail where it is.",
        "RollPacker: one number a job, the fixed seconds of a decode step, is fitted to the plain rollout; the rest is predicted.",
        "8k: the paper's short rounds take 38 s, as long as at 16k and 32k, ours 26 s: a part of its seconds may not be decoding.",
        "alike: correlation of the lengths of one prompt's responses, which the paper does not print. 0 is the best case: a prompt "
        "that is sampled again has a new length; with 0.5 long prompts stay long, and long rounds are slower than plain ones.",
        "each_engine=true is what the engines of real jobs do: each ends its share of the prompts for itself. RollPacker's round "
        "ends over all engines.",
        "Steps are no test: seconds of rewards and training are derived from the paper's own gains; only rollouts and overlap are "
        "ours. The planner halves the replicas of 14B after four rollouts without preemption, which a model without the cost of "
        "messages inside a replica makes a loss; those of 7B have one GPU already, and 32B does not fit into one. The stream "
        "trainer is without the planner.",
        "OrchestrRL: `gain` is over the smallest replicas; `gain, best size` is over the static size that is best here, which is "
        "what the paper compares with. A model without the cost of messages inside a replica favours large ones, so nothing is "
        "left to gain. The paper's lengths are not known to us.",
    ),
    seeds=3,
    measure=partial(rollout_rows, CASES),
    compares="rollout policies, and has its own",
    sweep=partial(sweep, SWEPT),
)
