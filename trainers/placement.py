"""The placement problem for the trainers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.placement.policy_file import PolicyConfig
from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Toy, Workload
from rollmux_env.envs.placement.observation import candidate_names
from rollmux_env.envs.placement.reward import Dollars, Reference
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.errors import InputError
from rollmux_env.kernel.features import CLUSTER_FEATURES, JOB_FEATURES
from trainers.config import Settings
from trainers.problem import Figures


class PlacementProblem(Settings):
    """`RollMux/Placement-v0`: arguments of the environment, its generator and its reward."""

    name: Literal["placement"] = "placement"
    """The environment `RollMux/Placement-v0`."""
    workload: str = "production"
    """A workload by name, or `toy`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the workload: `jobs`, `stays`, `slo`, `max_group_size`, `shapes`, `asynchronous`, `third_pool`, `semantics`;
    `rounds` for `toy`."""
    moves: bool = False
    """Also move running jobs."""
    known_stays: bool = True
    """Observe when jobs will leave."""
    shield: bool = True
    """Mask choices that would break an SLO."""
    candidates: Annotated[int, Field(ge=2)] = 32
    """Rows of the candidate table. If there are more choices, the cheapest are kept."""
    reference: Reference | None = None
    """Reward the saving over this policy on the same stream instead of the dollars."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty of a masked action, in Solo-D dollars of a mean job."""
    slo_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty of a job that leaves with its SLO broken, in Solo-D dollars of a mean job."""

    def model_post_init(self, context: Any) -> None:
        """Create the generator now, so that errors in the options are reported at once."""
        _ = self.generator

    @cached_property
    def generator(self) -> Generator:
        """The generator of streams."""
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}
        if self.workload != "toy":
            return Workload(self.workload, **options)
        rounds = options.pop("rounds", 4)
        if options or not isinstance(rounds, int) or rounds < 1:
            raise InputError("options: the toy has one, rounds, a number of at least 1")
        return Toy(rounds)

    @property
    def reward(self) -> Dollars:
        """Undiscounted dollars, because SB3's learners do not support a discount per hour."""
        return Dollars(self.reference, invalid_penalty=self.invalid_penalty, slo_penalty=self.slo_penalty)

    def training(self, streams: int) -> PlacementVectorEnv:
        """See `Problem`."""
        return self._environment(streams, autoreset=True)

    def held_out(self, streams: int) -> PlacementVectorEnv:
        """See `Problem`."""
        return self._environment(streams, autoreset=False)

    def reference_key(self, seed: int) -> str:
        """See `Problem`."""
        return self.generator.scenario(seed).sha256

    def reference_usd(self, policy: str, seed: int) -> float:
        """See `Problem`."""
        return run_task(make_policy, Task(policy, seed, self.generator.scenario(seed))).outcome.metrics.cost_usd

    def figures(
        self, env: VectorEnv[Any, Any, Any], played: Figures, references: Mapping[str, NDArray[np.float64]]
    ) -> dict[str, float]:
        """See `Problem`. A ratio is taken stream by stream."""
        assert isinstance(env, PlacementVectorEnv)
        hours = (env.streams.clock["now_s"] - env.streams.jobs["arrival_s"][:, 0]) / 3600
        return {
            "return": float(played["return"].mean()),
            "dollars_over_solo": float(played["cost_over_solo"].mean()),
            **{f"dollars_over_{name}": float((played["cost_usd"] / usd).mean()) for name, usd in references.items()},
            "usd_per_work_hour": float((played["cost_usd"] / played["work_h"]).mean()),
            "slo_attainment": float(played["slo_attainment"].mean()),
            "moves_per_hour": float((played["migrations"] / hours).mean()),
        }

    def policy_config(self, widths: tuple[int, ...], provenance: dict[str, str | int | float]) -> PolicyConfig:
        """See `Problem`."""
        return PolicyConfig(
            decides="placement",
            job_features=tuple(JOB_FEATURES),
            candidate_features=tuple(candidate_names(self.moves, self.generator.shapes > 0)),
            cluster_features=tuple(CLUSTER_FEATURES),
            widths=widths,
            moves=self.moves,
            known_stays=self.known_stays,
            provenance=provenance,
        )

    def _environment(self, streams: int, autoreset: bool) -> PlacementVectorEnv:
        return PlacementVectorEnv(
            streams,
            generator=self.generator,
            reward=self.reward,
            moves=self.moves,
            known_stays=self.known_stays,
            shield=self.shield,
            candidates=self.candidates,
            autoreset=autoreset,
        )
