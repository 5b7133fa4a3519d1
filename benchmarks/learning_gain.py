"""Gain of reinforcement learning in each environment over policies that have learned nothing.

python benchmarks/learning_gain.py [--decisions 8192] [--seeds 10]

For each environment and the streams of `--seeds` held-out seeds from 100 on, the table says how many times smaller a policy's
dollars are than the reference's, paired by seed. Above 1 the policy is cheaper. Dollars are those of a stream at equal work
(Placement-v0), those of a work-hour (Dispatch-v0), and the cost relative to `plain` (Rollout-v0). `ppo` is trained here on one core
from random weights, as by `rollmux train`, for `--decisions` decisions. `learned:default` is the policy that comes with RollMux.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.bench.intervals import mean_interval, ratios
from rollmux_env.report.tables import heading, make_table, show
from trainers.config import read_config
from trainers.problem import Problem, make_problem
from trainers.references import reference_usd
from trainers.runs import run_all

FIRST_SEED = 100


@dataclass(frozen=True)
class EnvironmentRows:
    """Part of the table for one environment.

    Attributes:
        title: Title of its rows.
        environment: Keys of a training configuration's environment.
        policies: Names of policies. The first one is the reference, and `ppo` is trained.
        each: Number of streams for a seed. The figure of a seed is their mean.
    """

    title: str
    environment: dict[str, Any]
    policies: tuple[str, ...]
    each: int = 1


PARTS = (
    EnvironmentRows(
        "Placement-v0, production, without moves",
        {"name": "placement", "workload": "production", "options": {"jobs": 60}},
        (
            *("rollmux", "masked-random", "untrained", "first-fit", "rollmux,prune=false"),
            *("ppo", "learned:default,moves=false", "consolidate"),
        ),
    ),
    EnvironmentRows(
        "Dispatch-v0",
        {"name": "dispatch"},
        ("round-robin,migrate=0.8", "masked-random", "untrained", "round-robin", "fifo,migrate=0.8", "ppo", "learned:default"),
        each=4,
    ),
    EnvironmentRows(
        "Rollout-v0",
        {"name": "rollout", "rollouts": 3},
        ("tail-batching", "masked-random", "untrained", "plain", "tail-batching+adaptive-parallelism", "ppo", "learned:default"),
    ),
)


def trained(part: EnvironmentRows, decisions: int, folder: Path) -> str:
    """Train a policy with masked PPO, and return the name of the best policy."""
    base = part.environment["name"] if part.environment["name"] in ("dispatch", "rollout") else "mixed"
    options = [f"environment={json.dumps(part.environment)}", f"steps={decisions}", f"evaluation.every={decisions}"]
    config = read_config(base, [*options, "evaluation.references=[]", "evaluation.seeds=4"])
    run_all(config, base, 1, folder, resume=False)
    moves = ",moves=false" if part.environment["name"] == "placement" else ""
    return f"learned:{folder}/seed-0/best.safetensors{moves}"


def figures(problem: Problem, policy: str, seeds: int, each: int) -> NDArray[np.float64]:
    """Return the mean dollars of a policy for each seed, of shape (seeds,)."""
    streams = range(FIRST_SEED, FIRST_SEED + seeds * each)
    return np.array([reference_usd(problem, policy, seed) for seed in streams]).reshape(seeds, each).mean(axis=1)


def main() -> None:
    """Train and measure the policies, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=8192)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    table = make_table("environment", "policy", "gain", "cheaper on", left=2)
    for part in PARTS:
        problem = make_problem(part.environment, part.title)
        table.add_section()
        with TemporaryDirectory() as folder:
            own = trained(part, options.decisions, Path(folder) / "run")
            base = figures(problem, part.policies[0], options.seeds, part.each)
            table.add_row(part.title, part.policies[0], "1", "")
            for policy in part.policies[1:]:
                usd = figures(problem, own if policy == "ppo" else policy, options.seeds, part.each)
                gains = [gain for gain in ratios(base.tolist(), usd.tolist()) if gain is not None]
                name = f"ppo, {options.decisions:,} decisions" if policy == "ppo" else policy
                table.add_row("", name, mean_interval(gains).text(3), f"{sum(gain > 1 for gain in gains)} of {options.seeds}")
    show(heading(f"gain over the first policy of each environment, {options.seeds} held-out seeds; above 1 is cheaper"), table)


if __name__ == "__main__":
    main()
