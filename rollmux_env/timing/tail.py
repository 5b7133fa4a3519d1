"""The tail of a rollout: when it may migrate to a part of the nodes, and a model of the effect.

Long-tail migration (RollMux, arXiv 2512.11306): dispatch policies and rollout policies that migrate tails have an attribute
`migration`. Replays, environments and real runs all take both of its numbers from there, so that runs and simulations agree.

`TailModel` describes the inside of a rollout: when most responses are done, and the effect of migrating the others.

Response lengths are lognormal and capped. A decode step of all responses takes 1 + `batching` times as long as one of a single
response, and linearly less as they finish. With X a length, the time until all responses have passed length L is therefore
proportional to `L + batching * E[min(X, L)]`. Of the `responses` lengths of a rollout two order statistics are drawn: the one at
which the wanted share is done, and the longest. Both have exact distributions (a Beta, and the largest of the remaining uniforms).

Migration stops the rollout at that point and continues the remaining responses on a share of the same nodes' GPUs. Lengths do not
change. Steps become slower as the batch of each GPU grows. The next rollout runs on the other GPUs and is slower by the same rule,
with a full batch throughout, which overestimates its duration.

The paper prints no parameters. The defaults are: lengths of its 7B-8k (median 662, 90% at most 3,214, cap 8,192 tokens, read off
its figure), a batch that doubles the time of a step, and two seconds to prefill the prefixes again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from rollmux_env.fields import Checked, NonNegative, Positive
from rollmux_env.kernel.tables import Floats
from rollmux_env.portable import exp, log, power

AT, SHARE = 0.8, 0.5
"""Defaults: the paper's threshold, and half of the replicas for the tail.

The paper says only that the tail keeps a few workers. With half of them the pairs of its evaluation gain most
(docs/results/rollout.md).
"""


@dataclass(frozen=True)
class Migration(Checked):
    """When a tail may migrate, and how much it keeps.

    Attributes:
        at: Share of a rollout's responses that must be done.
        share: Share of the rollout's replicas (engines) that the tail keeps, or of each node if only the nodes are known.

    Raises:
        InputError: If one of them is not between 0 and 1.
    """

    at: Annotated[float, Field(gt=0, lt=1)] = AT
    share: Annotated[float, Field(gt=0, lt=1)] = SHARE

    def keeps(self, parts: int) -> int:
        """Return how many of `parts` replicas a tail keeps: its share, rounded up."""
        return math.ceil(self.share * parts - 1e-9)


def migration_of(policy: object) -> Migration | None:
    """Return the `migration` of a policy, or None if it migrates no tails."""
    migration: Migration | None = getattr(policy, "migration", None)
    return migration


@dataclass(frozen=True)
class TailModel(Checked):
    """Parameters of the model of a rollout.

    Attributes:
        median: Median of the response lengths, as a share of the cap.
        sigma: Standard deviation of the logarithm of the response lengths.
        responses: Number of responses of a rollout.
        batching: Time of a decode step of a full batch divided by that of a single response, minus 1.
        move_s: Seconds until a migrated tail decodes again.
    """

    what: ClassVar[str] = "tail model"
    median: Positive = 662 / 8192
    sigma: Positive = 1.233
    responses: Annotated[int, Field(ge=2)] = 256
    batching: NonNegative = 1.0
    move_s: NonNegative = 2.0

    def rate(self, share: float) -> float:
        """Return the speed of a rollout beside a tail, relative to a rollout on all GPUs of the nodes.

        Args:
            share: Share of the nodes' GPUs that the tail keeps.
        """
        return (1 + self.batching) / (1 + self.batching / (1 - share))

    def draw(self, generator: np.random.Generator, migration: Migration, count: int) -> tuple[Floats, Floats]:
        """Sample `count` rollouts.

        Args:
            generator: Source of the random numbers.
            migration: When a tail may migrate, and the share that it keeps.
            count: Number of rollouts.

        Returns:
            Two arrays of shape (count,): the share of the rollout's seconds after which the tail may migrate, and the factor, at
            least 1, by which migration multiplies the remaining seconds.
        """
        done = min(max(1, round(migration.at * self.responses)), self.responses - 1)
        reached = generator.beta(done, self.responses - done + 1, count)
        last = reached + (1 - reached) * power(generator.random(count), 1 / (self.responses - done))
        length, longest = self._length(reached), self._length(last)
        batch, batch_of_all = self.batching * self._mean_up_to(length), self.batching * self._mean_up_to(longest)
        alone, together = longest - length, batch_of_all - batch
        rest = np.maximum(alone + together, 1e-12)
        return 1 - rest / (longest + batch_of_all), np.maximum(1.0, (alone + together / migration.share) / rest)

    def _length(self, share: Floats) -> Floats:
        """Return the length, as a share of the cap, that a given share of the responses does not exceed, shape (n,)."""
        from scipy.special import ndtri

        return np.asarray(np.minimum(1.0, self.median * exp(self.sigma * ndtri(share))))

    def _mean_up_to(self, length: Floats) -> Floats:
        """Return E[min(X, length)] of a lognormal X, shape (n,)."""
        from scipy.special import ndtr

        z = log(length / self.median) / self.sigma
        return np.asarray(self.median * math.exp(self.sigma**2 / 2) * ndtr(z - self.sigma) + length * (1 - ndtr(z)))
