"""What the processes of jobs ask of the coordinator, and tell it; how their orders end: the job goes on, leaves, or is done."""

from __future__ import annotations

import contextlib
from typing import Any

from rollmux_env.scheduler import facts
from runtime.coordinator.ends import rest
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.job_state import JobState
from runtime.coordinator.lifecycle import JobLifecycle
from runtime.coordinator.profiling import Profiling
from runtime.coordinator.run_state import Follows, RunState
from runtime.coordinator.slices import slice_of
from runtime.coordinator.solo import SoloIterations
from runtime.jobside.messages import Checkpoint, Done, End, Order, Report, Stopped
from runtime.journal.facts import Absent, Offloaded
from runtime.journal.write import Unwritable
from runtime.machine import Node, Pool, boot_id
from runtime.machines.forecast import free_bytes, wait_for_room
from runtime.owners import protocol
from runtime.owners.boundary import carry_out
from runtime.owners.protocol import Next
from runtime.phases import Paused


class JobCalls:
    """Answers jobs. Every method but `ask` is one that a job's processes call by `ask`, with the job first.

    Args:
        run: whose jobs they are. lifecycle, profiling, solo: of it.
    """

    def __init__(self, run: RunState, lifecycle: JobLifecycle, profiling: Profiling, solo: SoloIterations) -> None:
        self._run = run
        self._lifecycle = lifecycle
        self._profiling = profiling
        self._solo = solo

    async def ask(self, method: str, job_id: str, *arguments: Any) -> Any:
        """A process of a job calls a method."""
        return await getattr(self, method)(self._run.handles[job_id], *arguments)

    async def clock(self, handle: JobHandle) -> tuple[str, float]:
        """Which machine's clock this is, and its reading at time 0."""
        return boot_id(), self._run.log.zero_s

    async def now(self, handle: JobHandle) -> float:
        """The time, seconds."""
        return self._run.log.now()

    async def started_worker(self, handle: JobHandle, worker: Any) -> None:
        """A job has one more process."""
        handle.actors.add(worker)

    async def has_process(self, handle: JobHandle, machine: str, pid: int, start: int) -> None:
        """Note a process of a job, as `Actors.processes` has it."""
        handle.actors.note_process(machine, pid, start)

    async def order(self, handle: JobHandle, done: Done | None) -> Order | None:
        """The last order has been carried out, if there was one; answer with the next one, or None: the job is done."""
        handle.permits.work(None)
        handle.actors.come()
        await self._run.written()
        if done is not None and self._run.present(handle):
            self._completed(handle, done)
        if self._run.stopping or handle.state is JobState.RESTING:
            raise Stopped("stops with the run" if self._run.stopping else "waits for nodes")
        order = await handle.actors.next_order()
        await self._run.written()
        if self._run.stopping and order is not None:
            raise Stopped("stops with the run")
        return order

    async def acquire(
        self, handle: JobHandle, pool: Pool, parts: tuple[Node, ...] = (), iteration: int | None = None
    ) -> tuple[Pool, ...]:
        """Wait for the permit of a phase.

        Args:
            parts: of a rollout: what its nodes are cut into, if it can do with a part of them.
            iteration: that the phase belongs to, where it is not the one in hand.

        Returns:
            Nothing: it has the permit. Else the pools on whose nodes its state is to leave the devices before it waits on.

        Raises:
            Stopped: the run stops. Paused: the job's rollouts wait.
        """
        run = self._run
        handle.permits.work(None)
        await run.written()
        if run.stopping:
            raise Stopped("stops with the run")
        if pool == "rollout" and handle.permits.pauses:
            raise Paused
        number = handle.iteration if iteration is None else iteration
        asked_before = pool in handle.permits.asks or pool in handle.permits.holds  # and waited for something else since
        handle.permits.wait_for(pool)
        if not asked_before:
            follows = protocol.asked(handle, pool, number, run.log.now(), parts)
            if run.present(handle):
                run.follow(follows)
        elif pool in handle.permits.holds:
            run.decisions.admit(handle, pool)
        return await self.permit(handle, pool)

    async def permit(self, handle: JobHandle, pool: Pool) -> tuple[Pool, ...]:
        """Wait on, as `acquire` does."""
        leaving = self._run.decisions.residents.leaving(handle) or await handle.permits.waits[pool]
        await self._run.written()
        return leaving

    async def pause(self, handle: JobHandle, pauses: bool) -> None:
        """Whether no further rollout of a job is to begin; one that waits for its permit does not wait on then."""
        if pauses:
            handle.permits.pause(Paused())
        else:
            handle.permits.unpause()

    async def continued(self, handle: JobHandle, sampled: int) -> None:
        """A job that was made anew, or has been away, has run so many rollouts that it has not trained on yet."""
        run = self._run
        await run.written()
        if not run.present(handle) or run.stopping:
            return
        run.follow(protocol.continued(handle, handle.iteration + sampled, handle.iteration))

    async def may_stay(self, handle: JobHandle, pool: Pool) -> bool:
        """Whether the state of a phase that is over may stay on its devices."""
        run = self._run
        return not run.stopping and run.present(handle) and run.decisions.residents.may_stay(handle, pool)

    async def offloaded(
        self, handle: JobHandle, pool: Pool, seconds: float, host_gb: float, device_gb: float, taken_gb: float = 0.0
    ) -> None:
        """State that had stayed has left its devices."""
        run = self._run
        await run.written()
        nodes = tuple(node.name for node in handle.place.nodes[pool])
        run.log.write(Offloaded(run.log.now(), handle.id, pool, nodes, seconds, host_gb, device_gb))
        run.decisions.residents.saw(handle, pool, device_gb, taken_gb)
        run.decisions.went(handle, pool)

    async def release(self, handle: JobHandle, report: Report) -> tuple[Pool, ...]:
        """A phase is over. Returns the pools on whose nodes the job's state is to leave the devices."""
        run = self._run
        await run.written()
        phase: Pool = "training" if report.phase == "training" else "rollout"
        if phase not in handle.permits.holds:
            return ()  # the job has failed meanwhile
        now_s = run.log.now()
        handle.permits.work(now_s)
        if report.keeps:
            run.log.write(slice_of(handle, report, now_s))
            handle.permits.repeat(phase, now_s)
            return ()
        if handle.iteration == PROFILE:
            self._profiling.add_measurement(handle, report)
        spans = run.scheduler.members.spans(handle.id, now_s) if report.phase == "rollout" else ()
        done = slice_of(handle, report, now_s, spans, extra=report.phase == "init")
        follows = protocol.released(handle, report, done, self._profiling.cold_start(handle, done))
        run.decisions.residents.saw(handle, phase, report.device_gb, report.taken_gb)
        if report.stays:
            run.decisions.residents.stays(handle, phase, report.host_gb, report.device_gb)
        else:
            run.decisions.went(handle, phase)
        run.follow(follows)
        return run.decisions.residents.leaving(handle)

    async def synced(self, handle: JobHandle, start_s: float, end_s: float) -> tuple[Pool, ...]:
        """A sync is over. Returns as `release`."""
        run = self._run
        await run.written()
        if handle.iteration == PROFILE and handle.job is None:
            handle.profile.synced(end_s - start_s)
        follows = protocol.synced(handle, handle.iteration, start_s, end_s, run.capacity.beside(handle))
        run.tell(*(follows.news if run.present(handle) else ()), notes=follows.notes)
        return run.decisions.residents.leaving(handle)

    async def progress(self, handle: JobHandle, done: int, total: int, tokens: int, who: str) -> None:
        """How far the phase in hand is.

        Args:
            done: responses that are finished, of those that `who` counts. total: all of the phase.
        """
        run = self._run
        responses, total = handle.tail.count(who, done, total, tokens)
        if handle.tail.is_woken:
            handle.changed.ring()
        migration = run.scheduler.members.migration
        if run.log.problem is not None:
            return  # there will be another report
        if migration is None or "rollout" not in handle.permits.holds or handle.tail.past_threshold or not run.present(handle):
            return
        if migration.at * total <= responses < total:
            handle.tail.pass_threshold()
            run.tell(facts.Threshold(handle.id))

    async def warned(self, handle: JobHandle, text: str) -> None:
        """A process of a job has something to tell the user; each text once."""
        if handle.actors.warn(text):
            self._run.log.say(f"{handle.id}: WARNING: {text}")

    async def changes(self, handle: JobHandle) -> bool:
        """Wait until a job's rollout is to use other parts of its nodes than it knows of, or as many responses have finished as it
        stops for; False: it is over, or nothing of that ever is."""
        while "rollout" in handle.permits.holds:
            if self._run.scheduler.members.migration is None and handle.tail.wake is None:
                return False
            if handle.tail.uses != handle.tail.knows or handle.tail.is_woken:
                return True
            await handle.changed.wait()
        return False

    async def wake(self, handle: JobHandle, responses: int | None) -> None:
        """A job's rollout stops when so many of its responses have finished."""
        handle.tail.wake_at(responses)
        handle.changed.ring()

    async def parts(self, handle: JobHandle) -> tuple[int, ...]:
        """Numbers of the parts that a job's rollout is to use from now on."""
        return handle.tail.learn()

    async def left(self, handle: JobHandle) -> None:
        """A job's rollout uses no others any more."""
        await self._run.written()
        if "rollout" in handle.permits.holds:
            self._run.tell(facts.Shrunk(handle.id))

    async def checkpointed(self, handle: JobHandle, checkpoint: Checkpoint) -> bool:
        """What a job was after some iterations is on the disk; True: the journal knows it."""
        run = self._run
        await run.written()
        if handle.gone or checkpoint.iterations > handle.iteration:
            return False  # of processes that the job had before
        follows = protocol.checkpointed(handle, checkpoint, run.log.now())
        if checkpoint.iterations != handle.iteration or not self._leave(handle, follows):
            run.follow(follows)
        with contextlib.suppress(Unwritable):
            await run.durable()
            return True
        return False

    async def idle(self, handle: JobHandle) -> None:
        """Nothing of a job that leaves its place is under way; it has no checkpoints."""
        await self._run.written()
        if handle.ending.over_budget:
            self._leave(handle, Follows())

    async def full(self, handle: JobHandle, problem: str) -> None:
        """There is no room for a job's checkpoint: wait until it may be tried again. Until then the job is in nobody's way.

        Raises:
            Stopped: the run stops.
        """
        run, folder = self._run, self._run.checkpoints(handle.id).parent.parent
        free = free_bytes(folder)  # now: whoever hears of it may make room at once
        handle.permits.work(None)
        await run.written()
        if handle.saved.full is None and run.present(handle) and not run.stopping:
            run.log.say(f"{handle.id}: its checkpoint cannot be written, and is tried again when there is room: {problem}")
            handle.permits.give_up()
            run.tell(facts.Absent(handle.id), notes=(Absent(run.log.now(), handle.id, problem),))
        handle.saved.fail(problem)
        handle.permits.hold_up()
        await wait_for_room(folder, free, lambda: run.stopping or handle.ending.why is not None)
        if run.stopping:
            raise Stopped("stops with the run")
        handle.permits.work(run.log.now())

    async def memory_limit(self, handle: JobHandle, pool: str) -> float | None:
        """GB of host memory that a node of a pool has for jobs; of either pool, where none is named; None: nobody says."""
        limits = [one.node_memory_gb for name, one in self._run.plan.cluster.pools.items() if pool in (name, "")]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    async def exceeded(self, handle: JobHandle, node: str, gb: float, limit_gb: float) -> None:
        """A process of a job has more host memory than its node has for jobs: the job fails."""
        problem = f"{node} has {gb:.2f} GB of host memory; a node has {limit_gb:.2f} GB for jobs"
        where = handle.permits.phase or "step"
        await self._lifecycle.fail(handle, End("failed", where, problem), again=False)

    def _completed(self, handle: JobHandle, done: Done) -> None:
        """A job has carried out its order."""
        if handle.iteration == PROFILE:
            if self._profiling.passed(handle, done):
                rest(self._run, handle)
        elif handle.is_over:
            self._solo.iterated(handle)
        else:
            self._iterated(handle, done)

    def _iterated(self, handle: JobHandle, done: Done) -> None:
        run, now_s = self._run, self._run.log.now()
        follows = protocol.iterated(handle, done, now_s, run.scheduler.state.job(handle.id).iterations)
        spent = handle.ending.spend(run.scheduler.state.charges.is_spent(run.scheduler.state.row(handle.id), now_s))
        what = protocol.next_of(handle, spent, False)
        settles = done.keeps or (handle.spec.is_asynchronous if spent else not done.movable)
        if what is Next.DONE or (what is not Next.GO_ON and not settles):
            self._carry_out(handle, what, follows)
            return
        run.follow(follows)  # who leaves writes a checkpoint before that, and ends what is under way
        moves = what is Next.MOVE and handle.is_moving
        goes = done.keeps and run.scheduler.is_to_go(handle.id)
        handle.place.leave_after(checkpoint=what is Next.OVER_BUDGET or (done.movable and (moves or goes)))
        if handle.ending.why is None:
            run.decisions.order(handle)

    def _leave(self, handle: JobHandle, follows: Follows) -> bool:
        """Let a job leave its place that has waited for what it has said now; False: it has waited for nothing."""
        if not (handle.place.leaving and handle.lives and self._run.present(handle)):
            return False
        handle.place.leave_after(checkpoint=False)
        what = protocol.next_of(handle, handle.ending.over_budget, self._run.scheduler.is_to_go(handle.id))
        if what is Next.MOVE:
            handle.permits.give_up()
        self._carry_out(handle, what, follows)
        return True

    def _carry_out(self, handle: JobHandle, what: Next, follows: Follows) -> None:
        carry_out(self._run, handle, what, follows)
        if what is Next.OVER_BUDGET or (what is Next.DONE and not self._solo.keeps(handle)):
            handle.close()
            handle.tell(None, self._run.log.now())
