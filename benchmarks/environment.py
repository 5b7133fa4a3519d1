"""Decisions a second of the placement environment on one core: vectorised, and through `gymnasium.make`.

    python benchmarks/environment.py

The agent takes the cheapest place, as Algorithm 1 without pruning does; what it takes to choose is not counted. Drawing new streams
at the ends of episodes is. Seconds are of this process's own computing (`process_time`), so that neighbours on the machine count
less.
"""

from __future__ import annotations

import argparse
from time import process_time

import gymnasium
import numpy as np
from rich.table import Table

import rollmux_env.envs  # noqa: F401 (registers)
from rollmux_env.report.tables import show

ID = "RollMux/Placement-v0"


def cheapest(observation: dict[str, np.ndarray]) -> np.ndarray:
    """The first of the cheapest allowed rows, from the features: column 1 is the price."""
    price = np.where(observation["mask"] == 1, observation["candidates"][..., 1], np.inf)
    return price.argmin(-1)


def vectorised(workload: str, streams: int, decisions: int, **options: bool) -> tuple[float, float]:
    """Decisions a second of the vector environment, and mean rows of a table."""
    envs = gymnasium.make_vec(ID, num_envs=streams, vectorization_mode="vector_entry_point", generator=workload, **options)
    observation, _ = envs.reset(seed=0)
    seconds, rows, steps = 0.0, 0.0, max(20, decisions // streams)
    for step in range(steps + 20):
        actions = cheapest(observation)
        began = process_time()
        observation, *_ = envs.step(actions)
        if step >= 20:
            seconds += process_time() - began
            rows += float(observation["candidates"][:, :, 0].sum(1).mean())
    return streams * steps / seconds, rows / steps


def single(workload: str, decisions: int, **options: bool) -> float:
    """Decisions a second through `gymnasium.make`, with its wrappers."""
    env = gymnasium.make(ID, generator=workload, **options)
    observation, _ = env.reset(seed=0)
    seconds = 0.0
    for _ in range(decisions):
        action = int(cheapest(observation))
        began = process_time()
        observation, _, over, _, _ = env.step(action)
        if over:
            observation, _ = env.reset()
        seconds += process_time() - began
    return decisions / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", default=["mixed", "production"])
    parser.add_argument("--streams", type=int, nargs="*", default=[16, 64, 256])
    parser.add_argument("--decisions", type=int, default=200_000)
    arguments = parser.parse_args()
    table = Table(
        "workload", "moves", "rows of a table", *(f"{n} streams, decisions/s" for n in arguments.streams), "gymnasium.make"
    )
    for workload in arguments.workloads:
        for moves in (False, True):
            decisions = arguments.decisions // (10 if moves else 1)
            found = [vectorised(workload, streams, decisions, moves=moves) for streams in arguments.streams]
            cells = [f"{speed:,.0f}" for speed, _ in found]
            alone = single(workload, decisions // 10, moves=moves)
            table.add_row(workload, str(moves).lower(), f"{found[-1][1]:.0f}", *cells, f"{alone:,.0f}")
    show(table)


if __name__ == "__main__":
    main()
