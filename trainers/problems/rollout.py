"""Rollout: which responses of a job run where, for the least time and the fewest held GPUs."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.rollout.environment import PolicyAgent
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import RandomJobs
from rollmux_env.envs.rollout.observation import STATE_FEATURES
from rollmux_env.envs.rollout.reward import Cost
from trainers.problem import Figures, Problem, autoreset_mode
from trainers.vec_env import play


class RolloutProblem(Problem):
    """The problem on `RollMux/Rollout-v0`: arguments of its generator and its reward. "Dollars" are costs relative to `plain`."""

    name: Literal["rollout"] = "rollout"
    """The environment `RollMux/Rollout-v0`."""
    sigma: Annotated[float, Field(ge=0, le=3)] | None = None
    """Sigma of the lengths; null: drawn from 0.3 to 1.8."""
    rollouts: Annotated[int, Field(ge=1, le=50)] = 5
    """Number of rollouts of an episode."""
    rewards: bool = False
    """Whether rewards take time on separate nodes, and the responses that wait for theirs are observed."""
    limited: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the jobs that move no tails, as in event replays; half of them launch no spare ones either, as in real runs."""
    held_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of held GPU-seconds relative to the job's seconds."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 0.01
    """Penalty of a masked action."""

    @cached_property
    def generator(self) -> RandomJobs:
        """Generator of jobs."""
        return RandomJobs(self.sigma, self.rollouts, self.rewards, self.limited)

    def environment(self, streams: int, autoreset: bool = True) -> RolloutVectorEnv:
        """Create an environment with random jobs."""
        return RolloutVectorEnv(
            streams, self.generator, Cost(self.held_weight, self.invalid_penalty), autoreset_mode=autoreset_mode(autoreset)
        )

    def reference_key(self, seed: int) -> str:
        """Return a hash of the job and of the weights of its cost."""
        return hashlib.sha256(repr((self.generator.case(seed), self.held_weight)).encode()).hexdigest()

    def reference_usd(self, policy: str, seed: int) -> float:
        """Return the cost of a policy's episode relative to `plain`."""
        env = self.environment(1, autoreset=False)
        return float(self.usd(play(env, [seed], PolicyAgent(policy, env).actions))[0])

    def usd(self, played: Figures) -> NDArray[np.float64]:
        """Return the cost of each episode relative to `plain`."""
        return -np.asarray(played["return"])

    def progress(self, env: RolloutVectorEnv, observation: Figures) -> NDArray[np.float64]:
        """Return the number of rollouts of each job, with the finished share of the current one."""
        return np.asarray(env.jobs.jobs["iteration"] + observation["cluster"][:, STATE_FEATURES.index("finished")])

    def columns(self, env: VectorEnv[Any, Any, Any], played: Figures, references: Figures) -> Figures:
        """Return cost relative to other policies, seconds and held GPUs relative to `plain`, and counts of switches and moves."""
        names = ("seconds_over_plain", "held_over_plain", "switches", "migrated")
        over = {f"cost_over_{name}": self.usd(played) / other for name, other in references.items()}
        return over | {name: played[name] for name in names}
