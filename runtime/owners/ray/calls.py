"""Calls of jobs' processes to the coordinator: orders, permits, phases, checkpoints and progress."""

from __future__ import annotations

import contextlib
from typing import Any

from rollmux_env.scheduler import facts
from runtime.coordinator.arrivals import keep_cold_start
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import rest
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.lifecycle import JobLifecycle
from runtime.coordinator.profiling import Profiling
from runtime.coordinator.run_loop import RunLoop
from runtime.coordinator.slices import slice_of
from runtime.coordinator.solo import SoloIterations
from runtime.jobside.messages import Checkpoint, IterationOrder, IterationResult, JobEnd, PhaseReport, Stopped
from runtime.journal.facts import CheckpointDelayed, StateOffloaded
from runtime.journal.write import Unwritable
from runtime.machine import Node, Pool, boot_id
from runtime.machines.forecast import free_bytes, wait_for_room
from runtime.owners import protocol
from runtime.owners.protocol import NextStep
from runtime.owners.ray.rollout_calls import RolloutCalls
from runtime.phases import Paused


class JobCalls:
    """Answers jobs. Every method but `ask` is called through `ask` by a process of a job, which is the first argument.

    Args:
        run: The run.
        lifecycle: Starts and ends of the run's jobs.
        profiling: Profiles of the run's jobs.
        solo: Iterations that jobs run after their last one to measure their time alone, or None if they are not measured.
    """

    def __init__(self, run: RunLoop, lifecycle: JobLifecycle, profiling: Profiling, solo: SoloIterations | None) -> None:
        self._run = run
        self._lifecycle = lifecycle
        self._profiling = profiling
        self._solo = solo
        self._rollouts = RolloutCalls(run)

    async def ask(self, method: str, job_id: str, *arguments: Any) -> Any:
        """Call a method for a process of a job.

        Args:
            method: Name of the method.
            job_id: Id of the job.
            *arguments: Further arguments of the method.
        """
        answers = self._rollouts if hasattr(self._rollouts, method) else self
        return await getattr(answers, method)(self._run.handles[job_id], *arguments)

    async def clock(self, handle: JobHandle) -> tuple[str, float]:
        """Return the boot id of the coordinator's machine, and the reading of its monotonic clock at time 0 of the run."""
        return boot_id(), self._run.log.zero_s

    async def now(self, handle: JobHandle) -> float:
        """Return the time of the run, in seconds."""
        return self._run.log.now()

    async def started_worker(self, handle: JobHandle, worker: Any) -> None:
        """Record a worker of a job."""
        handle.processes.add(worker)

    async def has_process(self, handle: JobHandle, machine: str, pid: int, start: int) -> None:
        """Record a process of a job, so that it can be ended when the job ends.

        Args:
            handle: The job.
            machine: Id of the Ray node of the process.
            pid: Process id.
            start: Time at which the process was started, by the clock of its machine.
        """
        handle.processes.note_process(machine, pid, start)

    async def order(self, handle: JobHandle, done: IterationResult | None) -> IterationOrder | None:
        """Record that a job has carried out its last order, and wait for the next one.

        Args:
            handle: The job.
            done: Outcome of the last order, or None if there was none.

        Returns:
            The next order, or None if the job is done.

        Raises:
            Stopped: If the run stops, or the job has to wait for nodes.
        """
        handle.permits.set_busy_since(None)
        handle.processes.record_contact()
        await self._run.written()
        if done is not None and self._run.has_seat(handle):
            self._completed(handle, done)
        if self._run.stopping or handle.life.is_resting:
            raise Stopped("stops with the run" if self._run.stopping else "waits for nodes")
        order = await handle.processes.next_order()
        await self._run.written()
        if self._run.stopping and order is not None:
            raise Stopped("stops with the run")
        return order

    async def acquire(
        self, handle: JobHandle, pool: Pool, parts: tuple[Node, ...] = (), iteration: int | None = None
    ) -> tuple[Pool, ...]:
        """Wait for the permit of a phase.

        Args:
            handle: The job.
            pool: Pool of the nodes of the phase.
            parts: Parts into which the nodes of a rollout are divided if it can run on some of them, else empty.
            iteration: Number of the iteration that the phase belongs to, or None for the one in progress.

        Returns:
            Empty if the job has the permit. Otherwise the pools on whose nodes the job has to offload its state before it waits
            again.

        Raises:
            Stopped: If the run stops.
            Paused: If the job's rollouts are paused.
        """
        run = self._run
        handle.permits.set_busy_since(None)
        await run.written()
        if run.stopping:
            raise Stopped("stops with the run")
        if pool == "rollout" and handle.permits.are_rollouts_paused:
            raise Paused
        number = handle.iteration if iteration is None else iteration
        asked_before = pool in handle.permits.requests or pool in handle.permits.holds  # before its rollouts were paused
        handle.permits.wait_for(pool)
        if not asked_before:
            follows = protocol.asked(handle, pool, number, run.log.now(), parts)
            if run.has_seat(handle):
                run.apply(follows)
        elif pool in handle.permits.holds:
            run.admit(handle, pool, run.log.now())
        return await self.permit(handle, pool)

    async def permit(self, handle: JobHandle, pool: Pool) -> tuple[Pool, ...]:
        """Wait for a permit that was asked for; returns as `acquire`."""
        leaving = self._run.residents.leaving(handle) or await handle.permits.futures[pool]
        await self._run.written()
        return leaving

    async def continued(self, handle: JobHandle, sampled: int) -> None:
        """Report how many rollouts a job is ahead of its trainings, after it was created again or its request was dropped.

        Args:
            handle: The job.
            sampled: Number of finished rollouts that it has not trained on yet.
        """
        run = self._run
        await run.written()
        if not run.has_seat(handle) or run.stopping:
            return
        run.apply(protocol.continued(handle, handle.iteration + sampled, handle.iteration))

    async def may_stay(self, handle: JobHandle, pool: Pool) -> bool:
        """Return whether the state of a finished phase may stay on the devices of a pool's nodes."""
        run = self._run
        return not run.stopping and run.has_seat(handle) and run.residents.may_stay(handle, pool)

    async def offloaded(
        self, handle: JobHandle, pool: Pool, seconds: float, host_gb: float, device_gb: float, taken_gb: float = 0.0
    ) -> None:
        """Record that state that had stayed on its devices has been offloaded.

        Args:
            handle: The job.
            pool: Pool of the nodes.
            seconds: Duration of the offload, in seconds.
            host_gb: Host memory of the job on a node afterwards, in GB.
            device_gb: Memory that the job still has on each GPU, in GB.
            taken_gb: Memory of each GPU that is not free, in GB.
        """
        run = self._run
        await run.written()
        nodes = tuple(node.name for node in handle.place.nodes[pool])
        run.log.write(StateOffloaded(run.log.now(), handle.id, pool, nodes, seconds, host_gb, device_gb))
        run.residents.record_gpu_memory(handle, pool, device_gb, taken_gb)
        run.on_state_left(handle, pool, run.log.now())

    async def release(self, handle: JobHandle, report: PhaseReport) -> tuple[Pool, ...]:
        """Record that a phase is over.

        Args:
            handle: The job.
            report: Times and memory of the phase.

        Returns:
            The pools on whose nodes the job has to offload its state.
        """
        run = self._run
        await run.written()
        phase: Pool = "training" if report.phase == "training" else "rollout"
        if phase not in handle.permits.holds:
            return ()  # the job has failed in the meantime
        now_s = run.log.now()
        handle.permits.set_busy_since(now_s)
        if report.keeps_permit:
            run.log.write(slice_of(handle, report, now_s))
            handle.permits.begin_next_part(phase, now_s)
            return ()
        if handle.iteration == PROFILE:
            self._profiling.add_measurement(handle, report)
        spans = run.scheduler.members.spans(handle.id, now_s) if report.phase == "rollout" else ()
        done = slice_of(handle, report, now_s, spans, extra=report.phase == "init")
        if (cold_s := run.cold_starts.observed(done, handle.spec)) is not None:
            keep_cold_start(run, handle, done, cold_s)
        follows = protocol.released(handle, report, done, cold_s)
        run.residents.record_gpu_memory(handle, phase, report.device_gb, report.taken_gb)
        if report.stays:
            run.residents.add_state(handle, phase, report.host_gb, report.device_gb)
        else:
            run.on_state_left(handle, phase, now_s)
        run.apply(follows)
        return run.residents.leaving(handle)

    async def synced(self, handle: JobHandle, start_s: float, end_s: float) -> tuple[Pool, ...]:
        """Record that a sync is over; returns as `release`.

        Args:
            handle: The job.
            start_s: Start of the sync, in seconds of the run's clock.
            end_s: End of the sync, in seconds of the run's clock.
        """
        run = self._run
        await run.written()
        if handle.iteration == PROFILE and handle.job is None:
            handle.profile.synced(end_s - start_s)
        follows = protocol.synced(handle, handle.iteration, start_s, end_s, run.capacity.jobs_sharing_rollout_nodes(handle))
        run.apply(follows if run.has_seat(handle) else follows._replace(reports=()))
        return run.residents.leaving(handle)

    async def warned(self, handle: JobHandle, text: str) -> None:
        """Show a warning of a job's process to the user, unless the same text was shown before."""
        if handle.processes.warn(text):
            self._run.log.say(f"{handle.id}: WARNING: {text}")

    async def checkpointed(self, handle: JobHandle, checkpoint: Checkpoint) -> bool:
        """Record a checkpoint of a job. A job that was waiting for it leaves its placement.

        Args:
            handle: The job.
            checkpoint: Checkpoint that is on disk.

        Returns:
            Whether the checkpoint is durable in the journal.
        """
        run = self._run
        await run.written()
        if handle.life.is_gone or checkpoint.iterations > handle.iteration:
            return False  # it is from former processes of the job
        follows = protocol.checkpointed(handle, checkpoint, run.log.now())
        if checkpoint.iterations != handle.iteration or not self._leave(handle, follows):
            run.apply(follows)
        with contextlib.suppress(Unwritable):
            await run.log.durable()
            return True
        return False

    async def idle(self, handle: JobHandle) -> None:
        """Let a job without checkpoints leave its placement, because none of its phases is in progress."""
        await self._run.written()
        if handle.ending.over_budget:
            self._leave(handle, Consequences())

    async def full(self, handle: JobHandle, problem: str) -> None:
        """Wait until a job's checkpoint may be tried again, because the disk is full. Meanwhile the job does not hold up others.

        Args:
            handle: The job.
            problem: Error of the disk, in one line.

        Raises:
            Stopped: If the run stops.
        """
        run, folder = self._run, self._run.checkpoints(handle.id).parent.parent
        free = free_bytes(folder)  # before the message, to which a user may react by making room at once
        handle.permits.set_busy_since(None)
        await run.written()
        if handle.checkpoints.disk_problem is None and run.has_seat(handle) and not run.stopping:
            line = f"{handle.id}: its checkpoint cannot be written, and is tried again when there is room: {problem}"
            handle.permits.clear()
            delayed = CheckpointDelayed(run.log.now(), handle.id, problem)
            run.apply(Consequences((facts.Absent(handle.id),), (delayed,), (line,)))
        handle.checkpoints.record_full_disk(problem)
        handle.permits.record_disk_wait()
        await wait_for_room(folder, free, lambda: run.stopping or handle.ending.why is not None)
        if run.stopping:
            raise Stopped("stops with the run")
        handle.permits.set_busy_since(run.log.now())

    async def memory_limit(self, handle: JobHandle, pool: str) -> float | None:
        """Return the host memory that a node has for jobs, in GB, or None if the cluster file does not state it.

        Args:
            handle: The job.
            pool: Pool of the node, or an empty string for the larger limit of both.
        """
        limits = [one.node_memory_gb for name, one in self._run.plan.cluster.pools.items() if pool in (name, "")]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    async def exceeded(self, handle: JobHandle, node: str, gb: float, limit_gb: float) -> None:
        """Fail a job of which a process uses more host memory than a node has for jobs.

        Args:
            handle: The job.
            node: Description of the process and its node.
            gb: Host memory that it uses, in GB.
            limit_gb: Limit of the node, in GB.
        """
        problem = f"{node} has {gb:.2f} GB of host memory; a node has {limit_gb:.2f} GB for jobs"
        where = handle.permits.phase or "step"
        await self._lifecycle.fail(handle, JobEnd("failed", where, problem), again=False)

    def _completed(self, handle: JobHandle, done: IterationResult) -> None:
        """Record that a job has carried out its order."""
        if handle.iteration == PROFILE:
            follows, rests = self._profiling.passed(handle, done, self._run.log.now())
            self._run.apply(follows)
            if rests:
                rest(handle, self._run.log.now())
        elif handle.is_over and self._solo is not None:
            self._solo.iterated(handle)
        else:
            self._iterated(handle, done)

    def _iterated(self, handle: JobHandle, done: IterationResult) -> None:
        run, now_s = self._run, self._run.log.now()
        follows = protocol.iterated(handle, done, now_s, run.scheduler.state.job(handle.id).iterations)
        spent = handle.ending.set_over_budget(run.scheduler.state.charges.is_spent(run.scheduler.state.row(handle.id), now_s))
        what = protocol.next_step_of(handle, spent, False)
        settles = done.has_checkpoints or (handle.spec.is_asynchronous if spent else not done.movable)
        if what is NextStep.DONE or (what in (NextStep.OVER_BUDGET, NextStep.MOVE) and not settles):
            self._carry_out(handle, what, follows)
            return
        run.apply(follows)  # a job that leaves first ends its phases and writes a checkpoint
        moves = handle.life.is_moving  # it may have been told so in this very instant
        if moves and not (spent or settles):
            self._carry_out(handle, NextStep.MOVE, Consequences())
            return
        goes = done.has_checkpoints and (handle.life.is_yielding or run.scheduler.must_vacate(handle.id))
        handle.place.set_leaving(what is NextStep.OVER_BUDGET or (done.movable and (moves or goes)))
        if handle.ending.why is None:
            run.apply(run.order(handle, run.log.now()))

    def _leave(self, handle: JobHandle, follows: Consequences) -> bool:
        """Let a job leave its placement if it was waiting for this report to do so, and return whether it was."""
        if not (handle.place.leaving and handle.life.is_alive and self._run.has_seat(handle)):
            return False
        handle.place.set_leaving(False)
        what = protocol.next_step_of(handle, handle.ending.over_budget, self._run.scheduler.must_vacate(handle.id))
        if what is NextStep.MOVE:
            handle.permits.clear()
        self._carry_out(handle, what, follows)
        return True

    def _carry_out(self, handle: JobHandle, what: NextStep, follows: Consequences) -> None:
        self._run.apply(follows.then(protocol.carried_out(self._run, handle, what, self._run.log.now())))
        if what is NextStep.OVER_BUDGET or (what is NextStep.DONE and not (self._solo is not None and self._solo.enlist(handle))):
            handle.close()
            handle.send_order(None, self._run.log.now())
