"""Consequences of what an owner reports: facts for the scheduler, entries for the journal, and lines for the user.

`rollmux_protocol.Turns` defines the order of calls, which is the same for all owners. This module defines the meaning of each call,
for the processes of a job on Ray (`runtime.owners.ray`) and for programs that attach over HTTP (`runtime.owners.http`). Nothing
here uses a clock, a process or a file. The caller passes the consequences to `RunLoop.apply`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from rollmux_protocol import Turns

from rollmux_env.cluster.events import JobProgress
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import left, make_room, park
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.run_state import RunState
from runtime.coordinator.slices import sides_of, slice_of
from runtime.jobside.job_log import SHOWN
from runtime.jobside.messages import Checkpoint, IterationResult, PhaseReport
from runtime.journal.facts import Fact, IterationSlice, JobCheckpointed, PhaseSlice, SyncSlice
from runtime.machine import Node
from runtime.standstill import warnings


class NextStep(Enum):
    """Action of a job at the end of an iteration."""

    DONE = "all iterations are done, and the job leaves"
    OVER_BUDGET = "the budget is spent, and the job ends"
    MOVE = "the job moves to another placement, which is already assigned"
    PARK = "the job leaves its placement to another one, and waits"
    MAKE_ROOM = "the job vacates a drained node, and waits for another placement"
    GO_ON = "the job runs the next iteration where it is"


def turns_of(handle: JobHandle, done: int) -> Turns:
    """Return a fresh turn counter for an owner whose job has completed `done` iterations."""
    return Turns(handle.spec.iterations, handle.spec.staleness, done)


def next_step_of(handle: JobHandle, spent: bool, drained: bool) -> NextStep:
    """Return the action of a job between two iterations.

    Args:
        handle: The job.
        spent: Whether the job's budget is spent.
        drained: Whether one of the job's nodes is drained and no other placement is available.
    """
    if handle.iteration == handle.spec.iterations:
        return NextStep.DONE
    if spent:
        return NextStep.OVER_BUDGET
    if handle.life.is_moving:
        return NextStep.MOVE
    if handle.life.is_yielding:
        return NextStep.PARK
    return NextStep.MAKE_ROOM if drained else NextStep.GO_ON


def carried_out(run: RunState, handle: JobHandle, what: NextStep, now_s: float) -> Consequences:
    """Let a job that is between two iterations end, move, be parked, vacate its nodes or continue.

    A transport first prepares its owner: it has the job's processes write a checkpoint, or ends a lease.

    Args:
        run: State of the run.
        handle: The job.
        what: Action to take, as returned by `next_step_of`.
        now_s: Present time, in seconds of the run.
    """
    match what:
        case NextStep.DONE | NextStep.OVER_BUDGET:
            return left(handle, what is NextStep.OVER_BUDGET)
        case NextStep.MOVE:
            return moved(handle)
        case NextStep.PARK:
            return park(run, handle)
        case NextStep.MAKE_ROOM:
            return make_room(handle)
        case NextStep.GO_ON:
            return run.order(handle, now_s)


def left_before_start(run: RunState, handle: JobHandle, now_s: float) -> Consequences:
    """Let a job leave a drained node before its processes are started there. The owner of an attached job is told when it asks.

    Args:
        run: State of the run.
        handle: The job.
        now_s: Present time, in seconds of the run.
    """
    if handle.spec.is_attached or not (handle.is_at_rest and run.has_seat(handle)):
        return Consequences()
    what = next_step_of(handle, False, run.scheduler.must_vacate(handle.id))
    return carried_out(run, handle, what, now_s) if what in (NextStep.MOVE, NextStep.MAKE_ROOM) else Consequences()


def asked(
    handle: JobHandle, phase: HoldName, number: int, now_s: float, parts: tuple[Node, ...] = (), extra: bool = False
) -> Consequences:
    """Record that an owner asks for a phase.

    Args:
        handle: The job of the owner.
        phase: Phase, `init` or `sync` that is asked for.
        number: Number of the iteration that the phase belongs to; ignored for an `init`.
        now_s: Time of the request, in seconds of the run's clock.
        parts: Parts into which the nodes of a rollout are divided if it can run on some of them, else empty.
        extra: Whether the phase is a rollout that counts for no iteration.
    """
    handle.permits.request(phase, PROFILE if phase == "init" else number, now_s)
    if phase == "rollout":
        handle.rollout_progress.set_parts(parts)
        if not extra:
            handle.permits.record_ready_rollout(number, now_s)
    return Consequences((facts.Ready(handle.id, phase, parts),))


def released(handle: JobHandle, report: PhaseReport, done: PhaseSlice, cold_s: float | None = None) -> Consequences:
    """Record that a rollout or a training is over and its nodes are free.

    Args:
        handle: The job.
        report: Times and memory of the phase, as reported by the owner.
        done: Journal entry of the phase.
        cold_s: Seconds of a cold start that replace those of the job's profile, or None to keep them.
    """
    phase: HoldName = "training" if report.phase == "training" else "rollout"
    seconds, counts = report.done_s - report.run_s, not done.extra
    counted = handle.iteration != PROFILE and report.phase != "init"
    handle.give_back(phase, done.busy_s if counted else 0.0)
    device_gb = 0.0 if report.stays else report.device_gb  # state that stays is offloaded before others need the memory
    reports: tuple[facts.Fact, ...] = (facts.Finished(handle.id, phase, seconds, report.cold, counts, device_gb, cold_s),)
    if handle.spec.is_asynchronous and phase == "rollout" and counts and done.iteration + 1 == handle.spec.iterations:
        reports += (facts.Sampled(handle.id),)
    return Consequences(reports, (done,))


def released_init(handle: JobHandle, now_s: float) -> Consequences:
    """Record that a job has loaded its models, started its engines on all of its nodes, and offloaded them."""
    hold = handle.permits.holds["init"]
    report = PhaseReport("init", False, hold.start_s, hold.start_s, now_s, cold=True)
    notes = tuple(slice_of(handle, report, now_s, side=side) for side in sides_of(handle, "init"))
    handle.give_back("init")
    handle.permits.set_iteration_from(now_s)
    return Consequences((facts.Finished(handle.id, "init", now_s - hold.start_s, cold=True),), notes)


def released_sync(handle: JobHandle, now_s: float, cold: bool, is_first: bool = False) -> Consequences:
    """Record the end of a sync that held all nodes of its job.

    Args:
        handle: The job.
        now_s: Time at which the sync ended, in seconds of the run's clock.
        cold: Whether it was the owner's first sync.
        is_first: Whether the sync came before the first iteration. Its duration says nothing about later syncs.
    """
    hold = handle.permits.holds["sync"]
    handle.give_back("sync")
    finished = facts.Finished(handle.id, "sync", now_s - hold.start_s, cold)
    over = synced(handle, hold.iteration, hold.start_s, now_s, (), hold.asked_s)
    return over._replace(reports=(finished, *(() if is_first else over.reports)))


def synced(
    handle: JobHandle, number: int, start_s: float, end_s: float, sharing_jobs: tuple[str, ...], asked_s: float | None = None
) -> Consequences:
    """Record that the new weights of an iteration are on the rollout nodes.

    Args:
        handle: The job.
        number: Number of the iteration.
        start_s: Start of the sync, in seconds of the run's clock.
        end_s: End of the sync, in seconds of the run's clock.
        sharing_jobs: Ids of the jobs that used the rollout nodes during the sync.
        asked_s: Time at which the owner asked for all nodes of the job, or None if it did not ask.
    """
    names = tuple(node.name for node in (handle.place.nodes["rollout"] if asked_s is None else handle.place.nodes_of("sync")))
    profile = handle.iteration == PROFILE or handle.is_guest or handle.is_over
    note = SyncSlice(handle.id, profile, number, names, start_s, end_s, sharing_jobs, asked_s)
    return Consequences((facts.Synced(handle.id, end_s - start_s),), (note,))


def iterated(handle: JobHandle, done: IterationResult, now_s: float, asked_for: int | None) -> Consequences:
    """Record that an iteration is over and counts. The scheduler is not informed if the job is still being profiled.

    Args:
        handle: The job.
        done: Metrics of the iteration, and its checkpoint if one was written.
        now_s: End of the iteration, in seconds of the run's clock.
        asked_for: Number of iterations that were left when the job arrived at the scheduler, or None if it has not arrived.
    """
    number = handle.iteration
    began_s, interrupted = handle.permits.end_iteration(number, now_s, handle.spec.is_asynchronous)
    if handle.counts.add(done.metrics):
        handle.ending.reset_deaths()
    notes: tuple[Fact, ...] = (IterationSlice(handle.id, number, began_s, now_s, done.metrics, interrupted),)
    shown = "".join(f", {name} {done.metrics[name]:.4g}" for name in SHOWN if name in done.metrics)
    lines = [f"{handle.id}: iteration {number + 1} of {handle.spec.iterations}, {now_s - began_s:.2f} s{shown}"]
    lines += [f"{handle.id}: WARNING: {line}" for line in warnings(handle.counts.recent, handle.spec.top_p)]
    if done.checkpoint is not None:
        written = checkpointed(handle, done.checkpoint, now_s)
        notes, lines = notes + written.entries, [*written.lines, *lines]
    if handle.job is None:
        return Consequences((), notes, tuple(lines))
    seconds = None if interrupted else now_s - began_s
    so_far = max(0, handle.iteration - (handle.spec.iterations - (asked_for or 0)))  # without those before its arrival
    busy_s = handle.permits.busy_s
    progress = JobProgress(handle.id, so_far, busy_s["rollout"], busy_s["training"])
    return Consequences((facts.Iterated(progress, seconds, done.movable),), notes, tuple(lines))


def checkpointed(handle: JobHandle, checkpoint: Checkpoint, now_s: float) -> Consequences:
    """Record a checkpoint that is on disk. After a restart the job continues from it."""
    lines = (f"{handle.id}: its checkpoint is written",) if handle.checkpoints.add(checkpoint) else ()
    return Consequences((), (JobCheckpointed(now_s, handle.id, checkpoint.iterations, checkpoint.seconds, checkpoint.gb),), lines)


def moved(handle: JobHandle) -> Consequences:
    """Report that a moving job has left its old nodes and may resume at its new placement."""
    return Consequences((facts.Vacated(handle.id), facts.PauseEnded(handle.id)))


def continued(handle: JobHandle, rollouts: int, trainings: int, runs: Collection[HoldName] = ()) -> Consequences:
    """Record how far a job is within an iteration, for a scheduler or processes that were restarted.

    Args:
        handle: The job.
        rollouts: Number of rollouts that are over.
        trainings: Number of trainings that are over.
        runs: Phases for which the job holds nodes.
    """
    job_id, ahead = handle.id, rollouts - trainings
    known = [facts.Continued(job_id, phase, True) for phase in runs]
    if handle.spec.is_asynchronous and (ahead or runs):
        known = [facts.Continued(job_id, "rollout", False, ahead), *(one._replace(sampled=0) for one in known)]
    elif ahead and not runs:
        known = [facts.Continued(job_id, "rollout", False)]
    is_last = handle.spec.is_asynchronous and rollouts == handle.spec.iterations
    return Consequences((*known, *([facts.Sampled(job_id)] if is_last else [])))
