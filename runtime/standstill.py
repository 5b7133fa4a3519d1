"""Whether a job's training stands still, by the metrics of its iterations; those of TRL's names count as well.

What lasts for `PATIENCE` iterations is said once, and again when it has been over and lasts so long again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

PATIENCE = 5
ALIKE = 0.9  # share of the groups without a spread of rewards
COLLAPSED = 0.02  # nats a token
CUT_OFF = 0.5  # share of the responses


class _Sign(NamedTuple):
    """What shows that training stands still: metrics that mean the same, from which value on, and what is said."""

    metrics: tuple[str, ...]
    is_bad: Callable[[float, Mapping[str, float]], bool]
    text: str


def _costs_reward(share: float, metrics: Mapping[str, float]) -> bool:
    """Whether many responses are cut off, and earn at most half of what all do, as far as that is known."""
    reward, cut_off = metrics.get("reward"), metrics.get("cut_off_reward")
    return share >= CUT_OFF and (reward is None or cut_off is None or cut_off <= reward / 2)


_SIGNS = (
    _Sign(
        ("frac_reward_zero_std",),
        lambda value, _: value >= ALIKE,
        "in {value:.0%} of the groups all responses earn the same, so there is hardly anything to learn: the task is too hard, "
        "too easy, or the reward does not recognise what is right",
    ),
    _Sign(
        ("entropy",),
        lambda value, _: value < COLLAPSED,
        "its entropy is {value:.2g} nats a token: responses to a prompt are nearly alike, and nothing new is tried",
    ),
    _Sign(
        ("cut_off", "completions/clipped_ratio"),
        _costs_reward,
        "{value:.0%} of the responses are cut off at max_tokens, before their answer perhaps",
    ),
)


def warnings(iterations: Sequence[Mapping[str, float]]) -> list[str]:
    """What is to be said after the last of a job's iterations: a line for each sign that has lasted for exactly `PATIENCE` of them.

    Args:
        iterations: metrics by name, at least of the last `PATIENCE` + 1.
    """
    lines = []
    for sign in _SIGNS:
        values = [next((one[name] for name in sign.metrics if name in one), None) for one in iterations]
        bad = [value is not None and sign.is_bad(value, one) for value, one in zip(values, iterations, strict=True)]
        last = values[-1] if values else None
        if last is not None and len(bad) >= PATIENCE and all(bad[-PATIENCE:]) and not any(bad[-PATIENCE - 1 : -PATIENCE]):
            lines.append(f"{sign.text.format(value=last)} (for {PATIENCE} iterations)")
    return lines
