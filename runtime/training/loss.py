"""Log-probs of tokens, and the loss of GRPO.

With a vocabulary of 151,936 the logits of 4,096 positions are 2.5 GB in float32, and a backward pass holds several such tables.
So the output layer computes them a chunk of positions at a time, reduced to one number a position, and once more in the backward
pass. torch's own `linear_cross_entropy` (2.12 and newer) computes gradients in the forward pass, before it is known what a token's
log-prob is worth.

For token t of a response with advantage A, with p the trainer's probability now, q the trainer's before the iteration's first step
(proximal), s the sampler's (behaviour), and f that of the reference model:

    kl   = f / p - log(f / p) - 1
    loss = -decoupled_objective(p, q, s) + beta * kl

Source of kl: Shao et al., DeepSeekMath, arXiv 2402.03300, equation 4.

The loss of a minibatch is the sum over all response tokens of all its responses, divided by their number: every token counts the
same, in a long response and in a short one (Yu et al., DAPO, arXiv 2503.14476, equation 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from runtime.training.memory import CHUNK, SCALES

_MOST = 20.0  # of a difference of log-probs, so that no exponential overflows: its gradient would be NaN even where it is clipped

SUMS = ("loss", "clipped", "gap", "capped", "entropy", "kl")
"""What `grpo_sums` adds up, in this order."""


def token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Natural log-probs of tokens at a temperature, in float32.

    Args:
        logits: (..., V). tokens: (...) int64.
    """
    scaled = logits.float() / temperature
    return -cross_entropy(scaled.flatten(0, -2), tokens.flatten(), reduction="none").view(tokens.shape)


class LogProbs(NamedTuple):
    """Log-probs at the tokens of responses, (B, T) each: of p, q, s and f. Only `new` has a gradient."""

    new: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor | None = None


class Objective(NamedTuple):
    """What `decoupled_objective` gives for each token, (B, T): its value, the ratio p / q, and the weight of q / s."""

    value: Tensor
    ratio: Tensor
    weight: Tensor


def decoupled_objective(new: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, clip: float, cap: float) -> Objective:
    """PPO's clipped objective where those who sampled are not those from whom a step is measured, token by token:

        ratio  = p / q
        weight = min(q / s, cap)    no gradient flows through it
        value  = weight * min(ratio * A, clip(ratio, 1 - e, 1 + e) * A)

    Sources: Fu et al., AReaL, arXiv 2505.24298, section 5.2, "Decoupled PPO Objective", after Hilton et al., arXiv 2110.00641: s is
    the behaviour policy, of the version that sampled the token, q the proximal policy, the weights before the update, from which
    the ratio is clipped. So the trust region is around recent weights, however old a sample is. The cut of the weight at `cap` is
    truncated importance sampling; AReaL's code leaves out tokens of which it is larger. On-policy q and s differ by rounding
    alone: Yao et al., 2025, "Your efficient RL framework secretly brings you off-policy RL training".

    Args:
        new, proximal, behaviour: log-probs of p, q and s, (B, T); `new` alone has a gradient. advantages: A, (B, 1).
        clip: e. cap: at least 1.
    """
    ratio = (new - proximal).clamp(-_MOST, _MOST).exp()
    weight = (proximal - behaviour).clamp(max=_MOST).exp().clamp(max=cap)
    value = weight * torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return Objective(value, ratio, weight)


def grpo_sums(
    logprobs: LogProbs, advantages: Tensor, mask: Tensor, *, clip: float, cap: float, beta: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over the tokens of responses, to be divided by the minibatch's number of them.

    Args:
        logprobs: without those of a reference there is no KL term.
        advantages: (B,). mask: (B, T) bool, the tokens that count.
        clip: e. cap, beta: as above.

    Returns:
        (the loss, with its gradient; the sums named in `SUMS`, float64; the largest |log q - log s|, 0 where nothing counts).
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
