"""Jobs that sample while they train, replayed from the mean seconds of their stages: a part of the suite `fidelity`.

Published results give the seconds of a step and its stages, both with one phase after the other and with rollouts that are one step
ahead. A replay is given only the stages, the same in every step. Its prediction for the step is compared with the measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollmux_env.bench.suite import Makers
from rollmux_env.bench.suites.recorded import Compared, RecordedIteration, RecordedRun, predicted
from rollmux_env.published import source

FILES = ("verl_one_step_off", "vime")
_STEPS = 20  # number of replayed steps


class Steps(NamedTuple):
    """Mean seconds of a step and of its stages.

    Attributes:
        staleness: Number of steps by which rollouts are ahead.
        rollout_s: Seconds of the rollout.
        log_probs_s: Seconds of the log-probabilities, or None if they are part of the update.
        update_s: Seconds of the update.
        step_s: Seconds of the whole step.
    """

    staleness: int
    rollout_s: float
    log_probs_s: float | None
    update_s: float
    step_s: float

    def run(self) -> RecordedRun:
        """Return some identical steps of a job on separate GPUs."""
        training_s = (self.log_probs_s or 0.0) + self.update_s
        iterations = _STEPS * (RecordedIteration("job", self.rollout_s, training_s, 0.0),)
        return RecordedRun("steps", False, (0.0, 0.0), 0.0, _STEPS * self.step_s, iterations, staleness=self.staleness)


class OverlapVariant(NamedTuple):
    """One way of running a job.

    Attributes:
        source: Name of the source.
        name: Name of the way in the source.
        steps: Mean seconds of its steps.
        apart: Steps of the way without overlap, or None if this is that one.
    """

    source: str
    name: str
    steps: Steps
    apart: Steps | None

    @property
    def gain(self) -> float:
        """Measured gain of overlapping; 1 if nothing overlaps."""
        return (self.apart or self.steps).step_s / self.steps.step_s


def ways(file: str) -> Iterator[OverlapVariant]:
    """Yield every row of a source's table of steps.

    Raises:
        InputError: As in `Source.table`.
    """
    figures, apart = source(file), None
    for name, steps in figures.table("steps", Steps):
        apart = apart if steps.staleness else steps
        yield OverlapVariant(figures.value("name", str), name, steps, apart if steps.staleness else None)


WAYS = tuple(way for file in FILES for way in ways(file))


def compare_steps(makers: Makers) -> Iterator[Compared]:
    """Yield every step, and the gain of overlapping over one phase after the other."""
    for way in WAYS:
        step_s = _step_s(way.steps, makers)
        yield Compared(way.source, f"{way.name}: step", step_s, way.steps.step_s)
        if way.apart:
            yield Compared(way.source, f"{way.name}: gain", _step_s(way.apart, makers) / step_s, way.gain, True)


def _step_s(steps: Steps, makers: Makers) -> float:
    return predicted(steps.run(), makers.dispatch("fifo")).period_s["job"]
