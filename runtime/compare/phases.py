"""How long the phases of a job are going to take, in each of its shapes, by what its first iterations show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rollmux_env.keys.job import Drift, Job
from rollmux_env.keys.phases import Actual, Phase, Switch, Training
from rollmux_env.keys.shapes import PhaseShape, Shape, TrainingShape
from runtime.compare.cores import without_core_s
from runtime.journal.facts import PhaseSlice

_LEAST_S = 1e-6
_FIXED_CV = 1e-3  # phases that vary less than this do not vary


class PhasesForecast(NamedTuple):
    """Both phases in a shape, and what of them are warm switches, seconds."""

    rollout: Phase
    training: Phase
    rollout_switch_s: float
    training_switch_s: float

    @property
    def shape(self) -> Shape:
        """As a shape of a job."""
        rollout, training = (
            {key: getattr(phase, key) for key in ("nodes", "worst_case_s", "actual", "switch")}
            for phase in (self.rollout, self.training)
        )
        return Shape(
            rollout=PhaseShape().model_copy(update=rollout), training=TrainingShape().model_copy(update=training | {"by_nodes": {}})
        )


class _Forecast(NamedTuple):
    """A phase of the scenario, and what of it is a warm switch, seconds."""

    phase: Phase
    switch_s: float


def forecast_phases(
    job: Job, early: Mapping[int, Sequence[PhaseSlice]], shapes: Mapping[int, int], moves: bool, knows_cores: bool
) -> list[PhasesForecast]:
    """How long phases hold their nodes, switches included, by number of the shape.

    A shape that the first iterations do not show takes what the profile says of it, times as long as they took of what it says of
    the shape that they show most of.

    Args:
        job: as it was profiled. early: phases of the first iterations, by number. shapes: that of each iteration.
        moves: the job has another cold start after its first one, for which the profile's stands in where they show none.
        knows_cores: the seconds without a core are left out.
    """
    by_shape: list[list[PhaseSlice]] = [[] for _ in range(1 + len(job.shapes))]
    for number, parts in early.items():
        by_shape[shapes[number]] += parts
    rollout, training = (_by_shape(by_shape, name, job, moves, knows_cores) for name in ("rollout", "training"))
    return [PhasesForecast(a.phase, b.phase, a.switch_s, b.switch_s) for a, b in zip(rollout, training, strict=True)]


def waits(slices: Mapping[int, Sequence[PhaseSlice]], planned: Mapping[int, PhasesForecast]) -> tuple[Drift, ...]:
    """Factors on the seconds of each iteration's phases, for those in which they had no core.

    Args:
        planned: of each iteration, in its shape.
    """
    entries = []
    for number in sorted(slices):
        waited_s = {"rollout": 0.0, "training": 0.0, "init": 0.0}
        for part in slices[number]:
            waited_s[part.phase] += without_core_s(part)
        both = ("rollout", planned[number].rollout), ("training", planned[number].training)
        factors = {name: 1 + waited_s[name] / phase.worst_case_s for name, phase in both}
        entries.append(Drift(iteration=number, **factors))
    return tuple(entries)


def _by_shape(by_shape: Sequence[Sequence[PhaseSlice]], name: str, job: Job, moves: bool, knows_cores: bool) -> list[_Forecast]:
    """A phase in each shape."""
    profiles: list[Phase] = [getattr(job.phases(number), name) for number in range(len(by_shape))]
    counts = [sum(part.phase == name and not part.cold for part in parts) for parts in by_shape]
    most = max(range(len(counts)), key=lambda number: counts[number])
    basis = _phase(by_shape[most], name, profiles[most], moves, knows_cores)
    forecasts = []
    for number, profile in enumerate(profiles):
        if number == most:
            forecasts.append(basis)
        elif counts[number]:
            forecasts.append(_phase(by_shape[number], name, profile, moves, knows_cores))
        else:
            seconds = basis.phase.worst_case_s * profile.worst_case_s / profiles[most].worst_case_s
            known: dict[str, Any] = {"nodes": profile.nodes, "worst_case_s": seconds}
            forecasts.append(basis._replace(phase=basis.phase.model_copy(update=known)))
    return forecasts


def _phase(parts: Iterable[PhaseSlice], name: str, profiled: Phase, moves: bool, knows_cores: bool) -> _Forecast:
    """A phase by what is known of it; the cold start is what a first one took beyond a warm one."""
    own = [part for part in parts if part.phase in (("init", name) if name == "rollout" else (name,))]
    warm = [part for part in own if part.phase == name and not part.cold]
    seconds = [part.end_s - part.start_s - (without_core_s(part) if knows_cores else 0.0) for part in warm]
    switches = [part.end_s - part.start_s - (part.done_s - part.run_s) for part in warm]
    mean_s = fmean(seconds) if warm else profiled.worst_case_s + profiled.switch.warm_s
    cold_s = sum(part.end_s - part.start_s for part in own if part.cold)
    cold_s = max(0.0, cold_s - mean_s, profiled.switch.cold_s if moves and not cold_s else 0.0)
    cv = stdev(seconds) / mean_s if len(seconds) > 1 and mean_s > _LEAST_S else 0.0
    actual = Actual(mean_fraction=1.0, cv=cv, cap=False) if cv > _FIXED_CV else None
    values = {"worst_case_s": max(mean_s, _LEAST_S), "actual": actual, "switch": Switch(cold_s=cold_s)}
    phase = (Training if name == "training" else Phase).model_validate({"nodes": profiled.nodes, **values})
    return _Forecast(phase, fmean(switches) if warm else profiled.switch.warm_s)
