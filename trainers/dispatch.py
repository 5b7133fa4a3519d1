"""The dispatch problem for the trainers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.dispatch import make_dispatch
from policies.placement.policy_file import PolicyConfig
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.dispatch.observation import ON_POLICY, STALE
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.reward import Reference, Work
from trainers.config import Settings
from trainers.problem import Figures


class DispatchProblem(Settings):
    """`RollMux/Dispatch-v0`: arguments of its generator and its reward. A reference's dollars are those of a work-hour."""

    name: Literal["dispatch"] = "dispatch"
    """The environment `RollMux/Dispatch-v0`."""
    shape: str | None = None
    """Shape of the groups: `temporal`, `shared`, `rollout-heavy`, `spatial` or `multi-node`; null: all of them."""
    skew: float | None = None
    """Coefficient of variation of the phases, from 0 to 3; null: 0, 0.25, 0.5 and 1."""
    rounds: Annotated[int, Field(ge=1, le=40)] = 25
    """Length of an episode, in planned periods."""
    stale: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the groups that have stale members."""
    reference: Reference | None = None
    """Reward the work gained over this rule on the same group instead of the work."""
    slo_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty of a second behind an SLO, in seconds of work."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 0.01
    """Penalty of a masked action, as a share of the horizon."""

    def model_post_init(self, context: Any) -> None:
        """Create the generator now, so that errors in the options are reported at once."""
        _ = self.generator

    @cached_property
    def generator(self) -> RandomGroups:
        """The generator of groups."""
        return RandomGroups(self.shape, self.skew, self.rounds, self.stale)

    def training(self, streams: int) -> DispatchVectorEnv:
        """See `Problem`."""
        return self._environment(streams, autoreset=True)

    def held_out(self, streams: int) -> DispatchVectorEnv:
        """See `Problem`."""
        return self._environment(streams, autoreset=False)

    def reference_key(self, seed: int) -> str:
        """See `Problem`."""
        return hashlib.sha256(repr(self.generator.group(seed)).encode()).hexdigest()

    def reference_usd(self, policy: str, seed: int) -> float:
        """See `Problem`: dollars of a work-hour."""
        group = self.generator.group(seed)
        return figures(group, replay_group(group, make_dispatch(policy)))["usd_per_work_hour"]

    def figures(
        self, env: VectorEnv[Any, Any, Any], played: Figures, references: Mapping[str, NDArray[np.float64]]
    ) -> dict[str, float]:
        """See `Problem`. A ratio is taken group by group."""
        usd = played["usd_per_work_hour"]
        return {
            "return": float(played["return"].mean()),
            "usd_per_work_hour": float(usd.mean()),
            **{f"dollars_over_{name}": float((usd / other).mean()) for name, other in references.items()},
            "slo_attainment": float(played["slo_attainment"].mean()),
            "worst_over_slo": float(np.minimum(played["worst_over_slo"], 10.0).mean()),
            "tails_migrated": float(played["tails_migrated"].mean()),
        }

    def policy_config(self, widths: tuple[int, ...], provenance: dict[str, str | int | float]) -> PolicyConfig:
        """See `Problem`."""
        names = STALE if self.generator.stale else ON_POLICY
        return PolicyConfig(
            decides="dispatch",
            job_features=names.job,
            candidate_features=names.candidates,
            cluster_features=names.cluster,
            widths=widths,
            provenance=provenance,
        )

    def _environment(self, streams: int, autoreset: bool) -> DispatchVectorEnv:
        reward = Work(self.reference, self.slo_penalty, self.invalid_penalty)
        return DispatchVectorEnv(streams, self.generator, reward, autoreset=autoreset)
