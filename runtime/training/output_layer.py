"""Log-probs of tokens without a table of all logits: the output layer computes them a chunk of positions at a time.

With a vocabulary of 151,936 the logits of 4,096 positions are 2.5 GB in float32, and a backward pass holds several such tables.
Here a chunk is computed, reduced to one number a position, and computed once more in the backward pass. torch's own
`linear_cross_entropy` (2.12 and newer) computes gradients in the forward pass, before it is known what a token's log-prob is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from runtime.training.loss import token_logprobs
from runtime.training.memory import CHUNK, SCALES


def chunked_logprobs(hidden: Tensor, layer: nn.Linear, tokens: Tensor, temperature: float) -> Tensor:
    """`token_logprobs` of the logits of an output layer, with the same gradient.

    Args:
        hidden: (..., H), what the layer is given. tokens: (...) int64.

    Returns:
        (...) float32.
    """
    return cast(Tensor, _ChunkedLogProbs.apply(hidden, layer.weight, layer.bias, tokens, temperature))  # type: ignore[no-untyped-call]


class _ChunkedLogProbs(torch.autograd.Function):
    """(..., H), (V, H), (V) or None, (...), temperature -> (...) float32."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float) -> Tensor:
        scores = torch.empty(tokens.shape, device=hidden.device)  # no view: FSDP hangs its backward pass on what a model returns
        flat, targets = hidden.flatten(0, -2), tokens.flatten()
        for rows in _chunks(flat, weight):
            scores.view(-1)[rows] = token_logprobs(linear(flat[rows], weight, bias), targets[rows], temperature)
        ctx.save_for_backward(hidden, weight, bias, tokens)
        ctx.temperature = temperature
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        whole, weight, bias, tokens = ctx.saved_tensors
        hidden, targets, worth = whole.flatten(0, -2), tokens.flatten(), gradients[0].flatten() / ctx.temperature
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=torch.float32)
        to_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        for rows in _chunks(hidden, weight):
            change = linear(hidden[rows], weight, bias).float().div_(ctx.temperature)
            change = change.sub_(change.logsumexp(-1, keepdim=True)).exp_().neg_()  # of a log-prob by the scaled logits
            change[torch.arange(len(change), device=change.device), targets[rows]] += 1
            change = change.mul_(worth[rows, None]).to(weight.dtype)
            to_hidden[rows] = change @ weight
            if weight.dtype == to_weight.dtype:
                to_weight.addmm_(change.T, hidden[rows])
            else:  # many chunks are added up in float32
                to_weight += change.T @ hidden[rows]
            if to_bias is not None:
                to_bias += change.float().sum(0)
        return to_hidden.view_as(whole), to_weight.to(weight.dtype), None if to_bias is None else to_bias.to(bias.dtype), None, None


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // len(weight))
    for first in range(0, len(hidden), rows):
        yield slice(first, first + rows)


class ScoringLayer:
    """The forward pass of a model's output layer, which gives log-probs in place of logits where they are asked for.

    It is called inside the model's own forward pass, where the ranks' shards of its weight are together.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._tokens: Tensor | None = None
        self._temperature = 1.0

    def __call__(self, hidden: Tensor) -> Tensor:
        if self._tokens is None:
            return linear(hidden, self._layer.weight, self._layer.bias)
        return chunked_logprobs(hidden, self._layer, self._tokens, self._temperature)

    @contextmanager
    def scoring(self, tokens: Tensor, temperature: float) -> Iterator[None]:
        """Inside, log-probs of these tokens at this temperature are given."""
        self._tokens, self._temperature = tokens, temperature
        try:
            yield
        finally:
            self._tokens = None


def prepare_scoring(model: nn.Module) -> None:
    """Let `score_tokens` do without a table of logits, for a model that does nothing to them after its output layer."""
    layer, config = model.get_output_embeddings(), model.config  # type: ignore[operator]
    if type(layer) is nn.Linear and not any(getattr(config, name, None) for name in SCALES):
        layer.forward = ScoringLayer(layer)  # type: ignore[method-assign,assignment]


def score_tokens(model: nn.Module, tokens: Tensor, first: int, temperature: float) -> Tensor:
    """Natural log-probs of the tokens of sequences from one place on, each given those before it.

    Args:
        tokens: (B, T) int64, on the model's device. first: of the places, at least 1.

    Returns:
        (B, T - first) float32.
    """
    targets = tokens[:, first:]
    before = torch.arange(first - 1, tokens.shape[1] - 1, device=tokens.device)
    layer = model.get_output_embeddings().forward  # type: ignore[operator]
    if not isinstance(layer, ScoringLayer):
        return token_logprobs(model(input_ids=tokens, use_cache=False, logits_to_keep=before).logits, targets, temperature)
    with layer.scoring(targets, temperature):
        scores: Tensor = model(input_ids=tokens, use_cache=False, logits_to_keep=before).logits
    return scores
