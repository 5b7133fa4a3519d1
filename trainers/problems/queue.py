"""The queue of a fleet that is owned: which waiting job gets which place, for the earliest completions."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field

from policies.registry import make_policy
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.envs.placement.generator import find_generator
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.envs.queue.env import QueueVectorEnv
from rollmux_env.envs.queue.known import as_known
from rollmux_env.envs.queue.reward import Completion
from rollmux_env.keys.queue import Known
from rollmux_env.scenario import Scenario
from rollmux_env.workloads.fleets import alone_s, with_fleet
from trainers.problem import Figures, Problem, autoreset_mode


class QueueProblem(Problem):
    """The problem on `RollMux/Queue-v0`: arguments of the environment. "Dollars" are mean completions over the mean hours alone."""

    name: Literal["queue"] = "queue"
    """The environment `RollMux/Queue-v0`."""
    workload: str = "production"
    """Name of a workload, `module:name` of your own, or a scenario file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the workload, such as `jobs` and `classes`."""
    fleet: str | None = "load=1.6"
    """Nodes of each pool, as in `12+10`, or the load that sizes them; null: the `max_nodes` of the cluster."""
    known: Known = "lengths"
    """What is known of the lengths of jobs: `lengths`, `estimates`, `classes` or `nothing`."""
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.0
    """With `estimates`: standard deviation of the logarithm of their error."""
    park: bool = False
    """Whether running jobs may be parked. `learned:FILE` parks none, and refuses a network that was trained so."""
    lost_only: bool = True
    """Whether the reward is only the time that jobs lose by waiting, sharing and pauses."""
    invalid_penalty: Annotated[float, Field(ge=0)] = 0.01
    """Penalty of a masked action."""

    @cached_property
    def generator(self) -> Generator:
        """Generator of streams."""
        return find_generator(self.workload, self.options)

    def environment(self, streams: int, autoreset: bool = True) -> QueueVectorEnv:
        """Create an environment with streams of the workload."""
        return QueueVectorEnv(
            streams,
            self.generator,
            self.fleet,
            self.known,
            self.sigma,
            self.park,
            Completion(self.lost_only, self.invalid_penalty),
            autoreset_mode=autoreset_mode(autoreset),
        )

    def reference_key(self, seed: int) -> str:
        """Return a hash of the scenario as the track knows it."""
        return hashlib.sha256(f"{self.scenario(seed).sha256} {self.known}".encode()).hexdigest()

    def reference_usd(self, policy: str, seed: int) -> float:
        """Return the mean completion of a policy on a stream, over the mean hours of a job alone."""
        scenario = self.scenario(seed)
        completion_h = run_task(make_policy, Task(policy, seed, scenario)).outcome.metrics.mean_completion_h
        assert completion_h is not None  # a stream is one whole replay
        return completion_h * 3600 * len(scenario.jobs) / sum(map(alone_s, scenario.jobs))

    def usd(self, played: Figures) -> NDArray[np.float64]:
        """Return the mean completion of each stream, over the mean hours of a job alone."""
        return np.asarray(played["completion_over_solo"])

    def progress(self, env: QueueVectorEnv, observation: Figures) -> NDArray[np.float64]:
        """Return the time of each stream in mean gaps between its arrivals, or in hours if all of its jobs arrive at once."""
        return np.array([stream.gaps_passed for stream in env.streams])

    def columns(self, env: VectorEnv[Any, Any, Any], played: Figures, references: Figures) -> Figures:
        """Return the mean completion in hours, over the mean hours alone, and relative to other policies."""
        usd = self.usd(played)
        over = {f"completion_over_{name}": usd / other for name, other in references.items()}
        return {"mean_completion_h": played["mean_completion_h"], "completion_over_alone": usd, **over}

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario of a seed with its fleet, as the track knows it."""
        scenario = self.generator.scenario(seed)
        return as_known(scenario if self.fleet is None else with_fleet(scenario, self.fleet), self.known, self.sigma, seed)
