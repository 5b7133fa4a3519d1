"""The loss of GRPO, token by token.

For token t of a response with advantage A, with p the trainer's probability now, q the trainer's before the iteration's first step
(proximal), s the sampler's (behaviour), and f that of the reference model:

    kl   = f / p - log(f / p) - 1
    loss = -decoupled_objective(p, q, s) + beta * kl

Source of kl: Shao et al., DeepSeekMath, arXiv 2402.03300, equation 4.

The loss of a minibatch is the sum over all response tokens of all its responses, divided by their number: every token counts the
same, in a long response and in a short one (Yu et al., DAPO, arXiv 2503.14476, equation 8).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

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
