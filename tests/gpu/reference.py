"""What a GPU may differ by from float32: as much as bf16 itself does.

On a GPU everything is computed in bf16, which keeps 8 bits of a number: each operation is off by up to 2^-8 of its result. How
much of that reaches a log-prob or a gradient depends on the model, so it is measured: transformers' plain model computes the same
in float32 and in bf16, on the CPU, and the length of the difference over all numbers is what bf16 costs. The same operations in
another order (other kernels, chunks, shards) make other rounding errors of the same size, so their length over hundreds of
numbers is about the same. `FACTOR` allows twice that; each test shows that a wrong result is farther away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.jobs.grpo_spec import Algorithm
from runtime.training.batch import TrainingBatch
from runtime.training.loss import LogProbs, grpo_sums, token_logprobs

FACTOR = 2.0


def plain_model(directory: Path, dtype: torch.dtype) -> Any:
    """Transformers' model on the CPU, computing in a precision."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True)
    return model.eval()


def plain_gradient(
    directory: Path, batch: TrainingBatch, settings: Algorithm, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs of the response tokens, in a row, and the gradient of the loss by each weight, without chunks, shards or passes."""
    model, mask = plain_model(directory, dtype), batch.mask[:, 1:]
    new = token_logprobs(model(batch.tokens).logits[:, :-1], batch.tokens[:, 1:], settings.temperature)
    logprobs = LogProbs(new, new.detach(), batch.logprobs[:, 1:])
    total, _, _ = grpo_sums(logprobs, batch.advantages, mask, clip=settings.clip, cap=settings.importance_cap)
    (total / mask.sum()).backward()  # type: ignore[no-untyped-call]
    return new.detach()[mask], {name: parameter.grad.float() for name, parameter in model.named_parameters()}


@torch.no_grad()
def plain_scores(model: Any, prompt: Iterable[int], response: Iterable[int], temperature: float) -> Tensor:
    """Log-probs of a response's tokens, each behind those before it."""
    before, tokens = list(prompt), list(response)
    logits = model(torch.tensor([before + tokens])).logits[0, len(before) - 1 : -1]
    return token_logprobs(logits, torch.tensor(tokens), temperature)


def distance(one: Tensor, other: Tensor) -> float:
    """The length of a difference."""
    return float((one - other).norm())


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All numbers in a row; without biases of keys, which no softmax feels, so that their gradient is rounding alone."""
    return torch.cat([tensors[name].float().flatten() for name in sorted(tensors) if not name.endswith("k_proj.bias")])
