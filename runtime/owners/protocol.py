"""What follows from what the owner of a job says: facts for the scheduler, entries for the journal, and lines for the user.

`rollmux_client.Turns` has the order of calls, which is the same for all owners. Here is what each call means, whoever has made
it: a process of the job's on Ray (`runtime.owners.ray`) or a program that has attached by HTTP (`runtime.owners.http`). Nothing
here has a clock, a process or a file. Who calls it tells the scheduler what follows, by `RunState.follow`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from rollmux_client import Turns

from rollmux_env.cluster.events import Progress
from rollmux_env.scheduler import facts
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.run_state import Follows
from runtime.coordinator.slices import sides_of, slice_of
from runtime.jobside.job_log import SHOWN
from runtime.jobside.messages import Checkpoint, Done, Report
from runtime.journal.facts import Checkpointed, Fact, Iteration, PhaseSlice, SyncSlice
from runtime.machine import Node
from runtime.standstill import warnings


class Next(Enum):
    """What a job does when an iteration is over."""

    DONE = "it has done all of them, and leaves"
    OVER_BUDGET = "its budget is spent, and it ends"
    MOVE = "it goes to another place, which it has already"
    MAKE_ROOM = "it gives up its place on a drained node, and waits for another one"
    GO_ON = "it does the next one where it is"


def turns_of(handle: JobHandle, done: int) -> Turns:
    """The turns of an owner that begins after so many iterations."""
    return Turns(handle.spec.iterations, handle.spec.staleness, done)


def next_of(handle: JobHandle, spent: bool, drained: bool) -> Next:
    """What a job does between two iterations.

    Args:
        spent: so is its budget. drained: so is a node of its place, and there is no other place for it.
    """
    if handle.iteration == handle.spec.iterations:
        return Next.DONE
    if spent:
        return Next.OVER_BUDGET
    if handle.is_moving:
        return Next.MOVE
    return Next.MAKE_ROOM if drained else Next.GO_ON


def asked(
    handle: JobHandle, phase: HoldName, number: int, now_s: float, parts: tuple[Node, ...] = (), extra: bool = False
) -> Follows:
    """An owner asks for a phase.

    Args:
        number: of the iteration. parts: what the nodes of a rollout are cut into, where it can do with a part of them.
        extra: a rollout that counts no iteration.
    """
    handle.permits.ask(phase, PROFILE if phase == "init" else number, now_s)
    if phase == "rollout":
        handle.tail.cut(parts)
        if not extra:
            handle.permits.begin(number, now_s)
    return Follows((facts.Ready(handle.id, phase, parts),))


def released(handle: JobHandle, report: Report, done: PhaseSlice, cold_s: float | None = None) -> Follows:
    """A phase that an owner had is over, and its nodes are free.

    Args:
        done: what the journal is to know of it. cold_s: seconds of its cold start, where they replace those of the job's profile.
    """
    phase: HoldName = "training" if report.phase == "training" else "rollout"
    seconds, counts = report.done_s - report.run_s, not done.extra
    counted = handle.iteration != PROFILE and report.phase != "init"
    handle.give_back(phase, done.busy_s if counted else 0.0)
    device_gb = 0.0 if report.stays else report.device_gb  # who stays leaves before others need the room
    news: tuple[facts.Fact, ...] = (facts.Finished(handle.id, phase, seconds, report.cold, counts, device_gb, cold_s),)
    if handle.spec.is_asynchronous and phase == "rollout" and counts and done.iteration + 1 == handle.spec.iterations:
        news += (facts.Sampled(handle.id),)
    return Follows(news, (done,))


def released_init(handle: JobHandle, now_s: float) -> Follows:
    """A job has loaded its models and started its engines, on all of its nodes, and offloaded them."""
    hold = handle.permits.holds["init"]
    report = Report("init", False, hold.start_s, hold.start_s, now_s, cold=True)
    notes = tuple(slice_of(handle, report, now_s, side=side) for side in sides_of(handle, "init"))
    handle.give_back("init")
    handle.permits.follow(now_s)
    return Follows((facts.Finished(handle.id, "init", now_s - hold.start_s, cold=True),), notes)


def released_sync(handle: JobHandle, now_s: float, cold: bool, is_first: bool = False) -> Follows:
    """A sync that had all the nodes of its job is over.

    Args:
        is_first: it was one before the iterations, which says nothing of those that follow.
    """
    hold = handle.permits.holds["sync"]
    handle.give_back("sync")
    finished = facts.Finished(handle.id, "sync", now_s - hold.start_s, cold)
    over = synced(handle, hold.iteration, hold.start_s, now_s, (), hold.asked_s)
    return over._replace(news=(finished, *(() if is_first else over.news)))


def synced(
    handle: JobHandle, number: int, start_s: float, end_s: float, beside: tuple[str, ...], asked_s: float | None = None
) -> Follows:
    """The new weights of an iteration are where they are sampled from.

    Args:
        beside: jobs that had the rollout nodes meanwhile. asked_s: when the owner asked for all nodes of the job, if it did.
    """
    names = tuple(node.name for node in (handle.place.nodes["rollout"] if asked_s is None else handle.place.nodes_of("sync")))
    profile = handle.iteration == PROFILE or handle.is_guest or handle.is_over
    note = SyncSlice(handle.id, profile, number, names, start_s, end_s, beside, asked_s)
    return Follows((facts.Synced(handle.id, end_s - start_s),), (note,))


def iterated(handle: JobHandle, done: Done, now_s: float, asked_for: int | None) -> Follows:
    """An iteration is over and counts. Of a job that is being measured the scheduler is told nothing.

    Args:
        asked_for: iterations that it had to do when it arrived; None where it has not.
    """
    number = handle.iteration
    began_s, interrupted = handle.permits.iterate(number, now_s, handle.spec.is_asynchronous)
    if handle.counts.add(done.metrics):
        handle.ending.forgive()
    notes: tuple[Fact, ...] = (Iteration(handle.id, number, began_s, now_s, done.metrics, interrupted),)
    shown = "".join(f", {name} {done.metrics[name]:.4g}" for name in SHOWN if name in done.metrics)
    lines = [f"{handle.id}: iteration {number + 1} of {handle.spec.iterations}, {now_s - began_s:.2f} s{shown}"]
    lines += [f"{handle.id}: WARNING: {line}" for line in warnings(handle.counts.recent, handle.spec.top_p)]
    if done.checkpoint is not None:
        written = checkpointed(handle, done.checkpoint, now_s)
        notes, lines = notes + written.notes, [*written.lines, *lines]
    if handle.job is None:
        return Follows((), notes, tuple(lines))
    seconds = None if interrupted else now_s - began_s
    so_far = max(0, handle.iteration - (handle.spec.iterations - (asked_for or 0)))  # some may have been done before it arrived
    busy_s = handle.permits.busy_s
    progress = Progress(handle.id, so_far, busy_s["rollout"], busy_s["training"])
    return Follows((facts.Iterated(progress, seconds, done.movable),), notes, tuple(lines))


def checkpointed(handle: JobHandle, checkpoint: Checkpoint, now_s: float) -> Follows:
    """What a job is after some iterations is on the disk; it goes on from there after a restart."""
    lines = (f"{handle.id}: its checkpoint is written",) if handle.saved.add(checkpoint) else ()
    return Follows((), (Checkpointed(now_s, handle.id, checkpoint.iterations, checkpoint.seconds, checkpoint.gb),), lines)


def moved(handle: JobHandle) -> Follows:
    """A job that is to go to another place has left its own. Its new one says when it goes on."""
    return Follows((facts.Vacated(handle.id), facts.Resumed(handle.id)))


def continued(handle: JobHandle, rollouts: int, trainings: int, runs: Collection[HoldName] = ()) -> Follows:
    """A job whose scheduler or processes are new goes on in the middle of an iteration.

    Args:
        rollouts, trainings: that are over. runs: the phases that it has.
    """
    job_id, ahead = handle.id, rollouts - trainings
    known = [facts.Continued(job_id, phase, True) for phase in runs]
    if handle.spec.is_asynchronous and (ahead or runs):
        known = [facts.Continued(job_id, "rollout", False, ahead), *(one._replace(sampled=0) for one in known)]
    elif ahead and not runs:
        known = [facts.Continued(job_id, "rollout", False)]
    is_last = handle.spec.is_asynchronous and rollouts == handle.spec.iterations
    return Follows((*known, *([facts.Sampled(job_id)] if is_last else [])))
