"""Learning rates by the step, as transformers has them: what a step's rate is depends on its number alone, so nothing is kept."""

from __future__ import annotations

from collections.abc import Callable

import torch


def rates(peak: float, kind: str, warmup_steps: int, steps: int) -> Callable[[int], float]:
    """The learning rate of each step.

    Args:
        peak: after the warm-up. kind: of transformers' `get_scheduler`. warmup_steps: in which it goes up from 0.
        steps: of the job; `linear` and `cosine` are at 0 behind them.
    """
    from transformers import get_scheduler

    nothing = torch.optim.SGD([torch.zeros(())], lr=1.0)
    name = "constant_with_warmup" if kind == "constant" else kind
    factor = get_scheduler(name, nothing, num_warmup_steps=warmup_steps, num_training_steps=steps).lr_lambdas[0]
    return lambda step: peak * float(factor(step))
