"""The tail of a rollout: when it may move to a part of the nodes, and a model of what that does.

Long-tail migration (RollMux, arXiv 2512.11306): dispatch policies and rollout policies that migrate tails have an attribute
`migration`. Replays, environments and real runs all take both numbers from there, so that what was simulated is what runs.

`TailModel` is of the inside of a rollout: when most responses are done, and the effect of migrating the others.

Response lengths are lognormal and capped. A decoding step of all responses takes 1 + `batching` times as long as one of
a single response, and linearly less as they finish: with X a length, the time until all responses have passed length L
is in proportion to L + batching * E[min(X, L)]. Of the `responses` lengths of a rollout two order statistics are drawn:
the one at which the wanted share is done, and the longest. Both have exact distributions (a Beta, and the largest of
the remaining uniforms).

Migration stops the rollout there and continues the others on a share of the same
nodes' GPUs. Lengths do not change. Steps become slower as the batch of each GPU grows. The next rollout has the other
GPUs to itself and is slower by the same rule, with its full batch throughout, which errs on the slow side.

The paper prints no parameters. The defaults are: lengths of its 7B-8k (median 662, 90% at most 3,214, cap 8,192 tokens,
read off its figure), a batch that doubles the time of a step, and two seconds to prefill the prefixes again.
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
"""Where nobody says: the paper's threshold; and, as the paper says only a few workers, the half with which the pairs of its
evaluation gain most (docs/results/rollout.md)."""


@dataclass(frozen=True)
class Migration(Checked):
    """When a tail may move, and what it keeps.

    Attributes:
        at: share of a rollout's responses that are done then. share: of the rollout's replicas, or engines, that the tail keeps;
            where only the nodes are known, of each node.

    Raises:
        InputError: one of them is no number between 0 and 1; one line.
    """

    at: Annotated[float, Field(gt=0, lt=1)] = AT
    share: Annotated[float, Field(gt=0, lt=1)] = SHARE

    def keeps(self, parts: int) -> int:
        """How many of so many replicas or engines a tail keeps: its share, rounded up."""
        return math.ceil(self.share * parts - 1e-9)


def migration_of(policy: object) -> Migration | None:
    """When a policy has tails moved, and what they keep; None where it has none moved."""
    migration: Migration | None = getattr(policy, "migration", None)
    return migration


@dataclass(frozen=True)
class TailModel(Checked):
    """Parameters of the model of a rollout.

    Attributes:
        median: of the response lengths, as a share of the cap. sigma: of their logarithm.
        responses: of a rollout.
        batching: seconds of a full batch's decoding step over those of a single response's, less 1.
        move_s: seconds until a migrated tail decodes again.
    """

    what: ClassVar[str] = "tail model"
    median: Positive = 662 / 8192
    sigma: Positive = 1.233
    responses: Annotated[int, Field(ge=2)] = 256
    batching: NonNegative = 1.0
    move_s: NonNegative = 2.0

    def rate(self, share: float) -> float:
        """Speed of a rollout beside a tail that keeps such a share of the nodes' GPUs, relative to one on all of them."""
        return (1 + self.batching) / (1 + self.batching / (1 - share))

    def draw(self, generator: np.random.Generator, migration: Migration, count: int) -> tuple[Floats, Floats]:
        """Sample `count` rollouts.

        Returns:
            (count,) the share of the rollout's seconds after which a tail may move, and (count,) what the seconds of the rest are
            multiplied by once it is migrated, at least 1.
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
        """(n,) lengths that such shares of the responses do not pass, in caps."""
        from scipy.special import ndtri

        return np.asarray(np.minimum(1.0, self.median * exp(self.sigma * ndtri(share))))

    def _mean_up_to(self, length: Floats) -> Floats:
        """(n,) E[min(X, length)] of a lognormal X."""
        from scipy.special import ndtr

        z = log(length / self.median) / self.sigma
        return np.asarray(self.median * math.exp(self.sigma**2 / 2) * ndtr(z - self.sigma) + length * (1 - ndtr(z)))
