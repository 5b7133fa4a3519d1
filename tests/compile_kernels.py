"""Compile what many tests run. `make test` does so beside the linters, which leave a core idle and take about as long.

Numba keeps machine code on disk. What is not compiled here is compiled by the first test that runs it.
"""

from __future__ import annotations

import numpy as np

from policies.placement.consolidate import Consolidate
from policies.placement.learned import Learned
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.replay.fluid import replay
from rollmux_env.workloads import WorkloadOptions, make_workload

STREAM = make_workload("production", WorkloadOptions(jobs=12))


def main() -> None:
    """A few decisions of the policies that search, and a step of rollouts and of dispatch."""
    for policy in (Consolidate(), Learned()):
        replay(STREAM, policy)
    for env in (RolloutVectorEnv(), DispatchVectorEnv()):
        observation, _ = env.reset(seed=0)
        env.step(np.argmax(observation["mask"], axis=1))
        env.close()


if __name__ == "__main__":
    main()
