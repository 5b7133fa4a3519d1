"""Placement: which group a job joins, and which running jobs move, for the fewest dollars."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Mixture, Toy, find_generator
from rollmux_env.envs.placement.reward import Dollars, Reference
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.errors import InputError
from trainers.config import Settings
from trainers.problem import Figures, Problem, autoreset_mode


class WorkloadPart(Settings):
    """A workload of a mixture."""

    workload: str
    """Name of a workload, `module:name` of your own, or a scenario file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the workload, beside those of all."""


class PlacementProblem(Problem):
    """The problem on `RollMux/Placement-v0`: arguments of the environment, its generator and its reward."""

    name: Literal["placement"] = "placement"
    """The environment `RollMux/Placement-v0`."""
    workload: str = "production"
    """Name of a workload, `module:name` of your own, a scenario file, or `toy`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the workload, such as `jobs` and `interarrival_s`, and `csv` for `philly`; `rounds` for `toy`."""
    mixture: list[WorkloadPart] = Field(default_factory=list)
    """Workloads in place of `workload`, from which the seed of a stream selects one; `options` are those of all of them."""
    moves: bool = False
    """Whether running jobs may be moved."""
    known_stays: bool = True
    """Whether it is observed when jobs will leave."""
    shield: bool = True
    """Whether choices that would break an SLO are masked."""
    candidates: Annotated[int, Field(ge=2)] = 32
    """Number of rows of the candidate table; the cheapest choices are kept."""
    skip_forced: bool = False
    """Whether a decision with one legal action is no step."""
    reference: Reference | None = None
    """Policy over which the saving is the reward; null: minus the dollars."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty of a masked action, in Solo-D dollars of a mean job."""
    slo_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Penalty of a job that leaves with its SLO broken, in the same dollars."""

    @cached_property
    def generator(self) -> Generator:
        """Generator of streams."""
        if self.mixture:
            if "workload" in self.model_fields_set:
                raise InputError("mixture: is in place of workload; give one of them")
            return Mixture(*(find_generator(part.workload, {**self.options, **part.options}) for part in self.mixture))
        if self.workload != "toy":
            return find_generator(self.workload, self.options)
        options = dict(self.options)
        rounds = options.pop("rounds", 4)
        if options or not isinstance(rounds, int) or rounds < 1:
            raise InputError("options: the toy has one, rounds, a number of at least 1")
        return Toy(rounds)

    @property
    def reward(self) -> Dollars:
        """Undiscounted dollars, because SB3's learners do not support a discount per hour."""
        return Dollars(self.reference, invalid_penalty=self.invalid_penalty, slo_penalty=self.slo_penalty)

    def environment(self, streams: int, autoreset: bool = True) -> PlacementVectorEnv:
        """Create an environment with streams of the workload."""
        names = ("moves", "known_stays", "shield", "candidates", "skip_forced")
        options = {name: getattr(self, name) for name in names}
        return PlacementVectorEnv(
            streams, generator=self.generator, reward=self.reward, autoreset_mode=autoreset_mode(autoreset), **options
        )

    def reference_key(self, seed: int) -> str:
        """Return the hash of the scenario."""
        return self.generator.scenario(seed).sha256

    def reference_usd(self, policy: str, seed: int) -> float:
        """Return the dollars of a policy on a stream."""
        return run_task(make_policy, Task(policy, seed, self.generator.scenario(seed))).outcome.metrics.cost_usd

    def usd(self, played: Figures) -> NDArray[np.float64]:
        """Return the dollars of each stream."""
        return np.asarray(played["cost_usd"])

    def progress(self, env: PlacementVectorEnv, observation: Figures) -> NDArray[np.float64]:
        """Return the time of each stream in mean gaps between its arrivals, or in hours if all of its jobs arrive at once."""
        clock, arrivals_s = env.streams.clock, env.streams.jobs["arrival_s"]
        count = clock["n_jobs"]
        first_s, last_s = arrivals_s[:, 0], arrivals_s[np.arange(len(count)), count - 1]
        span_s = np.where(last_s > first_s, last_s - first_s, 3600.0 * count)
        return np.asarray((clock["now_s"] - first_s) / span_s * count)

    def columns(self, env: VectorEnv[Any, Any, Any], played: Figures, references: Figures) -> Figures:
        """Return dollars relative to other policies, dollars per work-hour, SLO attainment, and moves per hour."""
        assert isinstance(env, PlacementVectorEnv)
        hours = (env.streams.clock["now_s"] - env.streams.jobs["arrival_s"][:, 0]) / 3600
        return {
            "dollars_over_solo": played["cost_over_solo"],
            **{f"dollars_over_{name}": self.usd(played) / np.where(usd > 0, usd, 1.0) for name, usd in references.items()},
            "usd_per_work_hour": played["cost_usd"] / played["work_h"],
            "slo_attainment": played["slo_attainment"],
            "moves_per_hour": played["migrations"] / hours,
        }
