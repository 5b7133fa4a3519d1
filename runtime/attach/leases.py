"""What owners of jobs that run elsewhere ask of the coordinator; contracts and statuses are in docs/guides/attach.md.

An owner attaches to its job and waits until that has a place; then it has a lease of it. It asks for a permit before each phase,
releases it afterwards, and says with each request, and by heartbeats between them, that it lives.

A request that is repeated, with the same phase and iteration, gets the answer that fits the state. What an owner is told is on the
disk by then, so that a coordinator that is replaced goes on with leases and with what they hold.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from typing import Any, cast, get_args

from rollmux_env.errors import InputError
from rollmux_env.scheduler.dispatcher import HoldName
from rollmux_env.validation_errors import describe, one_line
from runtime.attach.confining import confine, nodes_of_host
from runtime.attach.ending import Ending
from runtime.attach.iterations import Iterations
from runtime.attach.lease import Ask, Lease
from runtime.attach.ledger import Ledger, described
from runtime.attach.measuring import ask_to_measure
from runtime.attach.owner import boot_of, own_processes
from runtime.attach.watch import LeaseWatch
from runtime.execution.job_calls import JobCalls
from runtime.execution.job_handle import JobHandle
from runtime.execution.lifecycle import JobLifecycle
from runtime.execution.messages import End
from runtime.execution.run_state import RunState
from runtime.service.refusals import Conflict, NotFound

_MOST_WAIT_S = 60.0
_AGAIN_S = 0.05
_MOST = 10_000  # processes, or metrics


class Leases:
    """Answers owners.

    Args:
        run: whose jobs they have. lifecycle, calls: of it. ledger: of the leases.

    Attributes:
        ending: how leases end. watch: of those without a sign of life.
    """

    def __init__(self, run: RunState, lifecycle: JobLifecycle, calls: JobCalls, ledger: Ledger) -> None:
        self._run = run
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._iterations = Iterations(ledger, calls, lifecycle)
        self.ending = Ending(ledger, lifecycle, self._iterations)
        self.watch = LeaseWatch(ledger, lifecycle)

    async def attach(self, job_id: str, wait_s: float, host: str | None, pids: Sequence[int]) -> dict[str, Any]:
        """Wait until a job has a place, and take a lease of it.

        Args:
            wait_s: for so long. host: on which the owner is, if it says so. pids: its processes there.

        Raises:
            NotFound: there is no such job. Conflict: another lease of it lives, what its last one held may be in use, or it has
                ended. InputError: it does not run elsewhere; or the arguments are no such; one line.
        """
        run, clock = self._run, asyncio.get_running_loop()
        host, named = _text("host", host or ""), _pids(pids)
        until_s = clock.time() + _wait(wait_s)
        while True:
            await run.written()
            handle = self._attached(job_id)
            if handle.gone or (handle.end is not None and not handle.again):
                raise Conflict(f"job {job_id}: has ended")
            stay = self._ledger.stay(handle)
            lease = stay.lease if stay is not None else None
            if lease is not None and not lease.ended:
                if not lease.moves or lease.opens:
                    raise Conflict(f"job {job_id}: another lease of it lives")
                self.ending.leave(lease, "its owner has attached anew")
                continue
            if (suspected := self._ledger.suspected.get(job_id)) is not None:
                self.watch.speak_for(suspected, named)
            self._bring_to(host, handle)
            if handle.spec.profile is not None:
                ask_to_measure(run, handle)
            if handle.parks and handle.end is None and not run.stopping:
                self._lifecycle.unpark(handle)
            stay = self._ledger.stay(handle)  # it may have got its place just now
            if stay is not None and not stay.over.done() and handle.end is None and not run.stopping and run.present(handle):
                break
            if clock.time() >= until_s or run.stopping:
                return self._not_placed(handle)
            await self._ledger.placed(job_id, until_s - clock.time())
        boot = boot_of(host)
        lease_id, now_s = secrets.token_hex(16), run.log.now()
        number = handle.iteration
        lease = Lease(lease_id, handle, stay, host, boot, own_processes(named, boot), now_s)
        lease.rollouts = lease.trainings = lease.syncs = number
        handle.has_come = True
        self._ledger.add(lease)
        with self._sign(lease):
            await self._ledger.durable()
        run.log.say(f"{job_id}: its owner has attached, on {one_line(host, 80) or 'a host without a name'}")
        return {"lease": lease_id, "ttl_s": run.plan.leases.ttl_s, "iteration": number, "nodes": described(handle)}

    async def acquire(
        self, lease_id: str, phase: str, iteration: int, wait_s: float = _MOST_WAIT_S, extra: bool = False
    ) -> dict[str, Any]:
        """Wait for the permit of a phase; the place in the order stays when the wait is over.

        Args:
            phase: `rollout`, `training` or `sync`. extra: a rollout that counts no iteration.

        Raises:
            NotFound: there is no such lease. Conflict: it is over, or the phase cannot be the next one. InputError: the arguments
                are no such; one line.
        """
        lease, ask = self._ledger.lease(lease_id), _ask(phase, iteration, extra)
        wait_s = _wait(wait_s)
        with self._sign(lease):
            await self._run.written()
            if lease.opens.get(ask.phase) != ask:
                self._check_lives(lease)
                lease.moves &= lease.handle.moving or self._run.scheduler.is_to_go(lease.handle.id)
                if lease.moves and (ask.phase == "rollout" or lease.handle.spec.staleness) and not lease.opens:
                    return {"granted": False, "move": True}
                if self._run.stopping or not await self._has_place(lease, wait_s) or not await self._may_begin(lease, ask, wait_s):
                    return {"granted": False}
                self._iterations.ask(lease, ask)
                self.ending.end_spent(lease)
                self._check_lives(lease)
                if ask.phase not in lease.opens:  # its budget is spent, and another phase of it under way
                    return {"granted": False}
            permit = lease.handle.permits.get(ask.phase)
            if permit is not None:
                await asyncio.wait((permit,), timeout=wait_s)
            await self._run.written()
            self._check_lives(lease)
            if lease.opens.get(ask.phase) != ask:
                raise Conflict(f"job {lease.handle.id}: the {phase} of iteration {iteration} is over")
            hold = lease.handle.holds.get(ask.phase)
            if hold is None:
                return {"granted": False}
            if ask.phase not in lease.granted:
                self._iterations.grant(lease, ask)
            await self._ledger.durable()
            self._check_lives(lease)
            nodes = described(lease.handle)
        return {"granted": True, "iteration": iteration, "switched": hold.switched, "nodes": nodes, "move": False}

    async def release(
        self, lease_id: str, phase: str, iteration: int, metrics: Mapping[str, float] | None = None, device_gb: float | None = None
    ) -> dict[str, Any]:
        """A phase is over, and its nodes are free.

        Args:
            metrics: of the iteration, by name. device_gb: what the job keeps of a node's GPUs until its next phase, GB.

        Raises:
            NotFound: there is no such lease. Conflict: it does not hold that. InputError: the arguments are no such; one line.
        """
        lease, reported = self._ledger.lease(lease_id), _metrics(metrics)
        keeps_gb = None if device_gb is None else _number("device_gb", device_gb)
        plain = _ask(phase, iteration, False)
        ask = lease.opens.get(plain.phase)
        with self._sign(lease):
            await self._run.written()
            if ask is None or ask[:2] != plain[:2] or lease.opens.get(plain.phase) is not ask:
                if lease.is_over(plain) or ((last := lease.last.get(plain.phase)) is not None and last[:2] == plain[:2]):
                    return {}
                raise Conflict(f"job {lease.handle.id}: does not hold the {phase} of iteration {iteration}")
            if plain.phase not in lease.granted:
                raise Conflict(f"job {lease.handle.id}: the {phase} of iteration {iteration} has not been granted")
            if lease.ended:
                self._ledger.free(lease, lease.suspects, "its owner has released it")
                return {}
            lease.metrics.setdefault(iteration, {}).update(reported)
            if keeps_gb is not None:
                self._iterations.keeps(lease, ask, keeps_gb)
            self._iterations.finish(lease, ask)
            if lease.stops_s is not None and not lease.holds:
                self.ending.stopped(lease)
            self.ending.end_spent(lease)
            await self._ledger.durable()
        return {}

    async def synced(self, lease_id: str, iteration: int, seconds: float) -> dict[str, Any]:
        """The new weights of an iteration are on the rollout nodes; with that it is over.

        Raises:
            NotFound, Conflict, InputError: as `release`.
        """
        lease, number = self._ledger.lease(lease_id), _whole("iteration", iteration)
        took_s = _number("seconds", seconds)
        with self._sign(lease):
            await self._run.written()
            counted = lease.handle.iteration
            if number < lease.syncs and number < counted:
                return {}
            self._check_lives(lease)
            if number != lease.trainings - 1 or number < counted - 1:
                raise Conflict(f"job {lease.handle.id}: iteration {number} has no training that is over and waits for its sync")
            self._iterations.synced(lease, number, took_s)
            self.ending.end_spent(lease)
            await self._ledger.durable()
        return {}

    async def progress(self, lease_id: str, done: int, total: int, tokens: int = 0) -> dict[str, Any]:
        """How far the phase in hand is: responses that are done, all of them, and tokens.

        Raises:
            NotFound, Conflict, InputError: as `release`.
        """
        lease = self._ledger.lease(lease_id)
        counts = [_whole(name, value) for name, value in (("done", done), ("total", total), ("tokens", tokens))]
        with self._sign(lease):
            self._check_lives(lease)
            self._iterations.progress(lease, *counts)
        return {}

    async def heartbeat(self, lease_id: str, pids: Sequence[int] = ()) -> dict[str, Any]:
        """The owner lives.

        Args:
            pids: its processes, where they have changed.

        Returns:
            `stop`: it is to end its phase and itself; a lease that was lost is over.

        Raises:
            NotFound, InputError: as `release`.
        """
        lease, named = self._ledger.lease(lease_id), _pids(pids)
        with self._sign(lease):
            fresh = [pid for pid in named if pid not in {one.pid for one in lease.processes}]
            if fresh and not lease.ended:
                lease.processes += own_processes(fresh, lease.boot)
                self._ledger.write_down(lease)
        return {"stop": bool(lease.ended) or lease.stops_s is not None}

    async def end(self, lease_id: str, done: bool = False) -> dict[str, Any]:
        """The owner uses nothing any more, and its lease is over.

        Args:
            done: so is the job; else its owner may attach again, and goes on after the last whole iteration.

        Raises:
            NotFound: there is no such lease.
        """
        lease = self._ledger.lease(lease_id)
        await self._run.written()
        if lease.ended:
            self._ledger.free(lease, lease.suspects, "its owner has ended")
        elif done:
            self.ending.done(lease)
        else:
            self.ending.leave(lease, "its owner has detached")
        await self._ledger.durable()
        return {}

    def job_of(self, lease_id: str) -> str:
        """The job of a lease.

        Raises:
            NotFound: there is no such lease.
        """
        return self._ledger.lease(lease_id).handle.id

    def touch(self, lease_id: str) -> None:
        """The owner of a lease lives."""
        lease = self._ledger.lease(lease_id)
        lease.sign_s = self._run.log.now()

    def clear(self, node: str) -> tuple[str, ...]:
        """Somebody says that no lost lease uses a node.

        Returns:
            The jobs whose leases had held it.

        Raises:
            NotFound: no lost lease holds it.
        """
        suspects = [lease for lease in self._ledger.leases.values() if node in lease.suspects]
        if not suspects:
            raise NotFound(f"{one_line(node, 80)}: no lost lease holds it")
        for lease in suspects:
            self._ledger.free(lease, (node,), "somebody has said so")
        return tuple(lease.handle.id for lease in suspects)

    def suspects(self) -> dict[str, str]:
        """The nodes that lost leases may still use, by name, and their jobs."""
        return {name: lease.handle.id for lease in self._ledger.leases.values() for name in lease.suspects}

    def stop(self) -> None:
        """The run stops: leases go on with the next coordinator, and nobody waits any more."""
        self.ending.halt_all()

    @contextmanager
    def _sign(self, lease: Lease) -> Iterator[None]:
        """An open request keeps a lease alive."""
        lease.sign_s = self._run.log.now()
        lease.requests += 1
        try:
            yield
        finally:
            lease.requests -= 1
            lease.sign_s = self._run.log.now()

    def _bring_to(self, host: str, handle: JobHandle) -> None:
        """See that a job gets nodes of its owner's host; it gives up a place elsewhere that nobody has attached to yet."""
        run, stay = self._run, self._ledger.stay(handle)
        names = nodes_of_host(run, handle.spec, host)
        if names is None or handle.end is not None or run.stopping or (stay is not None and stay.lease is not None):
            return
        if run.present(handle) and {node.name for node in handle.nodes_of("sync")} <= names:
            return
        confine(run, handle, names)
        if stay is not None and run.present(handle):
            stay.end(End("died", "step", f"its owner is on {one_line(host, 80)}"))

    def _attached(self, job_id: str) -> JobHandle:
        handle = self._run.handles.get(job_id)
        if handle is None:
            raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
        if not handle.spec.is_attached:
            raise Conflict(f"job {job_id}: is run by the service itself; nobody attaches to it")
        return handle

    async def _has_place(self, lease: Lease, wait_s: float) -> bool:
        """Wait until a job has a place; one that has been measured may have to wait for its own."""
        clock = asyncio.get_running_loop()
        until_s = clock.time() + wait_s
        while not self._run.present(lease.handle):
            self._check_lives(lease)
            if clock.time() >= until_s or self._run.stopping:
                return False
            await asyncio.sleep(_AGAIN_S)
        return True

    async def _may_begin(self, lease: Lease, ask: Ask, wait_s: float) -> bool:
        """Wait until a phase of a stale job need not wait for another one, nor the job be quiet because it is to move."""
        clock = asyncio.get_running_loop()
        until_s = clock.time() + wait_s
        while lease.must_wait(ask) or (lease.moves and lease.handle.spec.staleness and lease.opens):
            with suppress(TimeoutError):
                await asyncio.wait_for(lease.changed.wait(), max(0.0, until_s - clock.time()))
            await self._run.written()
            self._check_lives(lease)
            if clock.time() >= until_s or self._run.stopping or lease.moves:
                return False
        return True

    def _check_lives(self, lease: Lease) -> None:
        if lease.ended:
            raise Conflict(f"job {lease.handle.id}: this lease is over: {lease.ended}")
        if lease.stops_s is not None and not lease.holds:
            raise Conflict(f"job {lease.handle.id}: has to stop")

    def _not_placed(self, handle: JobHandle) -> dict[str, Any]:
        waiting = self._run.scheduler.state.waiting
        position = waiting.index(handle.id) + 1 if handle.id in waiting else None
        reason = "waits for nodes" if position else "the service is stopping" if self._run.stopping else "has no place yet"
        if handle.end is not None:
            reason = f"what its last lease held may be in use: {handle.end.problem}"
        return {"placed": False, "reason": reason, "position": position}


def _ask(phase: str, iteration: int, extra: bool) -> Ask:
    if phase not in get_args(HoldName):
        raise InputError(f"phase: must be rollout, training or sync, not {describe(phase)}")
    if extra and phase != "rollout":
        raise InputError("extra: goes with a rollout")
    return Ask(cast("HoldName", phase), _whole("iteration", iteration), bool(extra))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise InputError(f"{name}: must be a whole number from 0, not {describe(value)}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise InputError(f"{name}: must be a number from 0, not {describe(value)}")
    return float(value)


def _wait(wait_s: Any) -> float:
    return min(_number("wait_s", wait_s), _MOST_WAIT_S)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 255:
        raise InputError(f"{name}: must be text of at most 255 characters")
    return value


def _pids(pids: Any) -> list[int]:
    if not isinstance(pids, Sequence) or isinstance(pids, str | bytes) or len(pids) > _MOST:
        raise InputError(f"pids: must be a list of at most {_MOST} numbers of processes")
    return [_whole("pids", pid) for pid in pids]


def _metrics(metrics: Any) -> dict[str, float]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or len(metrics) > _MOST:
        raise InputError(f"metrics: must be a mapping of at most {_MOST} numbers by name")
    for name, value in metrics.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"metrics: must be numbers by name, not {describe(name)}: {describe(value)}")
    return {name: float(value) for name, value in metrics.items() if isfinite(value)}
