"""The learning problems placement, dispatch and rollout: environments, reference policies, figures, and policy files."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from policies.rollout.environment import PolicyAgent
from rollmux_env.bench.harness import Task, run_task
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.envs.dispatch.env import DispatchVectorEnv
from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.reward import Reference as DispatchReference
from rollmux_env.envs.dispatch.reward import Work
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Mixture, Toy, find_generator
from rollmux_env.envs.placement.reward import Dollars, Reference
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import RandomJobs
from rollmux_env.envs.rollout.observation import STATE_FEATURES
from rollmux_env.envs.rollout.reward import Cost
from rollmux_env.errors import InputError
from rollmux_env.validation_errors import format_error, not_one_of, problems
from trainers.config import Settings
from trainers.vec_env import play

Figures = Mapping[str, NDArray[Any]]

NO_RULES = ("masked-random", "untrained", "optimal", "optimal-work")
"""References that are no rule to beat: those that have learned nothing, and those that know the future."""


class Problem(Settings):
    """A learning problem. Its fields are the keys of a configuration's `environment`."""

    @property
    @abstractmethod
    def generator(self) -> Generator | RandomGroups | RandomJobs:
        """Source of the streams, groups or jobs that are played."""

    def model_post_init(self, context: Any) -> None:
        """Create the generator early, so that errors in the options are reported at once."""
        _ = self.generator

    @abstractmethod
    def environment(self, streams: int, autoreset: bool = True) -> VectorEnv[Any, Any, Any]:
        """Create an environment with parallel streams.

        Args:
            streams: Number of streams.
            autoreset: Whether a finished stream is reset in the same step, as training needs. False for `trainers.vec_env.play`.
        """

    @abstractmethod
    def reference_key(self, seed: int) -> str:
        """Return a hash that identifies the stream of a seed across runs."""

    @abstractmethod
    def reference_usd(self, policy: str, seed: int) -> float:
        """Return the dollars of a policy on the stream of a seed, from the bench.

        Raises:
            InputError: There is no such policy.
        """

    @abstractmethod
    def usd(self, played: Figures) -> NDArray[np.float64]:
        """Return the dollars of episodes from `play`, comparable to those of a reference, shape (E,)."""

    @abstractmethod
    def progress(self, env: Any, observation: Figures) -> NDArray[np.float64]:
        """Return how far each stream is, shape (E,). The copies of a stream are compared at the same progress.

        Args:
            env: Environment of `environment`.
            observation: Last observation of the environment.
        """

    @abstractmethod
    def columns(self, env: VectorEnv[Any, Any, Any], played: Figures, references: Figures) -> Figures:
        """Return the figures of episodes from `play` by name, except `return`, shape (E,) each. Ratios are taken per episode.

        Args:
            env: Environment in which the episodes were played.
            played: Result of `play`.
            references: Dollars of each reference on the same streams, shape (E,).
        """

    def figures(self, env: VectorEnv[Any, Any, Any], played: Figures, references: Figures) -> dict[str, float]:
        """Return the means of `columns` for TensorBoard, and the mean `return`, by which the best network is chosen.

        With a rule among the references, `over_best_rule` is the mean of the dollars over those of the best rule on the same
        stream, and `over_best_rule_interval` the half-width of its 95% interval.
        """
        columns = {"return": played["return"], **self.columns(env, played, references)}
        means = {name: float(column.mean()) for name, column in columns.items()}
        if rule := best_rule(references):
            usd = references[rule]
            over = mean_interval((self.usd(played) / np.where(usd > 0, usd, 1.0)).tolist())
            means |= {"over_best_rule": over.mean, "over_best_rule_interval": over.half_width or 0.0}
        return means


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
        return PlacementVectorEnv(streams, generator=self.generator, reward=self.reward, autoreset_mode=_mode(autoreset), **options)

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
    reference: DispatchReference | None = None
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
        return DispatchVectorEnv(streams, self.generator, reward, autoreset_mode=_mode(autoreset))

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
            streams, self.generator, Cost(self.held_weight, self.invalid_penalty), autoreset_mode=_mode(autoreset)
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


def _mode(autoreset: bool) -> AutoresetMode:
    return AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED


def best_rule(references: Figures) -> str | None:
    """Return the name of the rule with the lowest mean dollars, or None if no reference is a rule."""
    rules = [name for name in references if name.partition(",")[0] not in NO_RULES]
    return min(rules, key=lambda name: float(references[name].mean()), default=None)


PROBLEMS: dict[str, type[Problem]] = {"placement": PlacementProblem, "dispatch": DispatchProblem, "rollout": RolloutProblem}


def make_problem(environment: dict[str, Any], source: str) -> Problem:
    """Create the problem of a configuration's `environment`.

    Args:
        environment: The mapping under the key `environment`.
        source: Start of error messages, such as the name of the file.

    Raises:
        InputError: There is no such problem, or a value is not valid.
    """
    name = environment.get("name")
    if not isinstance(name, str) or name not in PROBLEMS:
        missing = f"is missing; it says which environment: {' or '.join(PROBLEMS)}"
        raise InputError(f"{source}: environment.name: {not_one_of(name, PROBLEMS) if 'name' in environment else missing}")
    model = PROBLEMS[name]
    try:
        return model.model_validate(environment)
    except ValidationError as error:
        raise InputError(f"{source}: {format_error(problems(error)[0], model, 'environment')}") from None
    except InputError as error:
        raise InputError(f"{source}: environment: {error}") from None
