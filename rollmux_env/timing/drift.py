"""Drift templates: how the phases of a job slow down or speed up over its iterations (RollMux, arXiv 2512.11306, section 6.6).

The paper's increasing template at factor 1.0 lengthens the step time, over 88 steps, by about 17% (7B), by 31 to 38%
(14B), and in bursts by up to 58% (32B). The rest is not printed and assumed: ramps are straight; both phases drift alike;
14B bursts between the two figures; 32B ramps to 31% between its bursts; other sizes follow the nearest published size below
(7B if there is none); and `decreasing` is the reciprocal of `increasing`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmux_env.errors import InputError
from rollmux_env.keys.job import Drift
from rollmux_env.published import source
from rollmux_env.validation_errors import not_one_of

TEMPLATES = ("none", "increasing", "decreasing")
FACTORS = (0.5, 1.0, 1.5)

_RAMP = 88  # iterations that a ramp takes
_STEPS = 22  # constant pieces of a ramp: four of the paper's 88 steps each
_BURST_EVERY = 4
_GAINS = {int(size[:-1]): gains for size, gains in source("rollmux").table("drift_gains", tuple[float, float])}
"""What the step time has gained when the ramp ends, and in a burst then, by billions of parameters."""


def drift(template: str, factor: float, billions: int) -> tuple[Drift, ...]:
    """The `drift` entries of a job; after the ramp the durations stay as they are.

    Args:
        template: one of `TEMPLATES`.
        factor: strength; the paper's are `FACTORS`. The gains above are multiplied by it.
        billions: parameters of the model, in billions.

    Raises:
        InputError: another template, a factor that is not a number above 0, or fewer than one billion.
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
    """The `drift` entries of rollouts that go as the steps of a job did, relative to its first.

    The paper's authors make their templates so from measured steps: what the steps have lost or gained is multiplied by 0.5, 1.0 or
    1.5 (their `decreasing`, since the measured steps became shorter), or by as much below 0 (their `increasing`).

    Args:
        step_s: (n,) seconds of consecutive steps, as `rollmux_env.timing.trajectories.read_step_s` reads them.

    Raises:
        InputError: with this factor a step would take no time.
    """
    factors = [1 + factor * (seconds / step_s[0] - 1) for seconds in step_s]
    if min(factors) <= 0:
        raise InputError(f"drift factor: with {factor} a step would take no time")
    return tuple(Drift(iteration=k, rollout=value) for k, value in enumerate(factors))
