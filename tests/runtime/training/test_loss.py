"""The loss is what its definition says, and clipping and capping act where they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from runtime.training.loss import SUMS, LogProbs, decoupled_objective, grpo_sums, token_logprobs
from tests.runtime.training import plain


def _ragged(tensor: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    return [row[chosen].tolist() for row, chosen in zip(tensor, mask, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_loop_over_tokens(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, width = int(random.integers(2, 7)), int(random.integers(2, 12))
    new, old, sampler, reference = (torch.from_numpy(-random.exponential(1.0, (rows, width))) for _ in range(4))
    advantages = torch.from_numpy(random.normal(size=rows))
    mask = torch.from_numpy(random.random((rows, width)) < 0.6)
    mask[0, 0] = True
    beta = 0.1 * (seed % 2)
    total, sums, _ = grpo_sums(
        LogProbs(new, old, sampler, reference if beta else None), advantages, mask, clip=0.2, cap=2.0, beta=beta
    )
    ours, before, theirs = (_ragged(values, mask) for values in (new, old, sampler))
    expected = plain.loss(
        ours, before, theirs, _ragged(reference, mask) if beta else None, advantages.tolist(), clip=0.2, cap=2.0, beta=beta
    )
    assert float(total) / int(mask.sum()) == pytest.approx(expected, rel=1e-12)
    assert float(sums[SUMS.index("loss")]) == pytest.approx(float(total), rel=1e-12)


def test_a_case_by_hand() -> None:
    # One response of two tokens, advantage 2. Token 1: p 0.3, q 0.2, s 0.1: ratio 1.5 is cut to 1.2, weight 2 to 1.5: -1.5 * 2.4.
    # Token 2: p 0.2, q 0.4, s 0.8: ratio 0.5 counts in full, weight 0.5: -0.5 * 1. Together -4.1.
    new, old, sampler = (torch.tensor([values]).log() for values in ([0.3, 0.2], [0.2, 0.4], [0.1, 0.8]))
    new.requires_grad_()
    total, sums, widest = grpo_sums(
        LogProbs(new, old, sampler), torch.tensor([2.0]), torch.ones(1, 2, dtype=torch.bool), clip=0.2, cap=1.5
    )
    assert float(total.detach()) == pytest.approx(-4.1)
    total.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([0.0, -0.5])  # what is clipped has no gradient; d ratio / d log p = ratio
    named = dict(zip(SUMS, sums.tolist(), strict=True))
    assert named["clipped"] == 1 and named["capped"] == 1
    assert named["gap"] == pytest.approx(2 * math.log(2)) and float(widest) == pytest.approx(math.log(2))
    assert named["entropy"] == pytest.approx(-math.log(0.2) - math.log(0.4))


def test_before_the_first_step_the_gradient_is_that_of_reinforce() -> None:
    new = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], requires_grad=True)
    at = new.detach()
    advantages, mask = torch.tensor([1.0, -1.0]), torch.ones(2, 2, dtype=torch.bool)
    grpo_sums(LogProbs(new, at, at), advantages, mask, clip=0.2, cap=2.0)[0].backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.tolist() == [[-1.0, -1.0], [1.0, 1.0]]


def test_a_token_that_became_impossible_has_no_infinite_gradient() -> None:
    new = torch.tensor([[-1.0, -200.0, -1e-3]], requires_grad=True)
    old = torch.tensor([[-200.0, -1.0, -1e-3]])
    logprobs, mask = LogProbs(new, old, old, -new.detach() - 300), torch.ones(1, 3, dtype=torch.bool)
    total, _, _ = grpo_sums(logprobs, torch.tensor([1.0]), mask, clip=0.2, cap=2.0, beta=0.1)
    total.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert bool(total.isfinite()) and bool(new.grad.isfinite().all())


def test_log_probs_are_those_at_the_sampling_temperature() -> None:
    logits, tokens = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 2], [3, 4, 0]])
    expected = (logits / 0.7).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    assert torch.allclose(token_logprobs(logits, tokens, 0.7), expected)
    assert token_logprobs(logits.bfloat16(), tokens, 0.7).dtype == torch.float32


def test_the_decoupled_objective_is_measured_from_recent_weights_and_weighted_by_how_old_the_sample_is() -> None:
    # Four tokens, clip 0.2, cap 2. AReaL's formula by hand: (q / s) * min(u * A, clip(u) * A) with u = p / q, the first cut at 2.
    p, q, s = [0.3, 0.2, 0.45, 0.1], [0.2, 0.4, 0.5, 0.1], [0.1, 0.8, 0.05, 0.1]
    new, proximal, behaviour = (torch.tensor([values], dtype=torch.float64).log() for values in (p, q, s))
    new.requires_grad_()
    objective = decoupled_objective(new, proximal, behaviour, torch.tensor([[2.0]]), 0.2, 2.0)
    assert objective.weight[0].tolist() == pytest.approx([2.0, 0.5, 2.0, 1.0])
    assert objective.ratio[0].tolist() == pytest.approx([1.5, 0.5, 0.9, 1.0])
    assert objective.value[0].tolist() == pytest.approx([2 * 1.2 * 2, 0.5 * 0.5 * 2, 2 * 0.9 * 2, 2.0])
    objective.value.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([0.0, 0.5, 3.6, 2.0])  # of the weight there is none
    coupled = decoupled_objective(new, behaviour, behaviour, torch.tensor([[2.0]]), 0.2, 2.0)
    assert coupled.weight[0].tolist() == [1.0] * 4  # and with q = s it is PPO's own
