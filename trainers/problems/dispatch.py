"""Dispatch: which phase of a group runs next, for the fewest dollars per work-hour."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.dispatch import make_dispatch
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.reward import Reference, Work
from trainers.problem import Figures, Problem, autoreset_mode


class DispatchProblem(Problem):
    """The problem on `RollMux/Dispatch-v0`: arguments of its generator and its reward. Dollars are per work-hour."""

    name: Literal["dispatch"] = "dispatch"
    """The environment `RollMux/Dispatch-v0`."""
    shape: str | None = None
    """Shape of the groups: `temporal`, `shared`, `rollout-heavy`, `spatial` or `multi-node`; null: all."""
    skew: float | None = None
    """Coefficient of variation of the phases, from 0 to 3; null: 0, 0.25, 0.5 and 1."""
    rounds: Annotated[int, Field(ge=1, le=40)] = 25
    """Length of an episode, in planned periods."""
    stale: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the groups that have stale members."""
    reference: Reference | None = None
    """Rule over which the gained work is the reward; null: the work."""
    slo_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty of a second behind an SLO, in seconds of work."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 0.01
    """Penalty of a masked action, as a share of the horizon."""

    @cached_property
    def generator(self) -> RandomGroups:
        """Generator of groups."""
        return RandomGroups(self.shape, self.skew, self.rounds, self.stale)

    def environment(self, streams: int, autoreset: bool = True) -> DispatchVectorEnv:
        """Create an environment with random groups."""
        reward = Work(self.reference, self.slo_penalty, self.invalid_penalty)
        return DispatchVectorEnv(streams, self.generator, reward, autoreset_mode=autoreset_mode(autoreset))

    def reference_key(self, seed: int) -> str:
        """Return the hash of the group."""
        return hashlib.sha256(repr(self.generator.group(seed)).encode()).hexdigest()

    def reference_usd(self, policy: str, seed: int) -> float:
        """Return the dollars per work-hour of a policy on a group."""
        group = self.generator.group(seed)
        return figures(group, replay_group(group, make_dispatch(policy)))["usd_per_work_hour"]

    def usd(self, played: Figures) -> NDArray[np.float64]:
        """Return the dollars per work-hour of each episode."""
        return np.asarray(played["usd_per_work_hour"])

    def progress(self, env: DispatchVectorEnv, observation: Figures) -> NDArray[np.float64]:
        """Return the time of each group in planned periods."""
        groups = env.groups
        return np.asarray(groups.groups["now_s"] / groups.clocks["horizon_s"] * self.rounds)

    def columns(self, env: VectorEnv[Any, Any, Any], played: Figures, references: Figures) -> Figures:
        """Return dollars per work-hour, those relative to other policies, SLO attainment, and migrated tails."""
        usd = self.usd(played)
        return {
            "usd_per_work_hour": usd,
            **{f"dollars_over_{name}": usd / other for name, other in references.items()},
            "slo_attainment": played["slo_attainment"],
            "worst_over_slo": np.minimum(played["worst_over_slo"], 10.0),
            "tails_migrated": played["tails_migrated"],
        }
