"""How long the phases of a job are going to take, in each of its shapes, by what its first iterations show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Actual, Phase, Switch, Training
from rollmux_env.keys.shapes import PhaseShape, Shape, TrainingShape
from runtime.journal.facts import PhaseSlice

_LEAST_S = 1e-6
_FIXED_CV = 1e-3  # phases that vary less than this do not vary


class PhaseForecast(NamedTuple):
    """A phase of the scenario, and what of it is a warm switch, seconds."""

    phase: Phase
    switch_s: float


class PhasesForecast(NamedTuple):
    """Both phases in a shape."""

    rollout: PhaseForecast
    training: PhaseForecast

    @property
    def shape(self) -> Shape:
        """As a shape of a job."""
        rollout, training = (
            {key: getattr(one.phase, key) for key in ("nodes", "worst_case_s", "actual", "switch")} for one in self
        )
        return Shape(
            rollout=PhaseShape().model_copy(update=rollout), training=TrainingShape().model_copy(update=training | {"by_nodes": {}})
        )


def forecast_phases(
    job: Job, early: Mapping[int, Sequence[PhaseSlice]], shapes: Mapping[int, int], moves: bool
) -> list[PhasesForecast]:
    """How long phases hold their nodes, switches included, by number of the shape.

    Args:
        job: as it was profiled. early: phases of the first iterations, by number. shapes: that of each iteration.
        moves: the job has another cold start after its first one, for which the profile's stands in where they show none.
    """
    by_shape: list[list[PhaseSlice]] = [[] for _ in range(1 + len(job.shapes))]
    for number, parts in early.items():
        by_shape[shapes[number]] += parts
    return [*map(PhasesForecast, *(_by_shape(by_shape, name, job, moves) for name in ("rollout", "training")))]


def _by_shape(by_shape: Sequence[Sequence[PhaseSlice]], name: str, job: Job, moves: bool) -> list[PhaseForecast]:
    """A phase in each shape.

    A shape that the first iterations do not show takes what the profile says of it, times as long as they took of what it says of
    the shape that they show most of.
    """
    profiles: list[Phase] = [getattr(job.phases(number), name) for number in range(len(by_shape))]
    counts = [len(_warm(parts, name)) for parts in by_shape]
    most = max(range(len(counts)), key=lambda number: counts[number])
    basis = _phase(by_shape[most], name, profiles[most], moves)
    forecasts = []
    for number, profile in enumerate(profiles):
        if counts[number] or number == most:
            forecasts.append(_phase(by_shape[number], name, profile, moves))
        else:
            seconds = basis.phase.worst_case_s * profile.worst_case_s / profiles[most].worst_case_s
            known: dict[str, Any] = {"nodes": profile.nodes, "worst_case_s": seconds}
            forecasts.append(basis._replace(phase=basis.phase.model_copy(update=known)))
    return forecasts


def _phase(parts: Iterable[PhaseSlice], name: str, profiled: Phase, moves: bool) -> PhaseForecast:
    """A phase by what is known of it; the cold start is what a first one took beyond a warm one."""
    own = [part for part in parts if part.phase == name or (part.phase == "init" and name == "rollout")]
    seconds, switch_s = [part.end_s - part.start_s for part in _warm(own, name)], profiled.switch.warm_s
    mean_s = profiled.worst_case_s + switch_s
    if seconds:
        mean_s = fmean(seconds)
        switch_s = fmean(part.end_s - part.start_s - (part.done_s - part.run_s) for part in _warm(own, name))
    cold_s = sum(part.end_s - part.start_s for part in own if part.cold)
    cold_s = max(0.0, cold_s - mean_s, profiled.switch.cold_s if moves and not cold_s else 0.0)
    cv = stdev(seconds) / mean_s if len(seconds) > 1 and mean_s > _LEAST_S else 0.0
    actual = Actual(mean_fraction=1.0, cv=cv, cap=False) if cv > _FIXED_CV else None
    values = {"worst_case_s": max(mean_s, _LEAST_S), "actual": actual, "switch": Switch(cold_s=cold_s)}
    phase = (Training if name == "training" else Phase).model_validate({"nodes": profiled.nodes, **values})
    return PhaseForecast(phase, switch_s)


def _warm(parts: Iterable[PhaseSlice], name: str) -> list[PhaseSlice]:
    return [part for part in parts if part.phase == name and not part.cold]
