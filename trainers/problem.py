"""A learning problem: an environment, reference policies on its streams, and figures. `trainers.problems` has each one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.envs.rollout.generator import RandomJobs
from trainers.config import Settings

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


def autoreset_mode(autoreset: bool) -> AutoresetMode:
    """Return when a finished stream is reset: in the same step, as training needs, or never."""
    return AutoresetMode.SAME_STEP if autoreset else AutoresetMode.DISABLED


def best_rule(references: Figures) -> str | None:
    """Return the name of the rule with the lowest mean dollars, or None if no reference is a rule."""
    rules = [name for name in references if name.partition(",")[0] not in NO_RULES]
    return min(rules, key=lambda name: float(references[name].mean()), default=None)
