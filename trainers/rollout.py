"""The rollout problem for the trainers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.placement.policy_file import PolicyConfig
from policies.rollout.environment import PolicyAgent
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import RandomJobs
from rollmux_env.envs.rollout.observation import feature_names
from rollmux_env.envs.rollout.reward import Cost
from trainers.config import Settings
from trainers.problem import Figures
from trainers.vec_env import play


class RolloutProblem(Settings):
    """`RollMux/Rollout-v0`: arguments of its generator and its reward. A reference's dollars are its cost over that of `plain`."""

    name: Literal["rollout"] = "rollout"
    """The environment `RollMux/Rollout-v0`."""
    sigma: Annotated[float, Field(ge=0, le=3)] | None = None
    """Sigma of the lengths; null: drawn, 0.3 to 1.8."""
    rollouts: Annotated[int, Field(ge=1, le=50)] = 5
    """Rollouts of an episode."""
    rewards: bool = False
    """Rewards of responses take time, on nodes of their own, and the network reads what waits."""
    held_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of held GPU-seconds beside the job's own seconds."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 0.01
    """Penalty of a masked action."""

    @cached_property
    def generator(self) -> RandomJobs:
        """The generator of jobs."""
        return RandomJobs(self.sigma, self.rollouts, self.rewards)

    def training(self, streams: int) -> RolloutVectorEnv:
        """See `Problem`."""
        return self._environment(streams, autoreset=True)

    def held_out(self, streams: int) -> RolloutVectorEnv:
        """See `Problem`."""
        return self._environment(streams, autoreset=False)

    def reference_key(self, seed: int) -> str:
        """See `Problem`."""
        return hashlib.sha256(repr((self.generator.case(seed), self.held_weight)).encode()).hexdigest()

    def reference_usd(self, policy: str, seed: int) -> float:
        """See `Problem`: the cost of an episode over that of `plain`."""
        env = self._environment(1, autoreset=False)
        return -float(play(env, [seed], PolicyAgent(policy, env).actions)["return"][0])

    def figures(
        self, env: VectorEnv[Any, Any, Any], played: Figures, references: Mapping[str, NDArray[np.float64]]
    ) -> dict[str, float]:
        """See `Problem`. A ratio is taken job by job."""
        return {
            "return": float(played["return"].mean()),
            **{f"cost_over_{name}": float((-played["return"] / other).mean()) for name, other in references.items()},
            "seconds_over_plain": float(played["seconds_over_plain"].mean()),
            "held_over_plain": float(played["held_over_plain"].mean()),
            "switches": float(played["switches"].mean()),
            "migrated": float(played["migrated"].mean()),
        }

    def policy_config(self, widths: tuple[int, ...], provenance: dict[str, str | int | float]) -> PolicyConfig:
        """See `Problem`."""
        job, row, state = feature_names(self.rewards)
        return PolicyConfig(
            decides="rollout",
            job_features=job,
            candidate_features=row,
            cluster_features=state,
            widths=widths,
            provenance=provenance,
        )

    def _environment(self, streams: int, autoreset: bool) -> RolloutVectorEnv:
        return RolloutVectorEnv(streams, self.generator, Cost(self.held_weight, self.invalid_penalty), autoreset=autoreset)
