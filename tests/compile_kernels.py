"""Compile what many tests run. `make test` does so beside the linters, which leave a core idle for most of their time.

Numba keeps machine code on disk. What is not compiled here is compiled by the first test that runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from policies.dispatch.rules import RoundRobin
from policies.placement.algorithm1 import Algorithm1
from policies.placement.consolidate import Consolidate
from policies.placement.learned import Learned
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.workloads import WorkloadOptions, make_workload


def placement() -> None:
    """A few decisions of the policies that search, and a step of their environment."""
    stream = make_workload("production", WorkloadOptions(jobs=12))
    for policy in (Consolidate(), Learned()):
        replay(stream, policy)
    for moves in (False, True):
        _step(PlacementVectorEnv(1, moves=moves, autoreset_mode="Disabled"))


def turns() -> None:
    """A step of rollouts and of dispatch, and jobs that take turns."""
    for env in (RolloutVectorEnv(), DispatchVectorEnv()):
        _step(env)
    replay_events(make_workload("production", WorkloadOptions(jobs=2, stays="iterations")), Algorithm1(), RoundRobin(), seed=0)


def _step(env: RolloutVectorEnv | DispatchVectorEnv | PlacementVectorEnv) -> None:
    observation, _ = env.reset(seed=0)
    env.step(np.argmax(observation["mask"], axis=1))
    env.close()


def main() -> None:
    """Both at once: they have few functions in common."""
    parts: tuple[Callable[[], None], ...] = (placement, turns)
    with ProcessPoolExecutor(len(parts), get_context("spawn")) as pool:
        for future in [pool.submit(part) for part in parts]:
            future.result()


if __name__ == "__main__":
    main()
