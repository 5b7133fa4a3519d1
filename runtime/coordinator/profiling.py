"""Profiles of jobs, and their requests for places, as transitions.

A profile is an iteration like others: its phases wait for permits of a dispatcher, either of the group whose guest the job is, or
of free nodes that are lent for it. A phase that had no core for long is measured again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal, cast

from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import GroupView, WaitingPhase
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import refused
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiles import Profile, job_as_stated
from runtime.coordinator.run_state import RunState
from runtime.jobside.messages import IterationResult, PhaseReport
from runtime.journal.facts import JobProfiled, SharingBound
from runtime.machine import Pool
from runtime.machines.forecast import with_shapes

_PASSES: dict[Mode, int] = {"alone": 2, "paired": 4}  # worst-case iterations of the probe; in a pair, the first rollout runs alone
Mode = Literal["alone", "paired"]


class Profiling:
    """Profiles of jobs, and a probe of what taking turns could gain.

    Args:
        run: State of the run.

    Attributes:
        is_crowded: Whether too many jobs have come for profiled ones to keep their processes.
        probe_jobs: Jobs whose phases the probe measures.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.is_crowded = False
        self.probe_jobs: list[JobHandle] = []
        self._batch: list[JobHandle] = []  # jobs that are profiled together, including those that are done
        self._rounds: list[Mode] = ["alone", "paired"] if run.plan.compare and not run.plan.cluster.one_device else []
        self._probe = OverlapProbe()
        self._timings = PhaseTimings()

    def begin(self, handles: Sequence[JobHandle]) -> None:
        """Begin to profile jobs together."""
        self._batch = [*handles]
        for handle in handles:
            handle.profile.begin(1)

    def bounds(self) -> Consequences:
        """Record the results of the probe, which is over."""
        handles, self.probe_jobs = self.probe_jobs, []
        bounds = self._timings.bounds([handle.id for handle in handles])
        return Consequences(
            entries=(*bounds,),
            lines=tuple(
                f"{a} beside {b}: {one.gain:.2f} times as fast as one after the other" for one in bounds for a, b in [one.phases]
            ),
        )

    def add_measurement(self, handle: JobHandle, report: PhaseReport) -> None:
        """Record a completed phase of a pass."""
        hold = handle.permits.holds["training" if report.phase == "training" else "rollout"]
        if handle in self.probe_jobs:
            if hold.paired == (self._probe.mode == "paired"):
                self._timings.add(self._probe.mode, handle.id, cast("Pool", hold.pool), report.done_s - report.run_s)
            return
        handle.profile.measure(cast("Pool", hold.pool), report)

    def passed(self, handle: JobHandle, done: IterationResult, now_s: float) -> tuple[Consequences, bool]:
        """Record a completed pass of a job.

        Returns:
            What follows, and whether the job's processes must then end because there are too many.
        """
        profile = handle.profile
        profile.record_pass(done)
        handle.processes.set_state_kept(done.is_state_kept)
        handle.permits.forget_ready_rollouts()
        if profile.count():
            return self._run.order(handle, now_s), False
        if profile.repeat():
            line = f"{handle.id}: its {' and '.join(sorted(profile.without_core))} had no core for long: measured once more"
            return Consequences(lines=(line,)).then(self._run.order(handle, now_s)), False
        profile.end()
        rounds = self._next_round()
        handle.leave_place()
        return Consequences((facts.Profiled(handle.id), *rounds)), self.is_crowded

    def _next_round(self) -> list[facts.Fact]:
        """Return the facts that follow when a job has completed its passes: the last job of a batch may begin a round of the probe.

        The probe uses two of the jobs, on the lent nodes where they are.
        """
        if not self._rounds or self._run.scheduler.guests.lent is None:
            return []
        if any(other.profile.passes and other.life.is_alive for other in self._batch):
            return []
        profiled = [one for one in self._batch if one.profile.result() is not None and one.life.is_alive]
        if len(profiled) < 2:
            self._rounds = [] if self.probe_jobs else self._rounds
            return []
        self._batch = self.probe_jobs = profiled[:2]
        self._probe.mode = self._rounds.pop(0)
        for one in self.probe_jobs:
            one.profile.begin(_PASSES[self._probe.mode])
        return [request_of(self._run, self.probe_jobs)._replace(rule=self._probe)]

    def iterated(self, handle: JobHandle, clock: Callable[[], float]) -> Iterator[Consequences]:
        """Handle an attached job's iteration as a guest: it remains one, or is known and arrives.

        Args:
            handle: The job.
            clock: Function that returns the present time, in seconds of the run. Each instant has its own.

        Yields:
            What follows, for each instant.
        """
        run, longest_s = self._run, handle.profile.longest_s
        if handle.iteration < handle.spec.measured_iterations or not {"rollout", "training"} <= longest_s.keys():
            return
        names = handle.place.names
        line = f"{handle.id}: profiled: rollout {longest_s['rollout']:.2f} s, training {longest_s['training']:.2f} s"
        yield Consequences(lines=(line,)).then(stated(run, handle, longest_s, clock()))
        handle.counts.begin_place()
        if not handle.spec.movable:
            yield confined(run, handle, names)
        handle.leave_place()
        if handle.job is not None and (problem := run.capacity.too_large(handle.job)):
            yield Consequences((facts.Profiled(handle.id),))
            yield refused(handle, clock(), problem)
        else:
            yield Consequences((facts.Profiled(handle.id), *arrival(run, handle, clock())))

    def owner_came(self, handle: JobHandle, now_s: float) -> Consequences:
        """Handle the attachment of an owner: an unknown job asks for nodes for its first iterations, a known one for a place."""
        run = self._run
        if handle.spec.measured_iterations and handle.job is None and not handle.profile.asks:
            if problem := run.capacity.problem_of_placing(handle.spec):
                return refused(handle, now_s, problem)
            handle.profile.ask()
            handle.place.set_awaits_owner(False)
            names = run.scheduler.restrictions.confined.get(handle.id, frozenset())  # of its owner's host
            return Consequences((request_of(run, [handle])._replace(names=names, heeds_quotas=True),))
        if handle.place.awaits_owner:
            handle.place.set_awaits_owner(False)
            state = run.scheduler.state  # a job that runs still has what it is to give up
            if handle.job is not None and not state.is_running(handle.id) and handle.id not in state.waiting:
                return enlisted(run, handle, now_s)
        return Consequences()


def stated(run: RunState, handle: JobHandle, longest_s: Mapping[str, float], now_s: float) -> Consequences:
    """Make an attached job known by what it states, and what has been measured of it."""
    job = job_as_stated(handle.spec, now_s, longest_s)
    handle.set_job(job)
    known = Consequences(entries=(JobProfiled(now_s, job, not longest_s),))
    names = frozenset(name for names in handle.spec.nodes_named.values() for name in names)
    return known.then(confined(run, handle, names)) if names else known


def learned(run: RunState, handle: JobHandle, profile: Profile, cached: bool, now_s: float) -> Consequences:
    """Make a job known by a profile.

    Args:
        run: State of the run.
        handle: The job.
        profile: The profile.
        cached: Whether it is from the cache.
        now_s: Present time, in seconds of the run.
    """
    job = with_shapes(handle.spec, profile.job(handle.spec, now_s), run.plan.cluster, run.plan.nodes)
    handle.set_job(job)
    handle.resident_state.set_levels(profile.waits)
    without_core = tuple(pool for pool in profile.parts if pool in handle.profile.without_core)
    fact = JobProfiled(now_s, job, cached, profile.waits, profile.provisional, without_core)
    run.cold_starts.profiled(fact)
    asleep_gb = [part.device_gb for part in (profile.rollout, profile.training)]
    how = "profile from the cache" if cached else "profiled"
    lines = [
        f"{job.id}: {how}: rollout {job.rollout.worst_case_s:.2f} s, training {job.training.worst_case_s:.2f} s, "
        f"sync {job.sync_s:.3f} s, {job.rollout.host_memory_gb:.2f} and {job.training.host_memory_gb:.2f} GB"
        + (f"; asleep it keeps {asleep_gb[0]:.2f} and {asleep_gb[1]:.2f} GB of each GPU" if any(asleep_gb) else "")
    ]
    if profile.provisional or without_core:
        lines.append(f"{job.id}: {run.cold_starts.describe(job.id)}; `rollmux run --no-cache` measures it again")
    for number in range(1, 1 + len(job.shapes)):
        seconds = [f"{phase.worst_case_s:.2f} s on {phase.nodes}" for phase in job.phases(number)]
        lines.append(f"{job.id}: shape {number}: rollout {seconds[0]}, training {seconds[1]}")
    return Consequences(entries=(fact,), lines=tuple(lines))


def needs_of(run: RunState, handle: JobHandle) -> dict[Pool, int]:
    """Return the number of nodes that a job asks for, by pool."""
    sides = run.plan.cluster.sides
    return {side: nodes if side in sides else 0 for side, nodes in handle.spec.nodes_in(0).items()}


def confined(run: RunState, handle: JobHandle, names: frozenset[str]) -> Consequences:
    """Restrict a job to some nodes from now on. The job waits for a place, or is about to."""
    changes = run.scheduler.restrictions.confined.get(handle.id) != names
    return Consequences((facts.Confined(handle.id, names),) if changes else ())


def arrival(run: RunState, handle: JobHandle, now_s: float, again: bool = False) -> tuple[facts.Fact, ...]:
    """Return the facts of the arrival of a known job that wants a place for its remaining iterations.

    At least one iteration counts as remaining, since the owner may go back, and of its estimate too. Node-seconds count from
    the arrival on.

    Args:
        run: State of the run.
        handle: The job.
        now_s: Present time, in seconds of the run.
        again: Whether it had to give up its last place.
    """
    assert handle.job is not None
    begins, estimate = handle.counts.begins, handle.spec.estimate
    left = None if estimate is None else estimate.after(begins)
    changes = {"arrival_s": now_s, "iterations": max(1, handle.spec.iterations - begins), "estimate": left}
    stays = (
        handle.processes.is_state_kept
        and handle.processes.controller is not None
        and handle.life.is_alive
        and not handle.life.is_resting
    )
    handle.arrive()
    handle.permits.reset_busy()
    alive = handle.place.names if stays else frozenset()
    phases = handle.spec.estimated_phases
    shapes = (facts.Estimated(handle.id, phases),) if phases else ()
    return (*shapes, facts.Queued(handle.job.model_copy(update=changes), again, alive))


def enlisted(run: RunState, handle: JobHandle, now_s: float) -> Consequences:
    """Hand a job to the policy, or refuse it if it can never be placed."""
    if handle.job is not None and (problem := run.capacity.problem_of_placing(handle.spec) or run.capacity.too_large(handle.job)):
        return refused(handle, now_s, problem)
    return Consequences(arrival(run, handle, now_s))


def request_of(run: RunState, handles: Sequence[JobHandle]) -> facts.Unprofiled:
    """Return the request of jobs for nodes on which they are profiled."""
    needs = {handle.id: needs_of(run, handle) for handle in handles}
    return facts.Unprofiled(needs, users={handle.id: handle.spec.user for handle in handles})


class OverlapProbe:
    """A dispatch policy for two members that measures their phases alone and in pairs.

    Attributes:
        mode: `alone` for one phase at a time, `paired` for two phases of different members on different pools that begin together.
    """

    def __init__(self) -> None:
        self.mode: Mode = "alone"
        self._second: WaitingPhase | None = None

    def choose(self, group: GroupView) -> WaitingPhase | None:
        """Return the next phase, or the second one of a pair, or None."""
        if self._second is not None:
            second, self._second = self._second, None
            return second
        if group.busy:
            return None
        first = group.waiting[0]
        if self.mode == "alone" or len(group.members) < 2:
            return first
        if len(group.waiting) < len(group.members):
            return None  # wait until the other member is ready too
        other = next((request for request in group.waiting if not request.nodes & first.nodes), None)
        self._second = other
        return first


class PhaseTimings:
    """Seconds of phases, by mode, job and pool."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Mode, str, Pool], list[float]] = defaultdict(list)

    def add(self, mode: Mode, job_id: str, pool: Pool, seconds: float) -> None:
        """Record the seconds of a phase."""
        self._seconds[mode, job_id, pool].append(seconds)

    def bounds(self, job_ids: Sequence[str]) -> list[SharingBound]:
        """Return a bound for each pairing of a rollout with the training of the other job."""
        bounds = []
        for a, b in (job_ids, job_ids[::-1]):
            keys: tuple[tuple[str, Pool], tuple[str, Pool]] = ((a, "rollout"), (b, "training"))
            alone, paired = ([self._seconds[mode, *key] for key in keys] for mode in ("alone", "paired"))
            if all((*alone, *paired)):
                names = f"{a} rollout", f"{b} training"
                bounds.append(SharingBound(names, (fmean(alone[0]), fmean(alone[1])), (fmean(paired[0]), fmean(paired[1]))))
        return bounds
