"""The candidate-scoring network as a policy class for sb3-contrib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor

from trainers.network import Scorer

Masks = NDArray[np.bool_] | Tensor | None


class PointerPolicy(MaskableActorCriticPolicy):
    """Actor and critic in one `Scorer`. A choice's logit is that of its row, so the network serves any number of candidates.

    Args:
        observation_space: Space with `job`, `candidates`, `cluster` and `mask`.
        action_space: Numbers of the candidates' rows.
        lr_schedule: Learning rate of Adam.
        widths: Width of each layer.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        widths: Sequence[int] = (64, 64),
    ) -> None:
        self.widths = tuple(widths)
        super().__init__(observation_space, action_space, lr_schedule)

    def _build(self, lr_schedule: Schedule) -> None:
        self.scorer = scorer_for(self.observation_space, self.widths)
        for layer in (self.scorer.score, self.scorer.skip):  # initial choices are nearly uniform, as in SB3's own policies
            torch.nn.init.orthogonal_(layer.weight, gain=0.01)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _score(self, obs: Any) -> tuple[Tensor, Tensor]:
        return score(self.scorer, obs, obs["mask"] > 0)

    def _distribution(self, logits: Tensor, action_masks: Masks) -> MaskableDistribution:
        distribution = self.action_dist.proba_distribution(action_logits=logits)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def forward(self, obs: Any, deterministic: bool = False, action_masks: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """Sample actions. Return actions (B,), values (B, 1) and log-probabilities (B,)."""
        logits, values = self._score(obs)
        distribution = self._distribution(logits, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values.unsqueeze(-1), distribution.log_prob(actions)

    def evaluate_actions(self, obs: Any, actions: Tensor, action_masks: Any = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return values (B, 1), log-probabilities (B,) and entropies (B,)."""
        logits, values = self._score(obs)
        distribution = self._distribution(logits, action_masks)
        return values.unsqueeze(-1), distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Any, action_masks: Any = None) -> MaskableDistribution:
        """Return the distribution over the rows."""
        return self._distribution(self._score(obs)[0], action_masks)

    def predict_values(self, obs: Any) -> Tensor:
        """Return values, shape (B, 1)."""
        return self._score(obs)[1].unsqueeze(-1)


def scorer_for(space: spaces.Space[Any], widths: Sequence[int]) -> Scorer:
    """Create an untrained network for observations of this space."""
    assert isinstance(space, spaces.Dict)
    job, candidate, cluster = (cast(Any, space[name]).shape[-1] for name in ("job", "candidates", "cluster"))
    return Scorer(job, candidate, cluster, widths)


def score(scorer: Scorer, obs: Any, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (B, A) and values (B,) of observed decisions."""
    logits, values = scorer(obs["job"].float(), obs["candidates"].float(), obs["cluster"].float(), mask)
    return cast(Tensor, logits), cast(Tensor, values)
