"""`rollout`: long-tail migration (RollMux), tail batching (RollPacker), adaptive parallelism (OrchestrRL), beside their papers."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.rollouts import (
    COLUMNS,
    DOLLARS,
    GAIN,
    SECONDS,
    PublishedJob,
    RolloutCase,
    Stage,
    packed_s,
    pair_s,
    rollout_s,
    setting,
    step_s,
    stream_usd,
)
from rollmux_env.bench.suite import Suite
from rollmux_env.timing.lengths import Piecewise

# RollMux, arXiv 2512.11306: gain of long-tail migration for pairs of jobs that share their nodes.
PAIRS = {("7B-4k", "7B-4k"): 1.12, ("7B-8k", "7B-8k"): 1.19, ("7B-8k", "14B-8k"): 1.06, ("14B-8k", "14B-8k"): 1.28}

# RollPacker, arXiv 2509.21009: seconds of a rollout, plain and with tail batching, by (size, H800s, tensor parallelism, cap).
PACKED = {("7B", 16, 1, 8): (82.0, 47.0), ("14B", 32, 2, 16): (277.0, 88.0), ("32B", 64, 4, 32): (673.0, 170.0)}

# Its ablation, gains of a whole step: (tail batching, + rewards as responses finish, + planner, + stream trainer).
STEPS = {
    ("7B", 16, 1, 8): (1.30, 2.01, 2.01, 2.03),
    ("14B", 32, 2, 16): (1.48, 1.99, 2.02, 2.22),
    ("32B", 64, 4, 32): (2.21, 2.48, 2.52, 2.56),
}
STAGES = {
    "plain": Stage("plain", False),
    "tail-batching": Stage("tail-batching", False),
    "+ rewards": Stage("tail-batching", True),
    "+ planner": Stage("tail-batching+parallelism-planner", True),
    "+ stream trainer": Stage("tail-batching+stream-trainer", True),
}

# OrchestrRL, arXiv 2601.01209: gain in throughput on 48 H800; what it is compared with is not known to us.
SHAPED = {"14B-16k on 48 H800, 1": 1.40, "32B-16k on 48 H800, 2": 1.34}

MIGRATION = "tail-migration,careful=true"
BOTH = f"tail-batching+{MIGRATION}"


def tail(cap: int) -> Piecewise:
    """RollPacker's lengths up to a cap: median 500 to 700, 90% at most 1.3k to 2.3k, 95 to 98% below 4k, 2 to 5% at the cap."""
    return Piecewise(cap, ((0.5, 600.0), (0.9, 1800.0), (0.965, 4096.0), (0.98, float(cap))))


def _pair(kinds: tuple[str, str]) -> str:
    return " and ".join(kinds)


def _packed(key: tuple[str, int, int, int], alike: bool) -> str:
    size, gpus, _, cap = key
    return f"{size}-{cap}k on {gpus} H800" + (", alike 0.5" if alike else "")


def _published(key: tuple[str, int, int, int]) -> PublishedJob:
    size, gpus, parallel, cap = key
    return PublishedJob(size, gpus, parallel, tail(1024 * cap), PACKED[key][0])


_PAIRS = tuple(
    RolloutCase(_pair(kinds), ("plain", "tail-migration", MIGRATION, "tail-batching", BOTH), partial(pair_s, kinds))
    for kinds in PAIRS
)
_PACKED = tuple(
    RolloutCase(
        _packed(key, alike > 0),
        ("plain", "tail-batching"),
        partial(packed_s, _published(key), alike),
    )
    for alike in (0.0, 0.5)
    for key in PACKED
)


def rewards_and_training_s(key: tuple[str, int, int, int]) -> tuple[float, float]:
    """What the published gains leave for rewards and training, seconds, if steps are all these and rewards can be hidden."""
    plain_s, batched_s = PACKED[key]
    first, second, *_ = STEPS[key]
    base_s = (plain_s - batched_s) / (1 - 1 / first)
    return base_s / first - base_s / second, base_s / second - batched_s


_STEPS = tuple(
    RolloutCase(
        f"step, {_packed(key, False)}",
        tuple(STAGES),
        partial(step_s, _published(key), rewards_and_training_s(key), STAGES),
    )
    for key in STEPS
)
_SHAPED = tuple(
    RolloutCase(
        f"{size}-16k on 48 H800, {parallel} GPUs a replica",
        ("plain", "adaptive-parallelism", "tail-batching", "tail-batching+adaptive-parallelism"),
        partial(rollout_s, partial(setting, size, "H800", 48, parallel, tail(16384))),
    )
    for size, parallel in (("14B", 1), ("14B", 4), ("32B", 2), ("32B", 8))
)
_STREAM = RolloutCase(
    "production stream",
    (
        "solo/plain",
        "solo/tail-batching",
        "rollmux/plain",
        "rollmux/tail-batching",
        "rollmux/tail-migration",
        "rollmux/tail-batching+tail-migration",
    ),
    stream_usd,
    DOLLARS,
)

SWEPT = ("tail-batching", "tail-migration", "adaptive-parallelism", "tail-batching+tail-migration")
CASES = (*_PAIRS, *_PACKED, *_STEPS, *_SHAPED, _STREAM)

SUITE = Suite(
    name="rollout",
    title="Inside rollouts: seconds of a rollout, or of an iteration of a pair; $/work-h of a stream",
    source="RollMux, RollPacker, OrchestrRL",
    cases=(),
    columns=COLUMNS,
    paper={
        **{(_pair(kinds), "tail-migration", GAIN): gain for kinds, gain in PAIRS.items()},
        **{(_packed(key, False), "plain", SECONDS): seconds[0] for key, seconds in PACKED.items()},
        **{(_packed(key, False), "tail-batching", SECONDS): seconds[1] for key, seconds in PACKED.items()},
        **{(_packed(key, False), "tail-batching", GAIN): seconds[0] / seconds[1] for key, seconds in PACKED.items()},
        **{
            (f"step, {_packed(key, False)}", stage, GAIN): gain
            for key, gains in STEPS.items()
            for stage, gain in zip(tuple(STAGES)[1:], gains, strict=True)
        },
        **{(f"{size} GPUs a replica", "adaptive-parallelism", GAIN): gain for size, gain in SHAPED.items()},
    },
    differences=(
        "Pairs: on-policy, no schedule beats one job alone. Two 14B-8k jobs can gain 1.10x at most here (1.09x by the phase "
        "times that the paper prints), so 1.28x needs longer rollouts than these; beside 7B-8k, the 14B-8k job alone is the bound, "
        "and careful=true leaves its tail where it is.",
        "RollPacker: one number a row, the fixed seconds of a step, is fitted to the plain rollout; the rest is predicted.",
        "8k: the paper's short rounds take 38 s, as long as at 16k and 32k, ours 26 s: a part of its seconds may not be decoding.",
        "alike 0.5: a prompt with long responses is likely to have long ones again; long rounds are then slower than plain ones.",
        "Steps: seconds of rewards and training are what the paper's own gains leave for them; only rollouts and overlap are ours.",
        "OrchestrRL: a model without the cost of messages inside a replica favours large replicas: where they are large already, "
        "changing their size gains 5% (14B) or nothing (32B). The paper's baseline and lengths are not known to us.",
    ),
    seeds=3,
)
