"""What an iteration trains on, and which part of it a rank takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.engines.interface import Response


class TrainingError(RuntimeError):
    """The job's own numbers cannot be trained on: one line that says which. The weights are finite, and what they were."""


@dataclass(frozen=True)
class Batch:
    """Responses of one iteration; B of them, T tokens at most with their prompts.

    Attributes:
        tokens: (B, T) int64, prompt then response, padded on the right; padding is never looked at, so its value is of no matter.
        mask: (B, T) bool, True at the tokens of the response.
        logprobs: (B, T) float32, of the sampler at these tokens (`Response.logprobs`), 0 elsewhere.
        advantages: (B,) float32.
    """

    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    advantages: Tensor

    def rows(self, chosen: Tensor) -> Batch:
        """Some of the responses, cut to the longest of them."""
        lengths = self.lengths()[chosen]
        width = max(int(lengths.max()), 2)
        cut = (self.tokens[chosen, :width], self.mask[chosen, :width], self.logprobs[chosen, :width])
        return Batch(*cut, self.advantages[chosen])

    def lengths(self) -> Tensor:
        """(B,) int64, tokens up to the last one of the response."""
        places = torch.arange(1, self.mask.shape[1] + 1)
        return (self.mask * places).amax(1)


def make_batch(prompts: Sequence[Sequence[int]], responses: Sequence[Response], rewards: Sequence[float], group_size: int) -> Batch:
    """Put responses and what they earned together.

    Args:
        prompts: token ids, those that `Engine.generate` was given: each prompt `group_size` times in a row.
        responses: one a prompt, in that order.
        rewards: one a response.
        group_size: responses that are compared with each other.

    Raises:
        TrainingError: a reward is not a finite number.
        ValueError: the counts do not fit, or a prompt is empty.
    """
    if not len(prompts) == len(responses) == len(rewards) or not prompts:
        raise ValueError(f"{len(prompts)} prompts, {len(responses)} responses and {len(rewards)} rewards: must be equally many")
    if not all(prompts):
        raise ValueError("a prompt is empty: nothing stands before the response's first token")
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
    return Batch(tokens, mask, logprobs, group_advantages(torch.tensor(rewards, dtype=torch.float64), group_size))


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """How much better each response is than those to the same prompt: (r - mean) / (standard deviation + 1e-6).

    The standard deviation is that of a sample (divided by group_size - 1). A group of equal rewards has advantages of 0.
    Source: Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1.2.

    Args:
        rewards: (B,), groups one after the other.

    Returns:
        (B,) float32.

    Raises:
        ValueError: B is no multiple of group_size, or group_size is below 2.
    """
    if group_size < 2 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no groups of {group_size}; a group has 2 or more")
    groups = rewards.double().view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    equal = (groups == groups[:, :1]).all(1, keepdim=True)
    return (centred / (groups.std(1, keepdim=True) + 1e-6)).masked_fill(equal, 0).flatten().float()


@dataclass(frozen=True)
class Minibatch:
    """What one optimizer step trains on, as one rank sees it.

    Attributes:
        tokens: of responses, of all ranks together: what the loss is divided by.
        pieces: this rank's part, a forward pass each; equally many on every rank.
    """

    tokens: int
    pieces: tuple[Batch, ...]


def minibatches(batch: Batch, count: int, rank: int, world: int, most_tokens: int) -> list[Minibatch]:
    """Cut a batch into one part an optimizer step, and this rank's share of each into forward passes.

    Every rank has the whole batch, so nobody has to ask others how much there is. Responses are dealt to the ranks by length, the
    longest first: ranks have about as much to do, and passes little padding. Where they do not go round, a rank takes one again
    without its tokens' mask: it is in no sum, but the ranks stay in step.

    Args:
        count: optimizer steps; parts are of consecutive responses, and as equal as can be.
        most_tokens: in one pass, prompts and padding included; a longer response has a pass of its own.
    """
    lengths = batch.lengths()
    batches = []
    for rows in torch.arange(len(batch.tokens)).tensor_split(min(count, len(batch.tokens))):
        dealt = rows[lengths[rows].argsort(descending=True, stable=True)]
        short = -len(dealt) % world
        dealt = torch.cat([dealt, dealt[-1:].expand(short)])
        counts = torch.arange(len(dealt)) < len(rows)
        own, own_counts = dealt[rank::world], counts[rank::world]
        sizes = _passes(lengths[dealt[::world]].tolist(), most_tokens)  # of rank 0, which has the longest of each turn
        pieces = []
        for part, real in zip(torch.split(own, sizes), torch.split(own_counts, sizes), strict=True):
            piece = batch.rows(part)
            pieces.append(Batch(piece.tokens, piece.mask & real[:, None], piece.logprobs, piece.advantages))
        batches.append(Minibatch(int(batch.mask[rows].sum()), tuple(pieces)))
    return batches


def _passes(lengths: Sequence[int], most_tokens: int) -> list[int]:
    """How many responses, the longest first, go into each pass, in which all are as long as the first."""
    sizes: list[int] = []
    first = 0
    while first < len(lengths):
        sizes.append(min(len(lengths) - first, max(1, most_tokens // max(lengths[first], 1))))
        first += sizes[-1]
    return sizes
