"""Requests of the owners of attached jobs; contracts and statuses are in docs/guides/attach.md.

An owner attaches to its job and waits until the job has a placement on nodes that the owner can reach. Then it has a lease. It asks
for a permit before each phase and releases it afterwards. Each request counts as a heartbeat; between requests it sends heartbeats.

A request that is repeated with the same phase and iteration gets the answer that fits the state. What an answer says is on disk
before it is sent, so that the next coordinator can continue leases and their holds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from rollmux_protocol import OutOfOrder, Turn

from rollmux_env.errors import Conflict, InputError, NotFound
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.planned_drains import leave_by_s
from runtime.jobs.spec import CommandJob
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import MetricsReported, OwnerAttached, PhaseGranted
from runtime.owners.http.holdups import holdup
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.ledger import Lease, described, wake
from runtime.owners.http.owner_processes import known_processes, own_processes, shared_pid_space
from runtime.owners.http.places import check_from, find_place, handle_of, reason

METRIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@+%<>()=-]{0,63}")
MOST_METRICS = 64  # per iteration: they are in the journal, in every status and in lines of the log
_METRICS_RULE = (
    f"an iteration has {MOST_METRICS} at most, of finite values, with names of up to 64 letters, digits and _./:@+%<>()=-"
)
_OWN = "owner"  # name under which the progress of an attached job is counted
_KNOWS_S = 0.2  # least time between two searches for the processes of an owner


class Leases:
    """Answers the requests of owners.

    Args:
        iterations: Progress of the attached jobs of the run.

    Attributes:
        ledger: Leases of the run.
    """

    def __init__(self, iterations: Iterations) -> None:
        self.ledger = iterations.ledger
        self._run = self.ledger.run
        self._iterations = iterations

    async def attach(
        self,
        job_id: str,
        wait_s: float,
        host: str,
        pids: Sequence[int],
        pid_space: str = "",
        from_iteration: int | None = None,
        lease: str | None = None,
    ) -> dict[str, Any]:
        """Wait until a job has a placement, and take a lease of it.

        Args:
            job_id: Identifier of the job.
            wait_s: Longest wait, in seconds.
            host: Name of the machine on which the owner runs, or an empty string if the owner does not say so.
            pids: Process ids of the owner there.
            pid_space: Identifier of the namespace of these process ids, as `rollmux_processes.pid_space`.
            from_iteration: Number of iterations that the owner has, or None to continue from the service's count. Iterations that
                were counted beyond it are taken back.
            lease: Identifier of the lease that the owner has already and keeps, or None if it needs one. The owner may not have
                finished a phase of an iteration in it.

        Returns:
            The lease, its time to live, the number of counted iterations and the nodes; or `placed` False, the reason, and the
            position in the queue.

        Raises:
            NotFound: If there is no such job or lease; one line.
            Conflict: If another lease of the job is active, nodes of its last one may be in use, the job has ended, the job is not
                an attached one, or the owner has begun iterations; one line.
            Unprocessable: If the owner has more iterations than the service has counted; one line.
        """
        if lease is not None:
            return await self._go_back(job_id, lease, from_iteration)
        run, boot = self._run, shared_pid_space(host, pid_space)
        check_from(handle_of(run, job_id), from_iteration)
        processes = await asyncio.to_thread(own_processes, pids, boot, job_id)
        handle, placement = await find_place(self._iterations, job_id, wait_s, host, pids if boot else ())
        if placement is None:
            why, position = reason(run, handle)
            return {"placed": False, "reason": why, "position": position}
        check_from(handle, from_iteration)
        taken = self.ledger.attach(handle, placement, host, boot, processes)
        handle.processes.record_contact()
        if from_iteration is not None:
            self._iterations.take_back(taken, from_iteration)
        with self.ledger.keep_alive(taken):
            await self._run.log.durable()
        where = one_line(host, 80) or "a host without a name"
        run.log.say(f"{job_id}: its owner has attached, on {where}")
        prints = ""
        if not isinstance(handle.spec, CommandJob):
            prints = f"; its output is there, with process {pids[0]}" if pids else "; its output is there"
        run.log.write_job_log(job_id, f"attached on {' '.join(dict.fromkeys(taken.owner.nodes))}, from {where}{prints}")
        return self._described(taken)

    async def _go_back(self, job_id: str, lease_id: str, from_iteration: int | None) -> dict[str, Any]:
        """Let an owner with a lease state the iteration from which it continues; arguments and errors as `attach`."""
        lease = self.ledger.lease(lease_id)
        if lease.handle.id != job_id:
            raise NotFound(f"job {one_line(job_id, 80)}: this lease is another job's")
        with self.ledger.keep_alive(lease):
            await self._run.written()
            self._check_lives(lease)
            check_from(lease.handle, from_iteration)
            if from_iteration is not None:
                self._iterations.take_back(lease, from_iteration)
            await self._run.log.durable()
        return self._described(lease)

    def _described(self, lease: Lease) -> dict[str, Any]:
        """Return the answer that gives an owner its lease."""
        ttl_s = self._run.plan.leases.ttl_s
        return {"lease": lease.id, "ttl_s": ttl_s, "iteration": lease.handle.iteration, "nodes": described(lease.handle)}

    async def acquire(
        self, lease_id: str, phase: HoldName, iteration: int | None, wait_s: float = 0.0, extra: bool = False
    ) -> dict[str, Any]:
        """Wait for the permit of a phase. The request keeps its position among waiting phases when the wait is over.

        Args:
            lease_id: Identifier of the lease.
            phase: Phase, `init` or `sync` to run.
            iteration: Number of its iteration, or None for an `init`.
            wait_s: Longest wait, in seconds.
            extra: Whether the phase is a rollout that counts for no iteration.

        Returns:
            `granted`; if it is True, the nodes and whether they were switched from another job; if it is False, `move` tells
            whether the owner has to leave its placement, and `reason` what holds the job up, if anything does.

        Raises:
            NotFound: If there is no such lease; one line.
            Conflict: If the lease is over, or the phase cannot be the next one; one line.
            InputError: If the phase cannot be extra, or the iteration is missing or negative; one line.
        """
        lease = self.ledger.lease(lease_id)
        turn = Turn(phase, iteration := _iteration_of(lease, phase, iteration), extra)
        if extra and phase != "rollout":
            raise InputError("extra: only a rollout can be extra")
        with self.ledger.keep_alive(lease):
            await self._run.written()
            if lease.turns.open.get(phase) != turn and (refusal := await self._ask(lease, turn, wait_s)) is not None:
                await self._run.log.durable()
                return refusal
            permit = lease.handle.permits.futures.get(phase)
            if permit is not None and not permit.done():
                await asyncio.wait((permit,), timeout=wait_s)
            await self._run.written()
            self._check_lives(lease)
            if lease.turns.open.get(phase) != turn:
                raise Conflict(f"job {lease.handle.id}: the {phase} of iteration {iteration} is over")
            hold = lease.handle.permits.holds.get(phase)
            if hold is None:
                return self._not_granted(lease)
            if phase not in lease.turns.granted:
                lease.turns.grant(phase)
                now_s, times = self._run.log.now(), (hold.asked_s, hold.start_s, hold.switched)
                self._run.log.write(PhaseGranted(now_s, lease.handle.id, lease.id, phase, iteration, extra, *times))
            await self._run.log.durable()
            self._check_lives(lease)
            nodes = described(lease.handle)
        return {"granted": True, "iteration": iteration, "switched": hold.switched, "nodes": nodes, "move": False}

    async def _ask(self, lease: Lease, turn: Turn, wait_s: float) -> dict[str, Any] | None:
        """Ask for a phase if it may begin, else return the answer that refuses it for now."""
        self._check_lives(lease)
        if self._goes(lease, turn):
            return {"granted": False, "move": True}
        if self._run.stopping or not await self._may_begin(lease, turn, wait_s):
            return self._not_granted(lease)
        if lease.is_elsewhere:  # the job was profiled and has got another placement while it waited
            lease.apply_event("move")
            return {"granted": False, "move": True}
        self._iterations.ask(lease, turn)
        self._iterations.end_spent(lease)
        self._check_lives(lease)
        # the request was not recorded if the budget is spent while another phase runs
        return None if turn.phase in lease.turns.open else self._not_granted(lease)

    def _not_granted(self, lease: Lease) -> dict[str, Any]:
        """Return the answer that a phase is not granted yet, with what holds the job up."""
        why = "the service is stopping" if self._run.stopping else holdup(self.ledger, lease.handle)
        return {"granted": False} | ({} if why is None else {"reason": why})

    def _goes(self, lease: Lease, turn: Turn) -> bool:
        """Return whether an owner leaves its placement instead of getting a phase."""
        run, handle, elsewhere = self._run, lease.handle, lease.is_elsewhere
        if not lease.must_move:
            # A job that must be parked does an iteration first; otherwise users who take turns might do none.
            leaves = handle.life.is_moving or run.scheduler.must_vacate(handle.id)
            if not (leaves and lease.turns.is_between and lease.turns.may_leave(turn)):
                return False
            lease.apply_event("move")
        if not (elsewhere or run.must_leave(handle)):
            lease.apply_event("stay")
            return False
        return elsewhere or lease.turns.may_leave(turn)

    async def release(
        self,
        lease_id: str,
        phase: HoldName,
        iteration: int | None,
        metrics: Mapping[str, float] | None = None,
        device_gb: float | None = None,
        extra: bool = False,
    ) -> dict[str, Any]:
        """Record that a phase is over and its nodes are free.

        Args:
            lease_id: Identifier of the lease.
            phase: The phase.
            iteration: Number of its iteration, or None for an `init`.
            metrics: Metrics of the iteration by name, or None.
            device_gb: Memory that the job keeps of a node's GPUs until its next phase, in GB, or None if the owner does not say.
            extra: Whether it must be a rollout that counts for no iteration. False if it may be either.

        Raises:
            NotFound: If there is no such lease; one line.
            Conflict: If the lease does not hold the phase, or was lost before. The phase of a lost lease does not count, and its
                last one frees the nodes; one line.
        """
        lease = self.ledger.lease(lease_id)
        iteration = _iteration_of(lease, phase, iteration)
        with self.ledger.keep_alive(lease):
            await self._run.written()
            if lease.is_over and lease.turns.is_open(phase, iteration, extra):
                self.ledger.release(lease, phase)
                await self._run.log.durable()
                self._check_lives(lease)
            if not self._may_release(lease, phase, iteration, extra):
                await self._run.log.durable()
                return {}
            left_out = keep_metrics(lease.record.metrics.setdefault(iteration, {}), metrics) if metrics else []
            if left_out and not lease.metrics_warned:
                lease.set_metrics_warned()
                self._run.log.write_job_log(lease.handle.id, f"metric {one_line(left_out[0], 80)} is left out: {_METRICS_RULE}")
            if device_gb is not None:
                self._iterations.check_kept_memory(lease, phase, device_gb)
            self._iterations.finish(lease, phase)
            if metrics and iteration in lease.record.metrics and iteration >= lease.turns.done:  # its iteration is not over
                known = {**lease.record.metrics[iteration]}
                self.ledger.write(lease, MetricsReported(self._run.log.now(), lease.handle.id, lease.id, iteration, known))
            if lease.stop_requested_s is not None and not lease.has_grants:
                self.ledger.end(lease, "it had to stop", JobEnd("stopped"))
            self._iterations.end_spent(lease)
            await self._run.log.durable()
        return {}

    async def synced(self, lease_id: str, iteration: int, seconds: float) -> dict[str, Any]:
        """Record that the new weights of an iteration are on the rollout nodes, which ends the iteration.

        Args:
            lease_id: Identifier of the lease.
            iteration: Number of the iteration.
            seconds: Duration of the sync, in seconds.

        Raises:
            NotFound: If there is no such lease; one line.
            Conflict: If the lease is over, or the iteration cannot be synced now; one line.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.keep_alive(lease):
            await self._run.written()
            if not lease.turns.is_over(Turn("sync", iteration)) or iteration >= lease.turns.done:
                self._check_lives(lease)
                self._iterations.synced(lease, iteration, seconds)
                self._iterations.end_spent(lease)
            await self._run.log.durable()
        return {}

    async def progress(self, lease_id: str, done: int, total: int, tokens: int = 0) -> dict[str, Any]:
        """Record the progress of the phase in progress.

        Args:
            lease_id: Identifier of the lease.
            done: Number of responses that are finished.
            total: Number of responses of the phase.
            tokens: Number of tokens that have been sampled.

        Raises:
            NotFound: If there is no such lease; one line.
            Conflict: If the lease is over; one line.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.keep_alive(lease):
            self._check_lives(lease)
            lease.handle.rollout_progress.count(_OWN, done, total, tokens)
        return {}

    async def heartbeat(self, lease_id: str, pids: Sequence[int] = (), pid_space: str = "") -> dict[str, Any]:
        """Record a heartbeat of an owner, and tell it whether to stop.

        Args:
            lease_id: Identifier of the lease.
            pids: Process ids of the owner if they have changed, else empty.
            pid_space: Identifier of the namespace of the ids, as of `attach`. If it has changed, the service can no longer see
                whether the owner's processes have ended.

        Returns:
            `stop`, whether the owner has to end its phase and itself. For a lost lease also `lost`, the reason; the owner then has
            to end at once. If a node of the lease is drained by a deadline also `leave_by_s`, that time in seconds since 1970.

        Raises:
            NotFound: If there is no such lease; one line.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.keep_alive(lease):
            owner, known = lease.owner, {one.pid for one in lease.owner.processes}
            if pids and owner.boot and not lease.is_over:
                if pid_space not in ("", owner.boot):
                    self._note(lease, replace(owner, at_s=self._run.log.now(), boot=""))
                elif not known.issuperset(pids):
                    await self._update_processes(lease, pids)
        answer: dict[str, Any] = {"stop": lease.is_over or lease.stop_requested_s is not None}
        by_s = None if lease.is_over else leave_by_s(self._run, lease.owner.nodes)
        return answer | ({"lost": lease.why_over} if lease.is_lost else {}) | ({} if by_s is None else {"leave_by_s": by_s})

    async def _update_processes(self, lease: Lease, pids: Sequence[int]) -> None:
        """Look for the processes that an owner names. Searches of one lease run one after the other, with a pause between."""
        async with lease.processes_lock:
            owner = lease.owner
            processes = await asyncio.to_thread(known_processes, owner, pids)
            if processes != owner.processes and not lease.is_over and lease.owner is owner:
                self._note(lease, replace(owner, at_s=self._run.log.now(), processes=processes))
            await asyncio.sleep(_KNOWS_S)

    def _note(self, lease: Lease, owner: OwnerAttached) -> None:
        """Record an owner. A heartbeat does not wait for the disk, because the next one repeats its content."""
        self.ledger.write(lease, owner)
        self._run.log.commit()

    async def end(self, lease_id: str, done: bool = False) -> dict[str, Any]:
        """End a lease whose owner uses nothing any more.

        Args:
            lease_id: Identifier of the lease.
            done: Whether the job is done; of a command, its exit status says that. Otherwise the owner may attach again, and
                continues after the last whole iteration.

        Raises:
            NotFound: If there is no such lease; one line.
            Stopping: If the run stops and the job has given up its placement; one line.
        """
        lease = self.ledger.lease(lease_id)
        await self._run.written()
        is_command = isinstance(lease.handle.spec, CommandJob)
        if lease.is_over:
            self.ledger.free(lease, lease.suspect_nodes, "its owner has ended")
            if done and not is_command:
                self._iterations.done_late(lease)
        elif done and is_command:
            self._iterations.hand_back(lease)
        elif done:
            self._iterations.done(lease)
        else:
            self._iterations.leave(lease, "its owner has detached")
        await self._run.log.durable()
        return {}

    def handle_of(self, lease_id: str) -> JobHandle:
        """Return the job of a lease.

        Raises:
            NotFound: If there is no such lease; one line.
        """
        return self.ledger.lease(lease_id).handle

    def is_active(self, lease_id: str) -> bool:
        """Return whether there is such a lease and it is not over."""
        lease = self.ledger.leases.get(lease_id)
        return lease is not None and not lease.is_over

    def touch(self, lease_id: str) -> None:
        """Record that the owner of a lease is alive."""
        self.ledger.lease(lease_id).hear(self._run.log.now())

    def stop(self) -> None:
        """Refuse all waiting requests because the run stops. The next coordinator continues the leases."""
        self.ledger.stopped.set()
        for handle in [*self._run.handles.values()]:
            placement = self.ledger.placement_of(handle)
            if placement is not None:
                wake(handle, "the service is stopping")
                placement.end(JobEnd("stopped"))
            handle.changed.notify_all()

    async def _may_begin(self, lease: Lease, turn: Turn, wait_s: float) -> bool:
        """Wait until a phase may begin, and return whether it may.

        The job needs its placement, which it may lack right after it was profiled, and phases that must end before have to be over.
        """
        clock, run, handle, turns = asyncio.get_running_loop(), self._run, lease.handle, lease.turns
        until_s = clock.time() + wait_s

        while not run.has_seat(handle) or turns.must_wait(turn, handle.job is None, lease.must_move):
            if clock.time() >= until_s or run.stopping:
                return False
            await handle.changed.wait(until_s - clock.time())
            await run.written()
            self._check_lives(lease)
            if lease.must_move:
                return False
        return True

    def _may_release(self, lease: Lease, phase: HoldName, iteration: int, extra: bool) -> bool:
        """Return whether an owner holds a phase, as `Turns.may_release`. A phase that a lost lease held is no longer open."""
        try:
            return lease.turns.may_release(phase, iteration, extra)
        except OutOfOrder:
            self._check_lives(lease)
            raise

    def _check_lives(self, lease: Lease) -> None:
        if lease.is_over:
            raise Conflict(f"job {lease.handle.id}: this lease is over: {lease.why_over}")
        if lease.stop_requested_s is not None and not lease.has_grants:
            raise Conflict(f"job {lease.handle.id}: has to stop")


def keep_metrics(metrics: dict[str, float], reported: Mapping[str, float]) -> list[str]:
    """Add what an owner has reported to the metrics of an iteration, and return the names of those that are left out.

    Args:
        metrics: Metrics of the iteration so far, by name; at most `MOST_METRICS`.
        reported: Metrics to add; names have to match `METRIC_NAME`, and values have to be finite.
    """
    left_out = []
    for name, value in reported.items():
        if isfinite(value) and METRIC_NAME.fullmatch(name) and (name in metrics or len(metrics) < MOST_METRICS):
            metrics[name] = value
        else:
            left_out.append(name)
    return left_out


def _iteration_of(lease: Lease, phase: HoldName, iteration: int | None) -> int:
    """Return the number of the iteration that a request names. An init may name none, and the first sync may name the one before 0.

    Raises:
        InputError: If the number is missing or negative; one line.
    """
    if iteration is None and phase != "init":
        raise InputError("iteration: is missing")
    if iteration is not None and iteration < 0 and phase != "sync":
        raise InputError("iteration: must be 0 or more")
    return lease.turns.begins if iteration is None else iteration
