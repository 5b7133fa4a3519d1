"""The tracks and streams of the leaderboard, and how an entrant, the reference and the bound are measured on a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from rollmux_env.bench.harness import Result, Task, run_task
from rollmux_env.bench.leaderboard.bounds import group_usd_per_work_hour, without_tails
from rollmux_env.bench.leaderboard.clairvoyant import Clairvoyant
from rollmux_env.bench.possible import check_possible
from rollmux_env.bench.streams import owned, workload
from rollmux_env.bench.suite import Makers
from rollmux_env.envs.dispatch.generator import RandomGroups
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.types import SimulatedGroup
from rollmux_env.replay.job_results import JobResult
from rollmux_env.replay.outcome import Outcome, outcome
from rollmux_env.scenario import Scenario
from rollmux_env.workloads.modelled import with_models
from rollmux_env.workloads.own import is_own, own_stream

VERSION = 1
"""Version of the tracks, streams, references and bounds. Scores of different versions are not comparable."""


@dataclass(frozen=True)
class Entrant:
    """Policies that enter together, by name and options.

    Attributes:
        placement: Placement policy, or None for the reference's.
        dispatch: Dispatch policy, or None for the reference's.
        rollout: Rollout policy, or None for the reference's.
    """

    placement: str | None = None
    dispatch: str | None = None
    rollout: str | None = None

    @property
    def name(self) -> str:
        """Names of the given policies; those other than placement policies are prefixed with their kind."""
        kinds = {"": self.placement, "dispatch ": self.dispatch, "rollout ": self.rollout}
        return " + ".join(f"{kind}{spec}" for kind, spec in kinds.items() if spec is not None)


REFERENCE = Entrant("rollmux", "round-robin,migrate=0.8", "plain")
"""The paper's policies: Algorithm 1, strict round robin with long-tail migration, and rollouts that run to their ends."""


CLAIRVOYANT = Entrant(dispatch="clairvoyant")
"""The best schedules of groups that a search finds if it knows all durations. They stand beside the entries, and rank nowhere."""


class StreamOutcome(NamedTuple):
    """The outcome of a stream under some policies.

    Attributes:
        figure: Dollars per work-hour, or hours of mean completion on a fleet.
        slo_kept: Whether all jobs kept their SLO.
        moves: Number of moves of running jobs.
        decision_ms: Median time of a placement decision in milliseconds. For a group, the time of the whole replay divided by its
            phases; for rollouts, divided by the jobs' iterations.
    """

    figure: float
    slo_kept: bool
    moves: int
    decision_ms: float


class StreamKind(NamedTuple):
    """A kind of stream.

    Attributes:
        play: Function that measures an entrant's policies on the stream of a seed.
        bound: Function that returns the figure of the yardstick, which scores 100; a strict bound only in `dispatch` and `fleet`.
        sha256: Function that returns the hash of a seed's stream.
        most: Highest possible score. A yardstick that is no strict bound may be passed, by a little.
    """

    play: Callable[[int, Entrant, Makers], StreamOutcome]
    bound: Callable[[int, Makers], float]
    sha256: Callable[[int], str]
    most: float = 110.0


@dataclass(frozen=True)
class Track:
    """A track of the leaderboard.

    Attributes:
        name: Name on a terminal.
        title: Title on the page.
        needs: Kind of policy that an entrant must have to be in the track, or empty for any.
        kinds: Kinds of its streams.
        each: Number of fixed streams of each kind, with seeds from 0 on, and of fresh ones.
        moves: Whether running jobs may move.
    """

    name: str
    title: str
    needs: str
    kinds: tuple[str, ...]
    each: int
    moves: bool = True

    def takes(self, entrant: Entrant) -> bool:
        """Return whether an entrant is in the track."""
        return not self.needs or getattr(entrant, self.needs) is not None


TRACKS = (
    Track("placement", "Placement without moves", "placement", ("production", "mixed"), 5, moves=False),
    Track("moves", "Placement with moves", "placement", ("production", "mixed"), 5),
    Track("fleet", "A fleet that is owned: mean completion", "placement", ("owned production", "owned mixed"), 5),
    Track("dispatch", "Dispatch", "dispatch", ("groups",), 20),
    Track("rollout", "Rollouts", "rollout", ("rollouts",), 5),
    Track("together", "All together, with switches and observed SLOs", "", ("worst cases", "lengths"), 4),
)


def keeps_slo(job: JobResult) -> bool:
    """Return whether a job departed within its SLO, at worst cases as planned, or as observed if that is longer."""
    return job.slo_kept or bool(job.slo_kept_observed)


def _played(outcome: Outcome) -> StreamOutcome:
    metrics, keeps = outcome.metrics, all(map(keeps_slo, outcome.jobs))
    return StreamOutcome(metrics.usd_per_work_hour, keeps, metrics.migrations, 1e3 * float(np.median(outcome.decision_s)))


@lru_cache(maxsize=4)  # the entrant, the reference, the bound and the hash use the same stream in turn
def _stream(name: str, seed: int, **options: Any) -> Scenario:
    return own_stream(name, seed) if is_own(name) else workload(name, seed, **options)


def _fluid(name: str) -> StreamKind:
    """Return the kind of streams of 60 jobs in fluid replays with equal work; the yardstick is `optimal-work`."""

    def play(seed: int, entrant: Entrant, makers: Makers) -> StreamOutcome:
        return _played(run_task(makers.placement, Task(_policy(entrant, "placement"), seed, _stream(name, seed, jobs=60))).outcome)

    def bound(seed: int, makers: Makers) -> float:
        return play(seed, Entrant("optimal-work"), makers).figure

    return StreamKind(play, bound, lambda seed: _stream(name, seed, jobs=60).sha256)


def _on_fleet(name: str) -> StreamKind:
    """Return the kind of streams of 60 jobs on a fleet at load 1.6; the figure is the mean completion, the yardstick its bound."""
    stream = lru_cache(maxsize=4)(partial(owned, name, 1.6, jobs=60, slo=(1.5, 3.0)))

    def run(seed: int, policy: str, makers: Makers) -> Outcome:
        return run_task(makers.placement, Task(policy, seed, stream(seed))).outcome

    def play(seed: int, entrant: Entrant, makers: Makers) -> StreamOutcome:
        outcome = run(seed, _policy(entrant, "placement"), makers)
        return _played(outcome)._replace(figure=outcome.metrics.mean_completion_h or 0.0)

    def bound(seed: int, makers: Makers) -> float:
        return run(seed, "solo", makers).metrics.bound_completion_h or 0.0

    return StreamKind(play, bound, lambda seed: stream(seed).sha256, most=100.0)


def _policy(entrant: Entrant, kind: str) -> str:
    spec: str = getattr(entrant, kind) or getattr(REFERENCE, kind)
    return spec


@lru_cache(maxsize=4)
def _group(seed: int) -> SimulatedGroup:
    return RandomGroups().group(seed)


def _group_sha256(group: SimulatedGroup) -> str:
    """Return the SHA-256 of a group as it is written: keys that scenario files gain later do not change it."""
    scenario = Scenario(version=1, cluster=group.cluster, jobs=group.jobs)
    text = repr((scenario.canonical_json(), group.pins, group.training_nodes, group.horizon_s, group.seed))
    return hashlib.sha256(text.encode()).hexdigest()


def _play_group(seed: int, entrant: Entrant, makers: Makers) -> StreamOutcome:
    """Measure an entrant on one group until its horizon."""
    group = _group(seed)
    order = None if entrant == CLAIRVOYANT else makers.dispatch(_policy(entrant, "dispatch"))
    began = perf_counter()
    run = replay_group(group, Clairvoyant(group) if order is None else order)  # making the yardstick is its search
    phase_ms = 1e3 * (perf_counter() - began) / len(run.phases)
    measured = outcome(run)
    check_possible(measured, run.scenario)
    return StreamOutcome(figures(group, run)["usd_per_work_hour"], all(map(keeps_slo, measured.jobs)), 0, phase_ms)


@lru_cache(maxsize=4)
def _modelled(seed: int, jobs: int) -> Scenario:
    return with_models(workload("production", seed, jobs=jobs))


def _replay_events(scenario: Scenario, seed: int, entrant: Entrant, makers: Makers) -> Result:
    """Run an event replay under all three policies."""
    inside = makers.rollout(_policy(entrant, "rollout"))
    order = makers.dispatch(makers.migrating(_policy(entrant, "dispatch"), inside))
    return run_task(makers.placement, Task(_policy(entrant, "placement"), seed, scenario, order, rollout=inside))


def _play_rollouts(seed: int, entrant: Entrant, makers: Makers) -> StreamOutcome:
    """Measure an entrant on ten jobs with models, each alone on its own nodes."""
    result = _replay_events(_modelled(seed, 10), seed, Entrant("solo", "round-robin", entrant.rollout), makers)
    iteration_ms = 1e3 * result.total_s / sum(job.iterations for job in result.outcome.jobs)
    return _played(result.outcome)._replace(decision_ms=iteration_ms)


def _ideal_usd(policy: str, scenario: Scenario, seed: int, makers: Makers) -> float:
    """Return the dollars per work-hour of a stream, as written, if no rollout had a tail."""
    ideal = run_task(makers.placement, Task(policy, seed, without_tails(scenario))).outcome.metrics
    return ideal.cost_usd / sum(job.iterations * job.solo_s for job in scenario.jobs if job.iterations) * 3600


def _together(stream: Callable[[int], Scenario]) -> StreamKind:
    """Return the kind of streams in event replays with switches, with which placement policies plan."""

    def play(seed: int, entrant: Entrant, makers: Makers) -> StreamOutcome:
        placement = _policy(entrant, "placement")
        planned = placement if ",switches=" in placement else f"{placement},switches=true"
        return _played(_replay_events(stream(seed), seed, Entrant(planned, entrant.dispatch, entrant.rollout), makers).outcome)

    def bound(seed: int, makers: Makers) -> float:
        return _ideal_usd("optimal-work", stream(seed), seed, makers)

    return StreamKind(play, bound, lambda seed: stream(seed).sha256)


KINDS = {
    "production": _fluid("production"),
    "mixed": _fluid("mixed"),
    "owned production": _on_fleet("production"),
    "owned mixed": _on_fleet("mixed"),
    "groups": StreamKind(
        _play_group,
        lambda seed, makers: group_usd_per_work_hour(_group(seed)),
        lambda seed: _group_sha256(_group(seed)),
        most=100.0,
    ),
    "rollouts": StreamKind(
        _play_rollouts,
        lambda seed, makers: _ideal_usd("solo", _modelled(seed, 10), seed, makers),
        lambda seed: _modelled(seed, 10).sha256,
    ),
    "worst cases": _together(lambda seed: _stream("production", seed, jobs=20, switches=True)),
    "lengths": _together(lambda seed: _modelled(seed, 10)),
}


def kind_named(name: str) -> StreamKind:
    """Return a kind of streams: one of `KINDS`, or that of a user's workload `module:name`, in fluid replays."""
    return KINDS[name] if name in KINDS else _fluid(name)


def own_track(name: str) -> Track:
    """Return the track of a user's workload `module:name`, which is measured beside the others and ranks nowhere."""
    return Track(name, name, "placement", (name,), 5)
