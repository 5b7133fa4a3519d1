"""Arrivals of jobs, and profiling of jobs that are unknown.

A profile is an iteration like others: its phases wait for permits of a dispatcher, either of the group whose guest the job is, or
of free nodes that are lent for it. The number of jobs that are profiled together is limited by the number of nodes, or by
`_TOGETHER` if that is larger. If nodes are cores of a machine, jobs are profiled one after the other, including the start of their
processes: otherwise each would be measured while others import and load. A phase that had no core for long is measured again.

A profile is recorded as soon as it is measured. Jobs that came at one time still arrive together, when all of them are known, in
the order of their file, as in a replay. Until then none of them takes nodes or runs phases while others are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, cast

from rollmux_env.errors import InputError
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import GroupView, WaitingPhase
from runtime.coordinator import profiles
from runtime.coordinator.ends import RunEnd, rest
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiles import PhaseProfile, Profile
from runtime.coordinator.run_state import RunState
from runtime.jobside.messages import IterationResult, PhaseReport
from runtime.journal.facts import JobProfiled, PhaseSlice, SharingBound
from runtime.machine import Node, Pool, lacked_core
from runtime.machines.forecast import with_shapes

_TOGETHER = 8
_PASSES: dict[Mode, int] = {"alone": 2, "paired": 4}  # worst-case iterations of the probe; in a pair, the first rollout runs alone
Mode = Literal["alone", "paired"]


class Profiling:
    """Arrivals, profiles, and a probe of what taking turns could gain.

    Args:
        run: State of the run.
        end: Decision whether the run is over.
    """

    def __init__(self, run: RunState, end: RunEnd) -> None:
        self._run, self._end = run, end
        self._is_crowded = False  # whether too many jobs have come for profiled ones to keep their processes
        self._profiling = asyncio.Lock()  # only jobs with unknown profiles wait for it
        self._batch: list[JobHandle] = []  # jobs that are profiled together, including those that are done
        self._rounds: list[Mode] = ["alone", "paired"] if run.plan.compare and not run.plan.cluster.one_device else []
        self._probe = OverlapProbe()
        self._probe_jobs: list[JobHandle] = []
        self._timings = PhaseTimings()

    async def bring_all(self, coming: Sequence[JobHandle]) -> None:
        """Let jobs arrive at their times, and those of one time together."""
        self._end.check()
        for at_s in sorted({handle.spec.arrival_s for handle in coming}):
            await asyncio.sleep(max(0.0, at_s - self._run.log.now()))
            await self._bring([handle for handle in coming if handle.spec.arrival_s == at_s])

    async def _bring(self, handles: Sequence[JobHandle]) -> None:
        """Profile jobs that are unknown, and hand all to the policy, in order, when all are known."""
        run = self._run
        ids = [handle.id for handle in handles]
        for handle in handles:
            if self._is_unknown(handle):
                run.attempt(handle, "profile", self._look_up, handle, {})
        if any(self._is_unknown(handle) for handle in handles):
            async with self._profiling:
                await self._profile_all(ids)
        await run.written()
        for handle in [run.handles[job_id] for job_id in ids]:  # a job that was restarted meanwhile has a new handle
            run.coming -= 1
            self._hand_over(handle)
        for job_id in ids:
            if job_id in run.scheduler.state.waiting:
                rest(run, run.handles[job_id])
        self._end.check()

    def _hand_over(self, handle: JobHandle) -> None:
        """Hand a job that is known to the policy; in a run that only profiles jobs, let it end."""
        run = self._run
        if run.plan.only_profile:
            if handle.processes.controller is None:
                handle.close()
            handle.send_order(None, run.log.now())
        elif handle.job is not None and not handle.life.is_gone and not run.stopping and not self._has_arrived(handle):
            enlist(run, handle)

    def _has_arrived(self, handle: JobHandle) -> bool:
        """Return whether the policy has a job already, because its owner came before its time and it was measured."""
        return self._run.has_seat(handle) or handle.id in self._run.scheduler.state.waiting

    async def _profile_all(self, ids: Sequence[str]) -> None:
        """Profile the unknown jobs among some, a limited number at a time."""
        run, most = self._run, max(_TOGETHER, len(self._run.plan.nodes))
        self._is_crowded = len(ids) > most
        while unknown := [run.handles[job_id] for job_id in ids if self._is_unknown(run.handles[job_id])]:
            keys: dict[str, str] = {}
            for handle in unknown[:most]:
                if problem := run.capacity.problem_of_placing(handle.spec):
                    run.refuse(handle, problem)
                else:
                    run.attempt(handle, "profile", self._look_up, handle, keys)  # an equal job may have been profiled meanwhile
            if batch := [handle for handle in unknown[:most] if self._is_unknown(handle)]:
                await self._profile(batch, keys)

    def _look_up(self, handle: JobHandle, keys: dict[str, str]) -> None:
        """Take a job's profile from the cache, if it needs one and there is one.

        Args:
            handle: The job.
            keys: Keys of profiles by job, to which the job's is added.
        """
        if handle.job is not None:
            return
        if handle.spec.is_attached:
            if not handle.spec.measured_iterations:
                self._state(handle, {})
            return
        key = keys[handle.id] = profiles.profile_key(handle.spec, _node_types(self._run))
        profile = profiles.load_profile(key) if self._run.plan.cached else None
        if profile is not None:
            self._learn(handle, profile, True)

    def _state(self, handle: JobHandle, longest_s: Mapping[str, float]) -> None:
        """Make an attached job known by what it states, and what has been measured of it."""
        log = self._run.log
        job = profiles.job_as_stated(handle.spec, log.now(), longest_s)
        handle.set_job(job)
        log.write(JobProfiled(log.now(), job, not longest_s))
        if names := frozenset(name for names in handle.spec.nodes_named.values() for name in names):
            self._run.confine(handle, names)

    def _learn(self, handle: JobHandle, profile: Profile, cached: bool) -> None:
        log = self._run.log
        plan = self._run.plan
        job = with_shapes(handle.spec, profile.job(handle.spec, log.now()), plan.cluster, plan.nodes)
        handle.set_job(job)
        handle.resident_state.set_levels(profile.waits)
        without_core = tuple(pool for pool in profile.parts if pool in handle.profile.without_core)
        fact = JobProfiled(log.now(), job, cached, profile.waits, profile.provisional, without_core)
        self._run.cold_starts.profiled(fact)
        log.write(fact)
        asleep_gb = [part.device_gb for part in (profile.rollout, profile.training)]
        how = "profile from the cache" if cached else "profiled"
        log.say(
            f"{job.id}: {how}: rollout {job.rollout.worst_case_s:.2f} s, training {job.training.worst_case_s:.2f} s, "
            f"sync {job.sync_s:.3f} s, {job.rollout.host_memory_gb:.2f} and {job.training.host_memory_gb:.2f} GB"
            + (f"; asleep it keeps {asleep_gb[0]:.2f} and {asleep_gb[1]:.2f} GB of each GPU" if any(asleep_gb) else "")
        )
        if profile.provisional or without_core:
            log.say(f"{job.id}: {self._run.cold_starts.describe(job.id)}; `rollmux run --no-cache` measures it again")
        for number in range(1, 1 + len(job.shapes)):
            seconds = [f"{phase.worst_case_s:.2f} s on {phase.nodes}" for phase in job.phases(number)]
            log.say(f"{job.id}: shape {number}: rollout {seconds[0]}, training {seconds[1]}")

    def _learn_measured(self, handle: JobHandle, key: str) -> None:
        """Make a job known by its own pass, and add its profile to the cache."""
        measured = handle.profile
        profile = Profile(
            rollout=measured.measurements["rollout"],
            training=measured.measurements["training"],
            sync_s=measured.own_s + measured.sync_s,  # where in an iteration these are does not change its length
            movable=measured.movable,
            has_checkpoints=measured.has_checkpoints,
        )
        self._learn(handle, profile, False)
        profiles.note_loaded(profiles.engine_key(handle.spec, _node_types(self._run)))
        if handle.profile.without_core:
            return
        with contextlib.suppress(InputError, OSError):  # a cache that cannot be written
            profiles.save_profile(key, profile)

    def _is_unknown(self, handle: JobHandle) -> bool:
        """Return whether a job still has to be profiled."""
        if handle.spec.measured_iterations:  # the job is measured when its owner attaches
            return False
        return handle.job is None and not handle.life.is_gone and not self._run.stopping

    async def _profile(self, handles: Sequence[JobHandle], keys: dict[str, str]) -> None:
        """Let each job run a worst-case iteration, and more if bounds are requested."""
        self._batch = [*handles]
        for handle in handles:
            handle.profile.begin(1)
        on_cores = any(not node.gpus for node in self._run.plan.nodes)
        for together in [[handle] for handle in handles] if on_cores else [[*handles]]:
            await self._profile_at_once([handle for handle in together if self._is_unknown(handle)], keys)
        while pending := [h.profile.over for h in self._probe_jobs if h.profile.over is not None and not h.profile.over.done()]:
            await asyncio.wait(pending)  # a round of the probe begins when the last one ends
        if self._probe_jobs:
            self._tell_bounds()

    async def _profile_at_once(self, handles: Sequence[JobHandle], keys: dict[str, str]) -> None:
        """Let jobs whose processes may start together run their worst-case iterations."""
        for handle in handles:
            self._run.attempt(handle, "profile", self._look_for_caches, handle)
        passes = {handle: handle.profile.over for handle in handles if handle.profile.over is not None and not handle.life.is_gone}
        if not passes:
            return
        await self._run.written()
        self._run.inform_scheduler(facts.Unprofiled({handle.id: needs_of(self._run, handle) for handle in passes}))
        await asyncio.gather(*(self._learn_when_over(handle, over, keys[handle.id]) for handle, over in passes.items()))

    async def _learn_when_over(self, handle: JobHandle, over: asyncio.Future[None], key: str) -> None:
        await over
        if not handle.life.is_gone and handle.profile.measurements.keys() == {"rollout", "training"}:
            self._run.attempt(handle, "profile", self._learn_measured, handle, key)

    def _look_for_caches(self, handle: JobHandle) -> None:
        handle.profile.loads_first = not profiles.has_loaded(profiles.engine_key(handle.spec, _node_types(self._run)))

    def _tell_bounds(self) -> None:
        """Record the results of the probe."""
        log, handles, self._probe_jobs = self._run.log, self._probe_jobs, []
        bounds = self._timings.bounds([handle.id for handle in handles])
        log.write(*bounds)
        for bound in bounds:
            log.say(f"{bound.phases[0]} beside {bound.phases[1]}: {bound.gain:.2f} times as fast as one after the other")

    def add_measurement(self, handle: JobHandle, report: PhaseReport) -> None:
        """Record a completed phase of a pass."""
        hold = handle.permits.holds["training" if report.phase == "training" else "rollout"]
        if handle in self._probe_jobs:
            if hold.paired == (self._probe.mode == "paired"):
                self._timings.add(self._probe.mode, handle.id, cast("Pool", hold.pool), report.done_s - report.run_s)
            return
        handle.profile.own_s = report.own_s
        pool = cast("Pool", hold.pool)
        seconds, cold_s = report.done_s - report.run_s, report.run_s - report.begun_s
        provisional = handle.profile.loads_first or lacked_core(report.load_wait_s, cold_s)
        if handle.profile.repeats:
            if pool not in handle.profile.without_core:
                return
            former = handle.profile.measurements[pool]
            cold_s, provisional = former.cold_s, former.provisional
        if not lacked_core(report.core_wait_s, seconds):
            handle.profile.without_core.discard(pool)
        elif handle.profile.repeats:
            seconds -= min(seconds, report.core_wait_s)
        else:
            handle.profile.without_core.add(pool)
        handle.profile.measurements[pool] = PhaseProfile(
            seconds=seconds,
            warm_s=report.warm_s,
            cold_s=cold_s,
            host_gb=report.host_gb,
            device_gb=report.device_gb,
            waits=report.waits,
            provisional=provisional,
        )

    def owner_came(self, handle: JobHandle) -> None:
        """Handle the attachment of an owner: an unknown job asks for nodes for its first iterations, a known one for a place."""
        run = self._run
        if handle.spec.measured_iterations and handle.job is None and not handle.profile.asks:
            if problem := run.capacity.problem_of_placing(handle.spec):
                run.refuse(handle, problem)
                return
            handle.profile.asks = True
            names = run.scheduler.restrictions.confined.get(handle.id, frozenset())  # of its owner's host
            run.inform_scheduler(facts.Unprofiled({handle.id: needs_of(self._run, handle)}, names=names))
        if handle.place.awaits_owner:
            handle.place.set_awaits_owner(False)
            state = run.scheduler.state  # a job that runs still has what it is to give up
            if handle.job is not None and not state.is_running(handle.id) and handle.id not in state.waiting:
                enlist(run, handle)

    def iterated(self, handle: JobHandle) -> bool:
        """Handle an attached job's iteration as a guest: it remains one, or is known and arrives.

        Returns:
            Whether it has another place now.
        """
        run, longest_s = self._run, handle.profile.longest_s
        if handle.iteration < handle.spec.measured_iterations or not {"rollout", "training"} <= longest_s.keys():
            return False
        names = handle.place.names
        run.log.say(f"{handle.id}: profiled: rollout {longest_s['rollout']:.2f} s, training {longest_s['training']:.2f} s")
        self._state(handle, longest_s)
        handle.counts.begin_place()
        handle.permits.reset_busy()
        if not handle.spec.movable:
            run.confine(handle, names)
        handle.leave_place()
        if handle.job is not None and (problem := run.capacity.too_large(handle.job)):
            run.inform_scheduler(facts.Profiled(handle.id))
            run.refuse(handle, problem)
            return False
        run.inform_scheduler(facts.Profiled(handle.id), *arrival(run, handle))
        return run.has_seat(handle) and names != handle.place.names

    def passed(self, handle: JobHandle, done: IterationResult) -> bool:
        """Handle a completed pass of a job, and return whether its processes must end because there are too many."""
        profile = handle.profile
        profile.movable, profile.has_checkpoints = done.movable, done.has_checkpoints
        handle.processes.set_state_kept(done.is_state_kept)
        handle.permits.forget_ready_rollouts()
        if profile.count() or self._repeats(handle):
            profile.passes = max(1, profile.passes)
            self._run.decisions.order(handle)
            return False
        profile.end()
        more = self._next_round()
        handle.leave_place()
        self._run.inform_scheduler(facts.Profiled(handle.id), *more)
        return self._is_crowded

    def _repeats(self, handle: JobHandle) -> bool:
        """Return whether a job makes another pass, because a phase had no core in the last one."""
        if handle.profile.repeats or not handle.profile.without_core:
            return False
        handle.profile.repeats = True
        self._run.log.say(
            f"{handle.id}: its {' and '.join(sorted(handle.profile.without_core))} had no core for long: measured once more"
        )
        return True

    def cold_start(self, handle: JobHandle, part: PhaseSlice) -> float | None:
        """Return the seconds of an observed cold start if they replace those of the job's profile, else None."""
        cold_s = self._run.cold_starts.observed(part, handle.spec)
        if cold_s is not None:
            with contextlib.suppress(InputError, OSError):  # files of the job's that are gone, a cache that cannot be written
                key = profiles.profile_key(handle.spec, _node_types(self._run))
                profile = profiles.load_profile(key)
                if profile is not None and part.phase in profile.provisional:
                    profiles.save_profile(key, profile.with_cold_start(part.phase, cold_s))
        return cold_s

    def _next_round(self) -> list[facts.Fact]:
        """Return the facts that follow when a job has completed its passes: the last job of a batch may begin a round of the probe.

        The probe uses two of the jobs, on the lent nodes where they are.
        """
        if not self._rounds or self._run.scheduler.guests.lent is None:
            return []
        if any(other.profile.passes and other.life.is_alive for other in self._batch):
            return []
        profiled = [one for one in self._batch if one.profile.measurements.keys() == {"rollout", "training"} and one.life.is_alive]
        if len(profiled) < 2:
            self._rounds = [] if self._probe_jobs else self._rounds
            return []
        self._batch = self._probe_jobs = profiled[:2]
        self._probe.mode = self._rounds.pop(0)
        for one in self._probe_jobs:
            one.profile.begin(_PASSES[self._probe.mode])
        return [facts.Unprofiled({one.id: needs_of(self._run, one) for one in self._probe_jobs}, self._probe)]


def arrival(run: RunState, handle: JobHandle, again: bool = False) -> tuple[facts.Fact, ...]:
    """Return the facts of the arrival of a known job that wants a place for its remaining iterations.

    At least one iteration counts as remaining, since the owner may go back.

    Args:
        run: State of the run.
        handle: The job.
        again: Whether it had to give up its last place.
    """
    assert handle.job is not None
    changes = {"arrival_s": run.log.now(), "iterations": max(1, handle.spec.iterations - handle.counts.begins)}
    stays = (
        handle.processes.is_state_kept
        and handle.processes.controller is not None
        and handle.life.is_alive
        and not handle.life.is_resting
    )
    handle.arrive()
    alive = handle.place.names if stays else frozenset()
    phases = handle.spec.estimated_phases
    shapes = (facts.Estimated(handle.id, phases),) if phases else ()
    return (*shapes, facts.Queued(handle.job.model_copy(update=changes), again, alive))


def enlist(run: RunState, handle: JobHandle) -> None:
    """Hand a job to the policy, or refuse it if it can never be placed."""
    if handle.job is not None and (problem := run.capacity.problem_of_placing(handle.spec) or run.capacity.too_large(handle.job)):
        run.refuse(handle, problem)
    else:
        run.inform_scheduler(*arrival(run, handle))


def _node_types(run: RunState) -> list[Node]:
    """Return one node of each pool."""
    return [next(node for node in run.plan.nodes if node.pool == pool) for pool in run.plan.cluster.sides]


def needs_of(run: RunState, handle: JobHandle) -> dict[Pool, int]:
    """Return the number of nodes that a job asks for, by pool."""
    sides = run.plan.cluster.sides
    return {side: nodes if side in sides else 0 for side, nodes in handle.spec.nodes_in(0).items()}


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
