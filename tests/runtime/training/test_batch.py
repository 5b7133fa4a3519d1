"""Advantages compare the responses to one prompt, and the ranks share a batch without losing or doubling a token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.engines.interface import Response
from runtime.training.batch import TrainingBatch, TrainingError, group_advantages, make_batch, minibatches
from tests.runtime.training import plain


def _response(k: int, tokens: list[int]) -> Response:
    return Response(k, tuple(tokens), tuple(-0.5 * t for t in tokens), True, 0)


def _batch(lengths: list[int]) -> TrainingBatch:
    """Responses of these lengths; their tokens are numbered through, so that each can be found again."""
    first, responses = 100, []
    for k, length in enumerate(lengths):
        responses.append(_response(k, list(range(first, first + length))))
        first += length
    return make_batch([[1, 2]] * len(lengths), responses, [float(k % 2) for k in range(len(lengths))], 2)


def test_advantages_are_normalised_by_group() -> None:
    rewards = np.random.default_rng(0).random(24).tolist() + [0.1] * 8
    assert group_advantages(torch.tensor(rewards, dtype=torch.float64), 8).tolist() == pytest.approx(plain.advantages(rewards, 8))
    by_hand = group_advantages(torch.tensor([0.0, 1.0, 0.3, 0.3]), 2).tolist()  # mean 1/2, deviation sqrt(1/2)
    assert by_hand == pytest.approx([-(0.5**0.5), 0.5**0.5, 0.0, 0.0], rel=1e-5)


@pytest.mark.parametrize(("count", "size"), [(6, 4), (4, 1)])
def test_rewards_that_are_no_groups_are_refused(count: int, size: int) -> None:
    with pytest.raises(ValueError, match="are no groups of"):
        group_advantages(torch.zeros(count), size)


def test_a_batch_holds_prompt_then_response() -> None:
    batch = make_batch([[7, 8], [9]], [_response(0, [3]), _response(1, [4, 5, 6])], [0.0, 1.0], 2)
    assert batch.tokens.tolist() == [[7, 8, 3, 0], [9, 4, 5, 6]]
    assert batch.mask.tolist() == [[False, False, True, False], [False, True, True, True]]
    assert batch.logprobs.tolist() == [[0, 0, -1.5, 0], [0, -2.0, -2.5, -3.0]]
    assert batch.rows(torch.tensor([0])).tokens.tolist() == [[7, 8, 3]]


def test_a_reward_that_is_no_number_is_named() -> None:
    responses = [_response(k, [3]) for k in range(4)]
    with pytest.raises(TrainingError, match=r"^the reward of response 3 \(prompt 1\) is nan, not a finite number$"):
        make_batch([[1]] * 4, responses, [0.0, 1.0, 0.0, float("nan")], 2)
    with pytest.raises(ValueError, match="must be equally many"):
        make_batch([[1]] * 4, responses, [0.0], 2)
    with pytest.raises(ValueError, match="a prompt is empty"):
        make_batch([[1], [], [1], [1]], responses, [0.0] * 4, 2)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("most_tokens", [1, 20, 4096])
def test_ranks_take_each_token_once_and_pass_equally_often(world: int, most_tokens: int) -> None:
    batch = _batch([1, 9, 3, 0, 7, 2, 5, 8])
    shares = [minibatches(batch, 2, rank, world, most_tokens) for rank in range(world)]
    for number, rows in enumerate((slice(0, 4), slice(4, 8))):
        parts = [share[number] for share in shares]
        assert len({len(part.pieces) for part in parts}) == 1
        assert {part.tokens for part in parts} == {int(batch.mask[rows].sum())}
        assert all(piece.tokens.numel() <= most_tokens or len(piece.tokens) == 1 for part in parts for piece in part.pieces)
        taken = torch.cat([piece.tokens[piece.mask] for part in parts for piece in part.pieces])
        assert sorted(taken.tolist()) == sorted(batch.tokens[rows][batch.mask[rows]].tolist())
