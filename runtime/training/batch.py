"""The batch of an iteration, and the part of it that a rank trains on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.engines.interface import Response


class TrainingError(RuntimeError):
    """The job's numbers cannot be trained on. The weights are finite and unchanged. The message says which numbers."""


@dataclass(frozen=True)
class TrainingBatch:
    """The B responses of one iteration, with at most T tokens including their prompts.

    Attributes:
        tokens: Prompt and response, padded on the right with any value, int64, shape (B, T).
        mask: True at the tokens of the response, bool, shape (B, T).
        logprobs: Log-probs of the sampler at these tokens (`Response.logprobs`), 0 elsewhere, float32, shape (B, T).
        advantages: Advantages of the responses, float32, shape (B,).
    """

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    advantages: Tensor

    def rows(self, chosen: Tensor) -> TrainingBatch:
        """Return some of the responses, cut to the longest of them."""
        lengths = self.lengths()[chosen]
        width = max(int(lengths.max()), 2)
        cut = (self.tokens[chosen, :width], self.mask[chosen, :width], self.logprobs[chosen, :width])
        return TrainingBatch(*cut, self.advantages[chosen])

    def lengths(self) -> Tensor:
        """Return the number of tokens up to the last one of each response, int64, shape (B,)."""
        places = torch.arange(1, self.mask.shape[1] + 1)
        return (self.mask * places).amax(1)


def make_batch(
    prompts: Sequence[Sequence[int]], responses: Sequence[Response], rewards: Sequence[float], group_size: int
) -> TrainingBatch:
    """Combine responses and their rewards to a batch.

    Args:
        prompts: Token ids as given to `Engine.generate`, with each prompt `group_size` times in a row.
        responses: Response to each prompt, in the same order.
        rewards: Reward of each response.
        group_size: Number of responses that are compared with each other.

    Raises:
        TrainingError: A reward is not a finite number.
        ValueError: The counts do not match, or a prompt is empty.
    """
    if not len(prompts) == len(responses) == len(rewards) or not prompts:
        raise ValueError(f"{len(prompts)} prompts, {len(responses)} responses and {len(rewards)} rewards: must be equally many")
    if not all(prompts):
        raise ValueError("a prompt is empty: there is no token before the response's first one")
    for k, reward in enumerate(rewards):
        if not math.isfinite(reward):
            raise TrainingError(f"the reward of response {k} (prompt {k // group_size}) is {reward}, not a finite number")
    width = max(len(prompt) + len(response.token_ids) for prompt, response in zip(prompts, responses, strict=True))
    tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
    logprobs = torch.zeros(len(prompts), width)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for k, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        first, end = len(prompt), len(prompt) + len(response.token_ids)
        tokens[k, :end] = torch.tensor([*prompt, *response.token_ids])
        logprobs[k, first:end] = torch.tensor(response.logprobs)
        mask[k, first:end] = True
    return TrainingBatch(tokens, mask, logprobs, group_advantages(torch.tensor(rewards, dtype=torch.float64), group_size))


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """Return the advantage of each response over those to the same prompt: (r - mean) / (standard deviation + 1e-6).

    The standard deviation is that of a sample (divided by group_size - 1). A group of equal rewards has advantages of 0.
    Source: Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1.2.

    Args:
        rewards: Rewards of the groups one after the other, shape (B,).
        group_size: Number of responses in a group, at least 2.

    Returns:
        Advantages, float32, shape (B,).

    Raises:
        ValueError: B is not a multiple of group_size, or group_size is below 2.
    """
    if group_size < 2 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no groups of {group_size}; a group has 2 or more")
    groups = rewards.double().view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    equal = (groups == groups[:, :1]).all(1, keepdim=True)
    return (centred / (groups.std(1, keepdim=True) + 1e-6)).masked_fill(equal, 0).flatten().float()


@dataclass(frozen=True)
class Minibatch:
    """The data of one optimizer step for one rank.

    Attributes:
        tokens: Number of response tokens of all ranks together, by which the loss is divided.
        pieces: This rank's part, one forward pass each. All ranks have the same number of pieces.
    """

    tokens: int
    pieces: tuple[TrainingBatch, ...]


def minibatches(batch: TrainingBatch, count: int, rank: int, world: int, most_tokens: int) -> list[Minibatch]:
    """Split a batch into one part for each optimizer step, and this rank's share of each part into forward passes.

    Every rank has the whole batch, so no communication is needed. Responses are dealt to the ranks by length, the longest first. So
    ranks have about the same amount of work, and passes have little padding. If they do not divide evenly, a rank repeats one with
    an empty mask, which contributes to no sum but keeps the ranks in step.

    Args:
        batch: The whole batch.
        count: Number of optimizer steps. Parts are consecutive responses, as equal as possible.
        rank: This rank.
        world: Number of ranks.
        most_tokens: Largest number of tokens in a pass, including prompts and padding. A longer response has a separate pass.
    """
    lengths = batch.lengths()
    batches = []
    for rows in torch.arange(len(batch.tokens)).tensor_split(min(count, len(batch.tokens))):
        dealt = rows[lengths[rows].argsort(descending=True, stable=True)]
        short = -len(dealt) % world
        dealt = torch.cat([dealt, dealt[-1:].expand(short)])
        counts = torch.arange(len(dealt)) < len(rows)
        own, own_counts = dealt[rank::world], counts[rank::world]
        sizes = _passes(lengths[dealt[::world]].tolist(), most_tokens)  # by rank 0, which has the longest of each turn
        pieces = []
        for part, real in zip(torch.split(own, sizes), torch.split(own_counts, sizes), strict=True):
            piece = batch.rows(part)
            pieces.append(TrainingBatch(piece.tokens, piece.mask & real[:, None], piece.logprobs, piece.advantages))
        batches.append(Minibatch(int(batch.mask[rows].sum()), tuple(pieces)))
    return batches


def _passes(lengths: Sequence[int], most_tokens: int) -> list[int]:
    """Return the number of responses of each pass, the longest first. All are padded to the first one of the pass."""
    sizes: list[int] = []
    first = 0
    while first < len(lengths):
        sizes.append(min(len(lengths) - first, max(1, most_tokens // max(lengths[first], 1))))
        first += sizes[-1]
    return sizes
