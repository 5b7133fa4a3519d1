"""Jobs that sample while they train, replayed from mean seconds of their stages: a part of the suite `fidelity`.

Others print what a step and its stages take with one phase after the other, and with rollouts that are one step ahead. A replay is
given the stages alone, and the same ones in every step; what it says of the step stands beside what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollmux_env.bench.suite import Makers
from rollmux_env.bench.suites.recorded import Compared, Iteration, RecordedRun, predicted
from rollmux_env.published import source

FILES = ("verl_one_step_off", "vime")
_STEPS = 20


class Steps(NamedTuple):
    """Mean seconds of a step and of its stages; `log_probs_s` is None where it is part of the update."""

    staleness: int
    rollout_s: float
    log_probs_s: float | None
    update_s: float
    step_s: float

    def run(self) -> RecordedRun:
        """Some steps, all alike, on GPUs of the job's own."""
        training_s = (self.log_probs_s or 0.0) + self.update_s
        iterations = _STEPS * (Iteration("job", self.rollout_s, training_s, 0.0),)
        return RecordedRun("steps", False, (0.0, 0.0), 0.0, _STEPS * self.step_s, iterations, staleness=self.staleness)


class Way(NamedTuple):
    """One way of running a job: of which source, its name there, and the way that does not overlap, None for that one itself."""

    source: str
    name: str
    steps: Steps
    apart: Steps | None

    @property
    def gain(self) -> float:
        """Of overlapping, as measured; 1 where nothing overlaps."""
        return (self.apart or self.steps).step_s / self.steps.step_s


def ways(file: str) -> Iterator[Way]:
    """Every row of a source's table of steps.

    Raises:
        InputError: as `Source.table`.
    """
    figures, apart = source(file), None
    for name, steps in figures.table("steps", Steps):
        apart = apart if steps.staleness else steps
        yield Way(figures.value("name", str), name, steps, apart if steps.staleness else None)


WAYS = tuple(way for file in FILES for way in ways(file))


def compared_steps(makers: Makers) -> Iterator[Compared]:
    """Every step, and what overlapping gains over one phase after the other."""
    for way in WAYS:
        step_s = _step_s(way.steps, makers)
        yield Compared(way.source, f"{way.name}: step", step_s, way.steps.step_s)
        if way.apart:
            yield Compared(way.source, f"{way.name}: gain", _step_s(way.apart, makers) / step_s, way.gain, True)


def _step_s(steps: Steps, makers: Makers) -> float:
    return predicted(steps.run(), makers.dispatch("fifo")).period_s["job"]
