"""Generators: sources of an environment's jobs. The same seed gives the same job and the same lengths."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np

from rollmux_env.envs import checks
from rollmux_env.envs.rollout.types import ATTEMPTS, RolloutJob
from rollmux_env.errors import InputError
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import ReplicaTiming, fitting_replicas
from rollmux_env.validation_errors import describe

_MODELS, _GPUS, _DEVICES = ("7B", "14B", "32B"), ("H20", "H800"), (8, 16)
_PROMPT_TOKENS = 1024


class Generator(Protocol):
    """Source of jobs.

    Attributes:
        launched: Largest number of prompts of a rollout with spare prompts, and of responses to each.
        gpus: Largest number of GPUs of a job.
        prompts: Largest number of prompts in all rollouts of a job.
        rewards: Whether there are jobs whose rewards take time. The observation then describes rewards.
    """

    launched: tuple[int, int]
    gpus: int
    prompts: int
    rewards: bool

    def case(self, seed: int) -> RolloutJob:
        """Return the job of a seed, the same every time."""
        ...


def checked(generator: Generator) -> Generator:
    """Return the generator if it has all the attributes of `Generator`, in their ranges.

    Raises:
        InputError: An attribute is missing or out of range.
    """
    names = ("launched", "gpus", "prompts", "rewards", "case")
    checks.has_attributes(generator, names, "launched, gpus, prompts, rewards and case(seed)")
    launched = generator.launched
    if not isinstance(launched, tuple) or len(launched) != 2:
        raise InputError(f"generator.launched: must be two whole numbers, not {describe(launched)}")
    for value in launched:
        checks.whole_number("generator.launched", value)
    for name in ("gpus", "prompts"):
        checks.whole_number(f"generator.{name}", getattr(generator, name))
    checks.flag("generator.rewards", generator.rewards)
    return generator


class Fixed:
    """Given jobs, from which the seed selects one and its lengths.

    Raises:
        InputError: No job is given.
    """

    def __init__(self, *cases: RolloutJob) -> None:
        if not cases:
            raise InputError("generator: needs at least one job")
        self.launched = max(case.launched[0] for case in cases), max(case.launched[1] for case in cases)
        self.gpus = max(case.setting.gpus for case in cases)
        self.prompts = max(case.prompts for case in cases)
        self.rewards = any(case.setting.reward_s > 0 for case in cases)
        self._cases = cases

    def case(self, seed: int) -> RolloutJob:
        """Return the job with the number `seed` modulo the number of jobs."""
        return replace(self._cases[seed % len(self._cases)], seed=seed)


class RandomJobs:
    """Random jobs: a model of 7B, 14B or 32B on 8 or 16 H20 or H800, with replicas of 1 to 8 GPUs if their caches are large enough.

    An iteration has 16, 24 or 32 prompts with 4 or 8 responses each. Lengths are lognormal with a median of 300 to 1,500 and sigma
    0.3 to 1.8, cut at 8,192 or 16,384 tokens. Lengths of the same prompt have a correlation of 0 to 0.8. Phase times are those of
    docs/reference/timing.md.

    Args:
        sigma: Sigma of the lengths, or None to draw it.
        iterations: Number of rollouts of an episode.
        rewards: Whether each response has a reward that takes 0.5 to 20 s (log-uniform) on one of 8, 32 or 128 nodes. Everything
            else is drawn as without rewards.
        limited: Share of the jobs whose tails may not move. Half of these may not launch spare prompts and responses either.
            Everything else is drawn as with 0.

    Raises:
        InputError: A number is out of range.
    """

    launched, gpus = (40, 10), 16

    def __init__(self, sigma: float | None = None, iterations: int = 5, rewards: bool = False, limited: float = 0.0) -> None:
        if sigma is not None and not 0 <= sigma <= 3:
            raise InputError(f"generator.sigma: must be between 0 and 3, not {describe(sigma)}")
        if not 1 <= iterations <= 50:
            raise InputError(f"generator.iterations: must be between 1 and 50, not {describe(iterations)}")
        if not 0 <= limited <= 1:
            raise InputError(f"generator.limited: must be between 0 and 1, not {describe(limited)}")
        self._sigma, self._iterations, self.rewards, self._limited = sigma, iterations, rewards, limited
        self.prompts = 32 * iterations

    def case(self, seed: int) -> RolloutJob:
        """Return the job of a seed, the same every time."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(11,)))
        model, gpu = _MODELS[rng.integers(3)], _GPUS[rng.integers(2)]
        gpus, cap = _DEVICES[rng.integers(2)], (8192, 16384)[rng.integers(2)]
        prompts, responses = (16, 24, 32)[rng.integers(3)], (4, 8)[rng.integers(2)]
        median, sigma, alike = math.exp(rng.uniform(math.log(300), math.log(1500))), rng.uniform(0.3, 1.8), rng.uniform(0, 0.8)
        timings = fitting_replicas(SHAPES[model], achieved(gpu, GPUS[gpu]), gpus, _PROMPT_TOKENS + cap)
        setting = Setting(
            timings=timings,
            gpus=gpus,
            parallel=timings[rng.integers(len(timings))][0],
            prompts=prompts,
            responses=responses,
            prompt_tokens=_PROMPT_TOKENS,
            lengths=Lognormal(cap, float(median), float(sigma) if self._sigma is None else self._sigma),
            alike=float(alike),
        )
        if self.rewards:
            reward_s, nodes = math.exp(rng.uniform(math.log(0.5), math.log(20))), (8, 32, 128)[rng.integers(3)]
            setting = replace(setting, reward_s=reward_s, reward_nodes=nodes)
        limit = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(12,))).random()
        tails, spare = limit >= self._limited, limit >= self._limited / 2
        return RolloutJob(setting, self._iterations, seed=seed, tails=tails, spare=spare)


class Toy:
    """Two replicas, of which the first gets both long responses. The optimum is known.

    Each of four prompts has one response, of 1,000, 10, 1,000 and 10 tokens. A step takes a replica one second for each of its
    sequences. With `plain` a rollout takes 2,000 s. At the optimum, a long response moves to the other replica when both short ones
    are done, after 20 s, and the rest takes 990 s instead of 1,980 s.

    Args:
        iterations: Number of rollouts of an episode.
    """

    launched, gpus, rewards = (5, 2), 2, False

    def __init__(self, iterations: int = 2) -> None:
        self.prompts = 4 * iterations
        timing = ReplicaTiming(0.0, 1e-9, 0.0, 1.0, 0.0, 0.0, 0.0, 10_000)
        setting = Setting(((1, timing),), 2, 1, 4, 1, 0, Lognormal(1000, 500.0, 1.0))
        lengths = tuple(((long, long),) * ATTEMPTS for long in (1000, 10) * (2 * iterations))
        self._case = RolloutJob(setting, iterations, 0.0, 0, lengths)

    @property
    def best(self) -> float:
        """Least seconds of an episode, relative to `plain`."""
        return 1010 / 2000

    def case(self, seed: int) -> RolloutJob:
        """Return the same job for every seed."""
        return replace(self._case, seed=seed)
