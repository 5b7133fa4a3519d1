"""Warnings about unsound training, from the metrics of a job's iterations, in RollMux's or TRL's names.

A training that stagnates for `PATIENCE` iterations causes one warning, and another one if it has recovered and stagnates again. A
sampler whose probabilities differ from the trainer's causes a warning at once, and another one after `PATIENCE` iterations without
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import NamedTuple

PATIENCE = 5
ALIKE = 0.9  # share of groups whose rewards are all equal
COLLAPSED = 0.02  # entropy in nats per token
CUT_OFF = 0.5  # share of responses that are cut off
APART = 0.05  # nats per token between trainer and sampler with the same weights; bf16 rounding explains a third


class _Sign(NamedTuple):
    """A sign of unsound training.

    Attributes:
        metrics: Names of metrics with the same meaning.
        is_bad: Function of the metric's value and all metrics of the iteration that returns whether they show the sign.
        text: Warning, with a place for the value.
        lasts: Number of consecutive iterations with the sign before the warning.
        clear: Number of iterations without it before the warning is repeated.
    """

    metrics: tuple[str, ...]
    is_bad: Callable[[float, Mapping[str, float]], bool]
    text: str
    lasts: int = PATIENCE
    clear: int = 1


def _costs_reward(share: float, metrics: Mapping[str, float]) -> bool:
    """Return whether many responses are cut off and, as far as known, earn at most half of the mean reward."""
    reward, cut_off = metrics.get("reward"), metrics.get("cut_off_reward")
    return share >= CUT_OFF and (reward is None or cut_off is None or cut_off <= reward / 2)


def _is_on_policy(metrics: Mapping[str, float]) -> bool:
    """Return whether the weights that sampled are those that were trained. A job that reports no versions counts as on-policy."""
    return metrics.get("sampled_version") == metrics.get("trained_version")


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


def _gap_sign(top_p: float) -> _Sign:
    """Return the sign that the sampler's probabilities are not the trainer's.

    Args:
        top_p: Probability that the sampler's truncated distribution keeps, which accounts for -log(top_p) of the gap.
    """
    most = APART - log(top_p)
    return _Sign(
        ("logprob_gap", "sampling/sampling_logp_difference/mean"),
        lambda value, metrics: value > most and _is_on_policy(metrics),
        f"log-probabilities of sampler and trainer differ by {{value:.2g}} a token under the same weights, {most:.2g} at most "
        "would be rounding: the model that samples is perhaps not the one that trains",
        lasts=1,
        clear=PATIENCE,
    )


def gap_warning(metrics: Mapping[str, float], top_p: float) -> str | None:
    """Return a line if an iteration's sampler and trainer computed different probabilities, else None."""
    sign = _gap_sign(top_p)
    value = _value(sign, metrics)
    return sign.text.format(value=value) if value is not None and sign.is_bad(value, metrics) else None


def warnings(iterations: Sequence[Mapping[str, float]], top_p: float = 1.0) -> list[str]:
    """Return the new warnings after the last of a job's iterations.

    Args:
        iterations: Metrics of each iteration by name, for the last `PATIENCE` + 1 iterations at least.
        top_p: Probability to which sampling is truncated.
    """
    lines = []
    for sign in (*_SIGNS, _gap_sign(top_p)):
        values = [_value(sign, one) for one in iterations]
        bad = [value is not None and sign.is_bad(value, one) for value, one in zip(values, iterations, strict=True)]
        lasts = len(bad) >= sign.lasts and all(bad[-sign.lasts :])
        if lasts and not any(bad[-sign.lasts - sign.clear : -sign.lasts]):
            text = sign.text.format(value=values[-1])
            lines.append(text if sign.lasts == 1 else f"{text} (for {sign.lasts} iterations)")
    return lines


def _value(sign: _Sign, metrics: Mapping[str, float]) -> float | None:
    return next((metrics[name] for name in sign.metrics if name in metrics), None)
