"""Decisions per second of the environments on one core, with vector environments and through `gymnasium.make`.

    python benchmarks/environment.py

In placement the agent takes the cheapest place, as Algorithm 1 without pruning does, and the first row of moves as long as it
gains. In dispatch it takes the last member that may be served. In rollouts it changes nothing. The time of choosing an action is
not counted; the time of drawing new streams at the ends of episodes is. Every stream is played to its end at least once, since a
decision takes longer when more jobs run. Times are CPU seconds of this process, so that other processes on the machine influence
them less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import gymnasium
import numpy as np
from rich.table import Table

import rollmux_env  # noqa: F401 (registers)
from rollmux_env.envs.placement.observation import candidate_names
from rollmux_env.report.tables import show

PLACEMENT, DISPATCH, ROLLOUT = "RollMux/Placement-v0", "RollMux/Dispatch-v0", "RollMux/Rollout-v0"
PRICE, GAIN = (candidate_names(True).index(name) for name in ("price", "gain"))
Agent = Callable[[dict[str, np.ndarray]], np.ndarray]


def place(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Choose the first of the cheapest allowed places. In a table of moves, choose row 1 if it gains, else row 0: stop."""
    rows = observation["candidates"]
    places = np.where(observation["mask"] == 1, rows[..., PRICE], np.inf).argmin(-1)
    if rows.shape[-1] <= GAIN:
        return places
    return np.where(observation["cluster"][..., 0] == 1, rows[..., 1, GAIN] > 0, places)


def serve(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Choose the last member that may be served, or else to wait."""
    mask = observation["mask"]
    return mask.shape[-1] - 1 - mask[..., ::-1].argmax(-1)


def keep_on(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Choose row 0, which changes nothing."""
    return np.zeros(len(np.atleast_2d(observation["mask"])), dtype=np.int64)


def vectorised(name: str, choose: Agent, streams: int, decisions: int, **options: object) -> tuple[float, float]:
    """Measure a vector environment.

    Args:
        name: Id of the environment.
        choose: Agent.
        streams: Number of streams.
        decisions: Smallest number of decisions.
        **options: Options of the environment.

    Returns:
        Decisions per second, and the mean number of rows in a table of candidates.
    """
    envs = gymnasium.make_vec(name, num_envs=streams, vectorization_mode="vector_entry_point", **options)
    observation, _ = envs.reset(seed=0)
    envs.step(choose(observation))  # compiles, or loads what was compiled
    observation, _ = envs.reset(seed=0)
    seconds, rows, steps, ended = 0.0, 0.0, 0, 0
    while ended < streams or steps * streams < decisions:
        actions = choose(observation)
        began = process_time()
        observation, _, terminated, truncated, _ = envs.step(actions)
        over = terminated | truncated
        seconds += process_time() - began
        rows += float(observation["candidates"].any(-1).sum(1).mean())
        ended += int(over.sum())
        steps += 1
    return streams * steps / seconds, rows / steps


def single(name: str, choose: Agent, decisions: int, **options: object) -> float:
    """Return the decisions per second through `gymnasium.make`, with its wrappers."""
    env = gymnasium.make(name, **options)
    observation, _ = env.reset(seed=0)
    seconds = 0.0
    for _ in range(decisions):
        action = int(choose(observation))
        began = process_time()
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
        seconds += process_time() - began
    return decisions / seconds


def main() -> None:
    """Measure the environments, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", default=["mixed", "production"])
    parser.add_argument("--streams", type=int, nargs="*", default=[16, 64, 256])
    parser.add_argument("--decisions", type=int, default=200_000)
    arguments = parser.parse_args()
    cases: list[tuple[str, str, Agent, int, dict[str, object]]] = []
    for workload in arguments.workloads:
        cases.append((PLACEMENT, f"{workload}, no moves", place, 1, {"generator": workload}))
        cases.append((PLACEMENT, f"{workload}, moves", place, 10, {"generator": workload, "moves": True}))
    cases.append((DISPATCH, "all shapes", serve, 1, {}))
    cases.append((ROLLOUT, "all jobs", keep_on, 20, {}))
    speeds = (f"{streams} streams, decisions/s" for streams in arguments.streams)
    table = Table("environment", "streams", "rows of a table", *speeds, "gymnasium.make")
    for name, streams_of, agent, slower, options in cases:
        decisions = arguments.decisions // slower
        rates = [vectorised(name, agent, streams, decisions, **options) for streams in arguments.streams]
        alone = single(name, agent, decisions // 10, **options)
        table.add_row(name, streams_of, f"{rates[-1][1]:.0f}", *(f"{speed:,.0f}" for speed, _ in rates), f"{alone:,.0f}")
    show(table)


if __name__ == "__main__":
    main()
