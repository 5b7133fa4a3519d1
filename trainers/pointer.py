"""The candidate-scoring network as policy classes for Stable-Baselines3 and sb3-contrib."""

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
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor

from trainers.network import Scorer
from trainers.vec_env import shapes

Masks = NDArray[np.bool_] | Tensor | None
Observed = dict[str, Tensor]


class PointerPolicy(MaskableActorCriticPolicy):
    """Actor and critic in one `Scorer`: a choice's logit is its row's, so the network serves any number of candidates.

    Args:
        observation_space: with `job`, `candidates`, `cluster` and `mask`. action_space: a row of the candidates.
        lr_schedule: of Adam.
        widths: of the network's layers.
        sees_mask: whether the network knows which rows may be chosen. An unmasked learner does not.
        use_sde: must be False; SB3's PPO passes it.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        widths: Sequence[int] = (64, 64),
        sees_mask: bool = True,
        use_sde: bool = False,
    ) -> None:
        self.widths = tuple(widths)
        self.sees_mask = sees_mask
        super().__init__(observation_space, action_space, lr_schedule)

    def _build(self, lr_schedule: Schedule) -> None:
        self.scorer = Scorer(*shapes(self.observation_space), self.widths)
        for layer in (self.scorer.score, self.scorer.skip):  # at first every choice is about as likely, as in SB3's own policies
            torch.nn.init.orthogonal_(layer.weight, gain=0.01)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _score(self, obs: Any) -> tuple[Tensor, Tensor]:
        return _score(self.scorer, obs, self.sees_mask)

    def _distribution(self, logits: Tensor, action_masks: Masks) -> MaskableDistribution:
        distribution = self.action_dist.proba_distribution(action_logits=logits)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def forward(self, obs: Any, deterministic: bool = False, action_masks: Any = None) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B,), values (B, 1) and log-probabilities (B,)."""
        logits, values = self._score(obs)
        distribution = self._distribution(logits, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values.unsqueeze(-1), distribution.log_prob(actions)

    def evaluate_actions(self, obs: Any, actions: Tensor, action_masks: Any = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values (B, 1), log-probabilities (B,) and entropies (B,)."""
        logits, values = self._score(obs)
        distribution = self._distribution(logits, action_masks)
        return values.unsqueeze(-1), distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Any, action_masks: Any = None) -> MaskableDistribution:
        """The distribution over the rows."""
        return self._distribution(self._score(obs)[0], action_masks)

    def predict_values(self, obs: Any) -> Tensor:
        """Values (B, 1)."""
        return self._score(obs)[1].unsqueeze(-1)


class PointerQ(QNetwork):
    """Action values of the same network: the value of the decision, and a row's logit as what that choice adds to it."""

    def __init__(
        self, observation_space: spaces.Dict, action_space: spaces.Discrete, widths: Sequence[int], **network: Any
    ) -> None:
        super().__init__(observation_space, action_space, **network)
        self.q_net = torch.nn.Sequential()
        self.scorer = Scorer(*shapes(observation_space), widths)

    def forward(self, obs: Any) -> Tensor:
        """(B, A) action values; no row is masked."""
        logits, values = _score(self.scorer, obs, sees_mask=False)
        return logits + values.unsqueeze(-1)


class PointerDQNPolicy(DQNPolicy):
    """The policy class of DQN for `PointerQ`.

    Args:
        as in `PointerPolicy`.
    """

    def __init__(
        self, observation_space: spaces.Dict, action_space: spaces.Discrete, lr_schedule: Schedule, widths: Sequence[int] = (64, 64)
    ) -> None:
        self.widths = tuple(widths)
        super().__init__(observation_space, action_space, lr_schedule)

    def make_q_net(self) -> PointerQ:
        """A network of action values."""
        extractor = self.make_features_extractor()
        network = {"features_extractor": extractor, "features_dim": extractor.features_dim, "net_arch": []}
        space, actions = cast(spaces.Dict, self.observation_space), cast(spaces.Discrete, self.action_space)
        return PointerQ(space, actions, self.widths, **network).to(self.device)


def _score(scorer: Scorer, obs: Observed, sees_mask: bool) -> tuple[Tensor, Tensor]:
    mask = obs["mask"] > 0
    if not sees_mask:
        mask = torch.ones_like(mask)
    logits, values = scorer(obs["job"].float(), obs["candidates"].float(), obs["cluster"].float(), mask)
    return cast(Tensor, logits), cast(Tensor, values)
