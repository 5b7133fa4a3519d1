"""Log-probs of tokens, and the loss of GRPO.

With a vocabulary of 151,936 the logits of 4,096 positions take 2.5 GB in float32, and a backward pass needs several such tables.
Therefore the output layer computes them for a chunk of positions at a time, reduces them to one number per position, and repeats
this in the backward pass. torch's own `linear_cross_entropy` (2.12 and newer) computes gradients in the forward pass, before the
weight of a token's log-prob is known.

For token t of a response with advantage A, let p be the trainer's probability now, q the trainer's before the first step of the
iteration (proximal), s the sampler's (behaviour), and f that of the reference model:

    kl   = f / p - log(f / p) - 1
    loss = -decoupled_objective(p, q, s) + beta * kl

Source of kl: Shao et al., DeepSeekMath, arXiv 2402.03300, equation 4.

The loss of a minibatch is the sum over all response tokens divided by their number. Every token has the same weight, in a long
response and in a short one (Yu et al., DAPO, arXiv 2503.14476, equation 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from runtime.training.memory import CHUNK, SCALES

_MOST = 20.0  # limit of a difference of log-probs, because an overflowing exponential has a NaN gradient even where it is clipped

SUMS = ("loss", "clipped", "gap", "capped", "entropy", "kl")
"""Names of the sums that `grpo_sums` returns, in order."""


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return natural log-probs of tokens at a temperature, in float32.

    Args:
        logits: Logits, shape (..., V).
        tokens: Token ids, int64, shape (...).
        temperature: Temperature of the softmax.
    """
    scaled = logits.float() / temperature
    return -cross_entropy(scaled.flatten(0, -2), tokens.flatten(), reduction="none").view(tokens.shape)


class LogProbs(NamedTuple):
    """Log-probs at the tokens of responses, shape (B, T) each.

    Attributes:
        new: Log-probs of p, the only ones with a gradient.
        old: Log-probs of q.
        sampler: Log-probs of s.
        reference: Log-probs of f, or None without a KL term.
    """

    new: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor | None = None


class Objective(NamedTuple):
    """Result of `decoupled_objective` for each token, shape (B, T) each.

    Attributes:
        value: Value of the objective.
        ratio: The ratio p / q.
        weight: The truncated weight q / s.
    """

    value: Tensor
    ratio: Tensor
    weight: Tensor


def decoupled_objective(new: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, clip: float, cap: float) -> Objective:
    """Compute PPO's clipped objective with separate behaviour and proximal policies, token by token.

        ratio  = p / q
        weight = min(q / s, cap)    no gradient flows through it
        value  = weight * min(ratio * A, clip(ratio, 1 - e, 1 + e) * A)

    Sources: Fu et al., AReaL, arXiv 2505.24298, section 5.2, "Decoupled PPO Objective", after Hilton et al., arXiv 2110.00641. s is
    the behaviour policy, of the version that sampled the token. q is the proximal policy, the weights before the update, relative
    to which the ratio is clipped. So the trust region is around recent weights, however old a sample is. Limiting the weight to
    `cap` is truncated importance sampling; AReaL's code leaves out tokens with larger weights instead. On-policy, q and s differ
    only by
    rounding: Yao et al., 2025, "Your efficient RL framework secretly brings you off-policy RL training".

    Args:
        new: Log-probs of p, shape (B, T), the only argument with a gradient.
        proximal: Log-probs of q, shape (B, T).
        behaviour: Log-probs of s, shape (B, T).
        advantages: A, shape (B, 1).
        clip: Half-width e of the clipping range.
        cap: Largest weight, at least 1.
    """
    ratio = (new - proximal).clamp(-_MOST, _MOST).exp()
    weight = (proximal - behaviour).clamp(max=_MOST).exp().clamp(max=cap)
    value = weight * torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return Objective(value, ratio, weight)


def grpo_sums(
    logprobs: LogProbs, advantages: Tensor, mask: Tensor, *, clip: float, cap: float, beta: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums over the tokens of responses, to be divided by the minibatch's number of tokens.

    Args:
        logprobs: Log-probs of the tokens. Without those of a reference model there is no KL term.
        advantages: Advantages of the responses, shape (B,).
        mask: True at the tokens that count, bool, shape (B, T).
        clip: Half-width e of the clipping range.
        cap: Largest weight q / s, at least 1.
        beta: Weight of the KL term.

    Returns:
        The loss, with its gradient; the sums named in `SUMS`, float64; and the largest |log q - log s|, 0 if no token counts.
    """
    new, old, sampler, reference = logprobs
    advantages = advantages[:, None]
    value, ratio, weight = decoupled_objective(new, old, sampler, advantages, clip, cap)
    gap = old - sampler
    loss = -value
    kl = torch.zeros_like(loss)
    if reference is not None:
        apart = (reference - new).clamp(-_MOST, _MOST)
        kl = apart.exp() - apart - 1
        loss = loss + beta * kl
    clipped = torch.where(advantages > 0, ratio > 1 + clip, ratio < 1 - clip) & (advantages != 0)
    total = loss.masked_fill(~mask, 0).sum()
    columns = (loss, clipped, gap.abs(), weight >= cap, -old, kl)
    with torch.no_grad():
        sums = torch.stack([column.double().masked_fill(~mask, 0).sum() for column in columns])
        widest = gap.abs().masked_fill(~mask, 0).max()
    return total, sums, widest


def chunked_logprobs(hidden: Tensor, layer: nn.Linear, tokens: Tensor, temperature: float) -> Tensor:
    """Compute `token_logprobs` of the logits of an output layer, with the same gradient, in chunks.

    Args:
        hidden: Input of the layer, shape (..., H).
        layer: The output layer.
        tokens: Token ids, int64, shape (...).
        temperature: Temperature of the softmax.

    Returns:
        Log-probs, float32, shape (...).
    """
    return cast(Tensor, _ChunkedLogProbs.apply(hidden, layer.weight, layer.bias, tokens, temperature))  # type: ignore[no-untyped-call]


class _ChunkedLogProbs(torch.autograd.Function):
    """Function of hidden (..., H), weight (V, H), bias (V) or None, tokens (...) and temperature; the result has shape (...)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float) -> Tensor:
        scores = torch.empty(tokens.shape, device=hidden.device)  # no view, because FSDP attaches its backward pass to outputs
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
            change = change.sub_(change.logsumexp(-1, keepdim=True)).exp_().neg_()  # derivative of a log-prob by the scaled logits
            change[torch.arange(len(change), device=change.device), targets[rows]] += 1
            change = change.mul_(worth[rows, None]).to(weight.dtype)
            to_hidden[rows] = change @ weight
            if weight.dtype == to_weight.dtype:
                to_weight.addmm_(change.T, hidden[rows])
            else:  # sum many chunks in float32
                to_weight += change.T @ hidden[rows]
            if to_bias is not None:
                to_bias += change.float().sum(0)
        return to_hidden.view_as(whole), to_weight.to(weight.dtype), None if to_bias is None else to_bias.to(bias.dtype), None, None


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // len(weight))
    for first in range(0, len(hidden), rows):
        yield slice(first, first + rows)


class ScoringLayer:
    """Forward pass of a model's output layer that returns log-probs instead of logits on request.

    It runs inside the model's own forward pass, where the shards of its weight are gathered.
    """

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._result: tuple[int, torch.Size] | None = None  # memory and shape of the last log-probs
        self._tokens: Tensor | None = None
        self._temperature = 1.0

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits, or log-probs of the tokens of `scoring`."""
        if self._tokens is None:
            return linear(hidden, self._layer.weight, self._layer.bias)
        scores = chunked_logprobs(hidden, self._layer, self._tokens, self._temperature)
        self._result = scores.data_ptr(), scores.shape
        return scores

    def has_returned(self, scores: Tensor) -> bool:
        """Return whether these are the last log-probs, without a change by the model."""
        return self._result == (scores.data_ptr(), scores.shape)

    @contextmanager
    def scoring(self, tokens: Tensor, temperature: float) -> Iterator[None]:
        """Let the layer return log-probs of these tokens at this temperature inside the context."""
        self._tokens, self._temperature = tokens, temperature
        try:
            yield
        finally:
            self._tokens = None


def prepare_scoring(model: nn.Module) -> None:
    """Enable `score_tokens` without a table of logits, for a model that does not modify logits after its output layer."""
    layer, config = model.get_output_embeddings(), model.config  # type: ignore[operator]
    if type(layer) is nn.Linear and not any(getattr(config, name, None) for name in SCALES):
        layer.forward = ScoringLayer(layer)  # type: ignore[method-assign,assignment]


def score_tokens(model: nn.Module, tokens: Tensor, first: int, temperature: float) -> Tensor:
    """Return natural log-probs of the tokens of sequences from a position on, each given the tokens before it.

    Args:
        model: The model.
        tokens: Token ids on the model's device, int64, shape (B, T).
        first: First position, at least 1.
        temperature: Temperature of the softmax.

    Returns:
        Log-probs, float32, shape (B, T - first).

    Raises:
        RuntimeError: The model changes its logits after the output layer, and its config has none of `SCALES`.
    """
    targets = tokens[:, first:]
    before = torch.arange(first - 1, tokens.shape[1] - 1, device=tokens.device)
    layer = model.get_output_embeddings().forward  # type: ignore[operator]
    if not isinstance(layer, ScoringLayer):
        return token_logprobs(model(input_ids=tokens, use_cache=False, logits_to_keep=before).logits, targets, temperature)
    with layer.scoring(targets, temperature):
        scores: Tensor = model(input_ids=tokens, use_cache=False, logits_to_keep=before).logits
    if not layer.has_returned(scores):  # it would have changed log-probs as it does logits
        kind = model.config.model_type  # type: ignore[union-attr]
        raise RuntimeError(f"{kind}: changes its logits after the output layer in a way that is not supported")
    return scores
