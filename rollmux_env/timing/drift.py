"""Drift templates: how the phases of a job become slower or faster over its iterations (RollMux, arXiv 2512.11306, section 6.6).

In the paper the increasing template at factor 1.0 lengthens the step time over 88 steps by about 17% (7B), by 31 to 38% (14B), and
in bursts by up to 58% (32B). The rest is not printed and assumed here: ramps are straight; both phases drift alike; 14B bursts
between its two figures; 32B ramps to 31% between its bursts; other sizes follow the nearest published size below, or 7B; and
`decreasing` is the reciprocal of `increasing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmux_env.errors import InputError
from rollmux_env.keys.job import Drift
from rollmux_env.published import source
from rollmux_env.validation_errors import not_one_of

TEMPLATES = ("none", "increasing", "decreasing")
FACTORS = (0.5, 1.0, 1.5)

_RAMP = 88  # iterations of a ramp
_STEPS = 22  # constant pieces of a ramp, each of four of the paper's 88 steps
_BURST_EVERY = 4
_GAINS = {int(size[:-1]): gains for size, gains in source("rollmux").table("drift_gains", tuple[float, float])}
"""Relative increase of the step time at the end of the ramp, outside and inside a burst, by billions of parameters."""


def drift(template: str, factor: float, billions: int) -> tuple[Drift, ...]:
    """Return the `drift` entries of a job; after the ramp the durations stay constant.

    Args:
        template: Name of the template, one of `TEMPLATES`.
        factor: Strength, by which the paper's increases are multiplied. The paper uses `FACTORS`.
        billions: Number of parameters of the model, in billions.

    Raises:
        InputError: If the template is unknown, the factor is not a number above 0, or there is less than one billion.
    """
    if template not in TEMPLATES:
        raise InputError(f"drift template: {not_one_of(template, TEMPLATES)}")
    if not 0 < factor < float("inf"):
        raise InputError(f"drift factor: must be a number above 0, not {factor}")
    if billions < 1:
        raise InputError(f"drift billions: must be at least 1, not {billions}")
    if template == "none":
        return ()
    ramp, burst = _GAINS[max((size for size in _GAINS if size <= billions), default=7)]
    entries = []
    for step in range(1, _STEPS + 1):  # the first iteration has not drifted yet
        last_burst = (_STEPS - step) % _BURST_EVERY == 0
        gain = factor * (burst if last_burst else ramp) * step / _STEPS
        slower = 1 + gain if template == "increasing" else 1 / (1 + gain)
        entries.append(Drift(iteration=step * _RAMP // (_STEPS + 1), rollout=slower, training=slower))
    return tuple(entries)


def observed_drift(step_s: Sequence[float], factor: float = 1.0) -> tuple[Drift, ...]:
    """Return `drift` entries with which rollouts follow the measured step times of a job, relative to its first step.

    The paper's authors derive their templates from measured steps in this way. They multiply the relative change of each step by
    0.5, 1.0 or 1.5 for `decreasing`, since the measured steps became shorter, and by -0.5, -1.0 or -1.5 for `increasing`.

    Args:
        step_s: Seconds of consecutive steps, shape (n,), as `rollmux_env.timing.trajectories.read_step_s` reads them.
        factor: Factor of the relative change of each step.

    Raises:
        InputError: If a step would take no time with this factor.
    """
    factors = [1 + factor * (seconds / step_s[0] - 1) for seconds in step_s]
    if min(factors) <= 0:
        raise InputError(f"drift factor: with {factor} a step would take no time")
    return tuple(Drift(iteration=k, rollout=value) for k, value in enumerate(factors))
