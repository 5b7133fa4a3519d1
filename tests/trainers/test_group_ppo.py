"""Group PPO: returns and their baseline, and that a decision's probability is the same when it is learned as when it was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger

from trainers.config import GroupPPOConfig
from trainers.group_ppo import GroupPPO, baseline, discounted, group_ppo, packed
from trainers.network import spread
from trainers.problems.catalogue import make_problem


def test_returns_are_discounted_by_progress() -> None:
    rewards = np.array([[1.0, 0.0], [2.0, 4.0]])
    progress = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 3.0]])
    assert discounted(rewards, progress, 0.5).tolist() == [[2.0, 1.0], [2.0, 4.0], [0.0, 0.0]]


def test_the_baseline_is_that_of_the_other_copies_at_the_same_progress() -> None:
    returns = np.array([[8.0, 4.0, 1.0, 5.0], [4.0, 2.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    progress = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]])
    found = baseline(returns, progress, np.array([2, 2, 2, 2]), copies=2)
    assert found[:2].tolist() == [[4.0, 8.0, 5.0, 1.0], [3.0, 2.0, 5.0, 1.0]]  # the first two copies decide at 1 and 2


@pytest.mark.parametrize(
    "environment",
    [
        {"name": "placement", "workload": "toy", "moves": True},
        {"name": "dispatch", "rounds": 2},
        {"name": "rollout", "rollouts": 1},
    ],
    ids=["placement", "dispatch", "rollout"],
)
def test_an_update_begins_where_the_choices_were_drawn(environment: dict[str, Any]) -> None:
    config = GroupPPOConfig.model_validate({"steps": 1, "streams": 4, "environment": {}, "ppo": {"copies": 2, "n_epochs": 1}})
    model = group_ppo(config, make_problem(environment, "short"), 3)
    model.set_logger(Logger(None, []))
    choices, advantages, episodes = model.play()
    assert sum(episode["episode"]["l"] for episode in episodes) == model.num_timesteps >= len(advantages) > 0
    assert episodes[0]["stream_seed"] == episodes[1]["stream_seed"] != episodes[2]["stream_seed"]
    with torch.no_grad():
        logits = model.policy.scorer.logits(choices.job, choices.rows, choices.cluster, choices.counts)
    log_probs = torch.log_softmax(spread(logits, packed(choices.counts)), dim=1).gather(1, choices.chosen.unsqueeze(1))[:, 0]
    torch.testing.assert_close(log_probs, choices.log_probs, atol=1e-5, rtol=0)
    assert (choices.counts > 1).all()
    before = model.policy.scorer.weights()
    model.train(choices, advantages)
    assert any((before[key] != value).any() for key, value in model.policy.scorer.weights().items())


def test_the_last_update_still_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"copies": 2, "n_epochs": 1, "learning_rate": 0.01, "linear": True}
    config = GroupPPOConfig.model_validate({"steps": 1, "streams": 2, "environment": {}, "ppo": settings})
    model = group_ppo(config, make_problem({"name": "placement", "workload": "toy"}, "short"), 0)
    model.set_logger(Logger(None, []))
    recorded: list[tuple[int, ...]] = []
    monkeypatch.setattr(GroupPPO, "_record", lambda self, *arrays: recorded.extend(array.shape for array in arrays))
    before = model.policy.scorer.weights()
    model.learn(1)  # one update, of more decisions than that
    assert model.num_timesteps > 1
    assert model.logger.name_to_value["train/learning_rate"] == 0.01
    assert any((before[key] != value).any() for key, value in model.policy.scorer.weights().items())
    returns, advantages = recorded
    assert returns == advantages  # figures are those of the decisions with a choice
