"""What owners of jobs that run elsewhere ask of the coordinator; contracts and statuses are in docs/guides/attach.md.

An owner attaches to its job and waits until that has a place, on nodes that it can reach; then it has a lease of it. It asks for a
permit before each phase, releases it afterwards, and says with each request, and by heartbeats between them, that it lives.

A request that is repeated, with the same phase and iteration, gets the answer that fits the state. What an owner is told is on the
disk by then, so that a coordinator that is replaced goes on with leases and with what they hold.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from rollmux_client import Turn

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived
from rollmux_env.errors import Conflict, InputError, NotFound, Unprocessable
from rollmux_env.scheduler.confined import confined_problem
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiles import job_as_stated
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import CommandJob, JobSpec
from runtime.jobside.messages import End
from runtime.journal.facts import Attached, Granted
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.ledger import Lease, Stay, described, known_processes, own_processes, space_of, wake
from runtime.owners.protocol import turns_of

METRIC_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@+%<>()=-]{0,63}")
MOST_METRICS = 64  # of an iteration: they are in the journal, in every status and in lines of the log
_OWN = "owner"  # who counts an attached job's progress
_KNOWS_S = 0.2  # between two looks for the processes of an owner


class Leases:
    """Answers owners.

    Args:
        iterations: what they have done is told there.

    Attributes:
        ledger: of the leases.
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
        """Wait until a job has a place, and take a lease of it.

        Args:
            job_id: Identifier of the job.
            wait_s: Longest wait, in seconds.
            host: Name of the machine on which the owner runs, or an empty string if the owner does not say so.
            pids: Process ids of the owner there.
            pid_space: Identifier of the namespace of these process ids, as `rollmux_client.pid_space`.
            from_iteration: Number of iterations that the owner has, or None if it continues where the service counts. Iterations
                that were counted beyond it are taken back.
            lease: Identifier of the lease that the owner has already and keeps, or None if it needs one. The owner may not have
                finished a phase of an iteration in it.

        Raises:
            NotFound: There is no such job or lease; one line.
            Conflict: Another lease of the job lives, what its last one held may be in use, the job has ended, it does not run
                elsewhere, or the owner has begun iterations; one line.
            Unprocessable: The owner has more iterations than the service has counted; one line.
        """
        if lease is not None:
            return await self._go_back(job_id, lease, from_iteration)
        run, boot = self._run, space_of(host, pid_space)
        check_from(_handle_of(run, job_id), from_iteration)
        processes = await asyncio.to_thread(own_processes, pids, boot, job_id)
        handle, stay = await find_place(self._iterations, job_id, wait_s, host, pids if boot else ())
        if stay is None:
            why, position = reason(run, handle)
            return {"placed": False, "reason": why, "position": position}
        check_from(handle, from_iteration)
        now_s, names = run.log.now(), tuple(node.name for node in handle.place.nodes_of("sync"))
        owner = Attached(now_s, job_id, secrets.token_hex(16), host, boot, processes, names)
        taken = Lease(owner, handle, stay, now_s, turns_of(handle, handle.iteration))
        handle.actors.come()
        self.ledger.add(taken)
        if from_iteration is not None:
            self._iterations.take_back(taken, from_iteration)
        with self.ledger.sign(taken):
            await self._run.durable()
        where = one_line(host, 80) or "a host without a name"
        run.log.say(f"{job_id}: its owner has attached, on {where}")
        prints = ""
        if not isinstance(handle.spec, CommandJob):
            prints = f"; its output is there, with process {pids[0]}" if pids else "; its output is there"
        run.log.tell_of(job_id, f"attached on {' '.join(dict.fromkeys(names))}, from {where}{prints}")
        return self._described(taken)

    async def _go_back(self, job_id: str, lease_id: str, from_iteration: int | None) -> dict[str, Any]:
        """Let an owner that has a lease say after how many iterations it continues; arguments and errors as of `attach`."""
        lease = self.ledger.lease(lease_id)
        if lease.handle.id != job_id:
            raise NotFound(f"job {one_line(job_id, 80)}: this lease is another job's")
        with self.ledger.sign(lease):
            await self._run.written()
            self._check_lives(lease)
            check_from(lease.handle, from_iteration)
            if from_iteration is not None:
                self._iterations.take_back(lease, from_iteration)
            await self._run.durable()
        return self._described(lease)

    def _described(self, lease: Lease) -> dict[str, Any]:
        """Return a lease as its owner is told of it."""
        ttl_s = self._run.plan.leases.ttl_s
        return {"lease": lease.id, "ttl_s": ttl_s, "iteration": lease.handle.iteration, "nodes": described(lease.handle)}

    async def acquire(
        self, lease_id: str, phase: HoldName, iteration: int | None, wait_s: float = 0.0, extra: bool = False
    ) -> dict[str, Any]:
        """Wait for the permit of a phase; the place in the order stays when the wait is over.

        Args:
            phase: `init`, `rollout`, `training` or `sync`. iteration: which; None of an init. extra: a rollout that counts no
                iteration.

        Raises:
            NotFound: there is no such lease. Conflict: it is over, or the phase cannot be the next one. InputError: no rollout is
                extra, or no iteration is said. One line.
        """
        lease = self.ledger.lease(lease_id)
        turn = Turn(phase, iteration := _iteration_of(lease, phase, iteration), extra)
        if extra and phase != "rollout":
            raise InputError("extra: goes with a rollout")
        with self.ledger.sign(lease):
            await self._run.written()
            if lease.turns.open.get(phase) != turn and (refusal := await self._ask(lease, turn, wait_s)) is not None:
                await self._run.durable()
                return refusal
            permit = lease.handle.permits.waits.get(phase)
            if permit is not None and not permit.done():
                await asyncio.wait((permit,), timeout=wait_s)
            await self._run.written()
            self._check_lives(lease)
            if lease.turns.open.get(phase) != turn:
                raise Conflict(f"job {lease.handle.id}: the {phase} of iteration {iteration} is over")
            hold = lease.handle.permits.holds.get(phase)
            if hold is None:
                return {"granted": False}
            if phase not in lease.turns.granted:
                lease.turns.grant(phase)
                now_s, times = self._run.log.now(), (hold.asked_s, hold.start_s, hold.switched)
                self._run.log.write(Granted(now_s, lease.handle.id, lease.id, phase, iteration, extra, *times))
            await self._run.durable()
            self._check_lives(lease)
            nodes = described(lease.handle)
        return {"granted": True, "iteration": iteration, "switched": hold.switched, "nodes": nodes, "move": False}

    async def _ask(self, lease: Lease, turn: Turn, wait_s: float) -> dict[str, Any] | None:
        """Ask for a phase when it may begin; the answer where it is not to begin now."""
        self._check_lives(lease)
        if lease.moves:
            elsewhere = lease.is_elsewhere
            if not (elsewhere or lease.handle.is_moving or self._run.scheduler.is_to_go(lease.handle.id)):
                lease.go("stay")
            elif elsewhere or lease.turns.may_leave(turn):
                return {"granted": False, "move": True}
        if self._run.stopping or not await self._may_begin(lease, turn, wait_s):
            return {"granted": False}
        if lease.is_elsewhere:  # it has been measured, and has got a place since
            lease.go("move")
            return {"granted": False, "move": True}
        self._iterations.ask(lease, turn)
        self._iterations.end_spent(lease)
        self._check_lives(lease)
        # its budget may be spent, and another phase of it under way
        return None if turn.phase in lease.turns.open else {"granted": False}

    async def release(
        self,
        lease_id: str,
        phase: HoldName,
        iteration: int | None,
        metrics: Mapping[str, float] | None = None,
        device_gb: float | None = None,
        extra: bool = False,
    ) -> dict[str, Any]:
        """A phase is over, and its nodes are free.

        Args:
            metrics: of the iteration, by name. device_gb: what the job keeps of a node's GPUs until its next phase, GB.
            extra: the phase is a rollout that counts no iteration; False: it may be either.

        Raises:
            NotFound: there is no such lease. Conflict: it does not hold that, or was lost before: the phase counts for nothing
                then, and with the last one its nodes are free. One line.
        """
        lease = self.ledger.lease(lease_id)
        iteration = _iteration_of(lease, phase, iteration)
        with self.ledger.sign(lease):
            await self._run.written()
            if lease.ended and lease.turns.is_open(phase, iteration, extra):
                self.ledger.release(lease, phase)
                await self._run.durable()
                self._check_lives(lease)
            if not lease.turns.may_release(phase, iteration, extra):
                await self._run.durable()
                return {}
            keep_metrics(lease.metrics.setdefault(iteration, {}), metrics or {})
            if device_gb is not None:
                self._iterations.keeps(lease, phase, device_gb)
            self._iterations.finish(lease, phase)
            if lease.stops_s is not None and not lease.holds:
                self.ledger.end(lease, "it had to stop", End("stopped"))
            self._iterations.end_spent(lease)
            await self._run.durable()
        return {}

    async def synced(self, lease_id: str, iteration: int, seconds: float) -> dict[str, Any]:
        """The new weights of an iteration are on the rollout nodes; with that it is over.

        Raises:
            NotFound, Conflict: as `release`.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            await self._run.written()
            if not lease.turns.is_over(Turn("sync", iteration)) or iteration >= lease.turns.done:
                self._check_lives(lease)
                self._iterations.synced(lease, iteration, seconds)
                self._iterations.end_spent(lease)
            await self._run.durable()
        return {}

    async def progress(self, lease_id: str, done: int, total: int, tokens: int = 0) -> dict[str, Any]:
        """How far the phase in hand is: responses that are done, all of them, and tokens.

        Raises:
            NotFound, Conflict: as `release`.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            self._check_lives(lease)
            lease.handle.tail.count(_OWN, done, total, tokens)
        return {}

    async def heartbeat(self, lease_id: str, pids: Sequence[int] = (), pid_space: str = "") -> dict[str, Any]:
        """The owner lives.

        Args:
            pids: its processes, where they have changed. pid_space: as of `attach`; where it is another one, nobody can see any
                more whether all of them have ended.

        Returns:
            `stop`: Whether it is to end its phase and itself. `lost`, of a lease that was lost: why. It is to end at once.

        Raises:
            NotFound: as `release`.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            owner, known = lease.owner, {one.pid for one in lease.owner.processes}
            if pids and owner.boot and not lease.ended:
                if pid_space not in ("", owner.boot):
                    self._note(lease, replace(owner, at_s=self._run.log.now(), boot=""))
                elif not known.issuperset(pids):
                    await self._know(lease, pids)
        answer: dict[str, Any] = {"stop": bool(lease.ended) or lease.stops_s is not None}
        return answer | ({"lost": lease.ended} if lease.is_lost else {})

    async def _know(self, lease: Lease, pids: Sequence[int]) -> None:
        """Processes of an owner that are there from now on; it is looked for them one time after the other, and seldom."""
        async with lease.naming:
            owner = lease.owner
            processes = await asyncio.to_thread(known_processes, owner, pids)
            if processes != owner.processes and not lease.ended and lease.owner is owner:
                self._note(lease, replace(owner, at_s=self._run.log.now(), processes=processes))
            await asyncio.sleep(_KNOWS_S)

    def _note(self, lease: Lease, owner: Attached) -> None:
        """Keep what is known of an owner. A heartbeat does not wait for the disk: the next one says the same again."""
        lease.owner = owner
        self._run.log.write(owner)
        self._run.log.commit()

    async def end(self, lease_id: str, done: bool = False) -> dict[str, Any]:
        """The owner uses nothing any more, and its lease is over.

        Args:
            done: so is the job; else its owner may attach again, and goes on after the last whole iteration.

        Raises:
            NotFound: there is no such lease. Stopping: as `Iterations.done`.
        """
        lease = self.ledger.lease(lease_id)
        await self._run.written()
        if lease.ended:
            self.ledger.free(lease, lease.suspects, "its owner has ended")
            if done:
                self._iterations.done_late(lease)
        elif done:
            self._iterations.done(lease)
        else:
            self._iterations.leave(lease, "its owner has detached")
        await self._run.durable()
        return {}

    def job_of(self, lease_id: str) -> str:
        """The job of a lease.

        Raises:
            NotFound: there is no such lease.
        """
        return self.ledger.lease(lease_id).handle.id

    def touch(self, lease_id: str) -> None:
        """The owner of a lease lives."""
        lease = self.ledger.lease(lease_id)
        lease.sign_s = self._run.log.now()

    def stop(self) -> None:
        """The run stops: leases go on with the next coordinator, and nobody waits any more."""
        self.ledger.stopped.set()
        for handle in [*self._run.handles.values()]:
            stay = self.ledger.stay(handle)
            if stay is not None:
                wake(handle, "the service is stopping")
                stay.end(End("stopped"))
            handle.changed.ring()

    async def _may_begin(self, lease: Lease, turn: Turn, wait_s: float) -> bool:
        """Wait until a phase may begin: the job has its place, which one that has just been measured may not have yet, and no other
        phase of it is to be over before.
        """
        clock, run, handle, turns = asyncio.get_running_loop(), self._run, lease.handle, lease.turns
        until_s = clock.time() + wait_s

        while not run.present(handle) or turns.must_wait(turn, handle.job is None, lease.moves):
            if clock.time() >= until_s or run.stopping:
                return False
            await handle.changed.wait(until_s - clock.time())
            await run.written()
            self._check_lives(lease)
            if lease.moves:
                return False
        return True

    def _check_lives(self, lease: Lease) -> None:
        if lease.ended:
            raise Conflict(f"job {lease.handle.id}: this lease is over: {lease.ended}")
        if lease.stops_s is not None and not lease.holds:
            raise Conflict(f"job {lease.handle.id}: has to stop")


def check_from(handle: JobHandle, from_iteration: int | None) -> None:
    """Check that an owner does not have more iterations than the service has counted.

    Raises:
        Unprocessable: It has; one line.
    """
    if from_iteration is not None and from_iteration > handle.iteration:
        counted = f"{handle.iteration} iterations of it are counted"
        raise Unprocessable(f"job {handle.id}: from_iteration: {counted}; its owner cannot continue after {from_iteration}")


def keep_metrics(metrics: dict[str, float], reported: Mapping[str, float]) -> None:
    """Add what an owner has reported to the metrics of an iteration; what is beyond the bounds is left out.

    Args:
        metrics: Metrics of the iteration so far, by name; at most `MOST_METRICS`.
        reported: Metrics to add; names have to match `METRIC_NAME`, and values have to be finite.
    """
    for name, value in reported.items():
        if isfinite(value) and METRIC_NAME.fullmatch(name) and (name in metrics or len(metrics) < MOST_METRICS):
            metrics[name] = value


def _iteration_of(lease: Lease, phase: HoldName, iteration: int | None) -> int:
    """The iteration that a request names; an init needs none, and the first sync may be of that before 0.

    Raises:
        InputError: it names none that there can be; one line.
    """
    if iteration is None and phase != "init":
        raise InputError("iteration: is missing")
    if iteration is not None and iteration < 0 and phase != "sync":
        raise InputError("iteration: must be 0 or more")
    return lease.turns.begins if iteration is None else iteration


async def find_place(
    iterations: Iterations, job_id: str, wait_s: float, host: str, pids: Collection[int]
) -> tuple[JobHandle, Stay | None]:
    """Wait until a job has a place that its owner can have a lease of.

    Args:
        iterations: of attached jobs. wait_s: for so long. host: on which the owner is, if it says so. pids: its processes there.

    Returns:
        The job as it is then, and its time in this place; None: it has none.

    Raises:
        NotFound, Conflict: as `runtime.owners.http.leases.Leases.attach`.
    """
    ledger, clock = iterations.ledger, asyncio.get_running_loop()
    run, until_s = ledger.run, clock.time() + wait_s
    while True:
        await run.written()
        handle = _handle_of(run, job_id)
        stay = ledger.stay(handle)
        if stay is not None and (lease := stay.living) is not None:
            if not lease.moves or lease.turns.open:
                raise Conflict(f"job {job_id}: another lease of it lives")
            iterations.leave(lease, "its owner has attached anew")
            continue
        suspected = ledger.suspected.get(job_id)
        left_s = ledger.speak_for(suspected, pids) if suspected is not None else 0.0
        if not left_s and handle.ending.why is None and not run.stopping:
            _bring_to(run, stay, host, handle)
            iterations.profiling.owner_came(handle)
            if not run.decisions.errands.empty():  # it may have got its place just now
                await run.decisions.errands.join()
                continue
            if _is_to_have(run, stay, handle):
                return handle, stay
        if clock.time() >= until_s or run.stopping:
            return handle, None
        await handle.changed.wait(min(until_s - clock.time(), left_s or inf))


def _is_to_have(run: RunState, stay: Stay | None, handle: JobHandle) -> bool:
    """Whether a job has a place, and is not about to leave it."""
    return stay is not None and not stay.over.done() and handle.lives and run.present(handle)


def reason(run: RunState, handle: JobHandle) -> tuple[str, int | None]:
    """Why a job has no place, in words, and its position in the queue, from 1; None: it is not there."""
    waiting = run.scheduler.state.waiting
    position = waiting.index(handle.id) + 1 if handle.id in waiting else None
    if run.stopping:
        return "the service is stopping", position
    if handle.ending.why is not None:
        return f"what its last lease held may be in use: {handle.ending.why.problem}", position
    return "has no place yet" if position is None else "waits for nodes", position


def problem_of_names(run: RunState, spec: JobSpec) -> str | None:
    """Why a job cannot be on the nodes that its entry names; None: it can, or names none. One line."""
    if not spec.nodes_named:
        return None
    there = {node.name: node for node in run.capacity.nodes()}
    for pool, names in spec.nodes_named.items():
        for name in names:
            if name not in there or name in run.nodes.missing:
                return f"nodes.{pool}: there is no node {name}"
            if there[name].pool != pool:
                return f"nodes.{pool}: {name} is a {there[name].pool} node"
    names_of_all = frozenset(name for names in spec.nodes_named.values() for name in names)
    if drained := sorted(names_of_all & run.nodes.drained):
        return f"nodes: {drained[0]} is drained"
    state, now_s = run.scheduler.state.copy(), run.log.now()
    state.now_s = now_s
    apply(state, Arrived(now_s, job_as_stated(spec, now_s)))
    problem = confined_problem(state, run.nodes, spec.id, names_of_all)
    return None if problem is None else f"nodes: {problem}"


def _bring_to(run: RunState, stay: Stay | None, host: str, handle: JobHandle) -> None:
    """See that a job gets nodes of its owner's host; it gives up a place elsewhere that nobody has attached to yet."""
    names = _nodes_of_host(run, handle.spec, host)
    if names is None or (stay is not None and stay.lease is not None):
        return
    if run.present(handle) and handle.place.names <= names:
        return
    run.confine(handle, names)
    if stay is not None and run.present(handle):
        stay.end(End("died", "step", f"its owner is on {one_line(host, 80)}"))


def _nodes_of_host(run: RunState, spec: JobSpec, host: str) -> frozenset[str] | None:
    """The nodes that a job may have whose owner is on a host; None: any.

    Where a cluster has one host alone, or none of this name, an owner reaches its nodes by a launcher of its own.

    Raises:
        Unprocessable: the host has fewer nodes than the job asks for; one line.
    """
    hosts = run.capacity.nodes_by_host()
    if spec.nodes_named or host not in hosts or len(hosts) < 2:
        return None
    own = hosts[host]
    for pool in run.plan.cluster.sides:
        there, asks = sum(node.pool == pool for node in own), getattr(spec, pool).nodes
        if there < asks:
            raise Unprocessable(f"job {spec.id}: {pool}.nodes: asks for {asks} nodes; {host} has {there} of this pool")
    return frozenset(node.name for node in own)


def _handle_of(run: RunState, job_id: str) -> JobHandle:
    handle = run.handles.get(job_id)
    if handle is None:
        raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
    if not handle.spec.is_attached:
        raise Conflict(f"job {job_id}: is run by the service itself; nobody attaches to it")
    if handle.ending.halted:
        return handle
    if handle.gone or (handle.ending.why is not None and not handle.ending.again):
        raise Conflict(f"job {job_id}: has ended")
    return handle
