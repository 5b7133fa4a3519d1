"""Decisions per second of the two training algorithms, on one core, for Placement-v0 without moves.

    python benchmarks/learning_speed.py --rounds 3

Both algorithms train with the settings of the preset `production`, alternating. An update of each comes first and is not counted:
it compiles the kernel. Times are CPU seconds of this process, with those of the environment.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import torch
from rich.table import Table
from stable_baselines3.common.logger import Logger

from rollmux_env.report.tables import show
from trainers.config import read_config
from trainers.group_ppo import group_ppo
from trainers.maskable_ppo import maskable_ppo
from trainers.problems.catalogue import make_problem

STEPS = 8192  # decisions of an update at least
JOBS = "environment.options.jobs=60"
OWN = {"group-ppo": [], "maskable-ppo": ["streams=64", "ppo={}"]}  # settings in which the algorithms cannot be equal


def learner(algorithm: str) -> Callable[[], float]:
    """Return a function that trains for an update, and returns the decisions per second of it."""
    config = read_config("production", [f"algorithm={algorithm}", JOBS, *OWN[algorithm]])
    make = group_ppo if algorithm == "group-ppo" else maskable_ppo
    model = make(config, make_problem(config.environment, "production"), 0)  # type: ignore[arg-type]
    model.set_logger(Logger(None, []))

    def learn() -> float:
        began_s, before = process_time(), model.num_timesteps
        model.learn(STEPS, reset_num_timesteps=before == 0)
        return (model.num_timesteps - before) / (process_time() - began_s)

    return learn


def main() -> None:
    """Print the decisions per second of each algorithm and round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    learners = {algorithm: learner(algorithm) for algorithm in OWN}
    for learn in learners.values():
        learn()
    table = Table("algorithm", *(f"round {number + 1}" for number in range(options.rounds)), title="decisions per CPU second")
    rounds = [{algorithm: learn() for algorithm, learn in learners.items()} for _ in range(options.rounds)]
    for algorithm in learners:
        table.add_row(algorithm, *(f"{one[algorithm]:,.0f}" for one in rounds))
    show(table)


if __name__ == "__main__":
    main()
