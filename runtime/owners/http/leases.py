"""What owners of jobs that run elsewhere ask of the coordinator; contracts and statuses are in docs/guides/attach.md.

An owner attaches to its job and waits until that has a place; then it has a lease of it. It asks for a permit before each phase,
releases it afterwards, and says with each request, and by heartbeats between them, that it lives.

A request that is repeated, with the same phase and iteration, gets the answer that fits the state. What an owner is told is on the
disk by then, so that a coordinator that is replaced goes on with leases and with what they hold.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from rollmux_client import Turn

from rollmux_env.errors import Conflict, InputError
from rollmux_env.scheduler.view import HoldName
from rollmux_env.validation_errors import one_line
from runtime.execution.job_log import tell_of
from runtime.execution.messages import End
from runtime.owners.http.attaching import find_place, reason
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.lease import Lease, own_processes, owner_of
from runtime.owners.http.ledger import described
from runtime.owners.protocol import turns_of


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

    async def attach(self, job_id: str, wait_s: float, host: str, pids: Sequence[int]) -> dict[str, Any]:
        """Wait until a job has a place, and take a lease of it.

        Args:
            wait_s: for so long, seconds. host: on which the owner is; empty where it does not say so. pids: its processes there.

        Raises:
            NotFound: there is no such job. Conflict: another lease of it lives, what its last one held may be in use, it has ended,
                or it does not run elsewhere. One line.
        """
        run = self._run
        handle, stay = await find_place(self._iterations, job_id, wait_s, host, pids)
        if stay is None:
            why, position = reason(run, handle)
            return {"placed": False, "reason": why, "position": position}
        number = handle.iteration
        lease = Lease(secrets.token_hex(16), handle, stay, owner_of(host, pids), run.log.now(), turns_of(handle, number))
        handle.actors.has_come = True
        self.ledger.add(lease)
        with self.ledger.sign(lease):
            await self.ledger.durable()
        where = one_line(host, 80) or "a host without a name"
        run.log.say(f"{job_id}: its owner has attached, on {where}")
        prints = ""
        if not handle.spec.command:
            prints = f"; its output is there, with process {pids[0]}" if pids else "; its output is there"
        names = " ".join(dict.fromkeys(node.name for node in handle.nodes_of("sync")))
        tell_of(run.plan.folder, job_id, f"attached on {names}, from {where}{prints}")
        return {"lease": lease.id, "ttl_s": run.plan.leases.ttl_s, "iteration": number, "nodes": described(handle)}

    async def acquire(
        self, lease_id: str, phase: HoldName, iteration: int, wait_s: float = 0.0, extra: bool = False
    ) -> dict[str, Any]:
        """Wait for the permit of a phase; the place in the order stays when the wait is over.

        Args:
            phase: `rollout`, `training` or `sync`. extra: a rollout that counts no iteration.

        Raises:
            NotFound: there is no such lease. Conflict: it is over, or the phase cannot be the next one. InputError: no rollout is
                extra. One line.
        """
        lease, turn = self.ledger.lease(lease_id), Turn(phase, iteration, extra)
        if extra and phase != "rollout":
            raise InputError("extra: goes with a rollout")
        with self.ledger.sign(lease):
            await self._run.written()
            if lease.turns.open.get(phase) != turn and (refusal := await self._ask(lease, turn, wait_s)) is not None:
                return refusal
            permit = lease.handle.permits.waits.get(phase)
            if permit is not None:
                await asyncio.wait((permit,), timeout=wait_s)
            await self._run.written()
            self._check_lives(lease)
            if lease.turns.open.get(phase) != turn:
                raise Conflict(f"job {lease.handle.id}: the {phase} of iteration {iteration} is over")
            hold = lease.handle.permits.holds.get(phase)
            if hold is None:
                return {"granted": False}
            if phase not in lease.turns.granted:
                self._iterations.grant(lease, phase)
            await self.ledger.durable()
            self._check_lives(lease)
            nodes = described(lease.handle)
        return {"granted": True, "iteration": iteration, "switched": hold.switched, "nodes": nodes, "move": False}

    async def _ask(self, lease: Lease, turn: Turn, wait_s: float) -> dict[str, Any] | None:
        """Ask for a phase when it may begin; the answer where it is not to begin now."""
        self._check_lives(lease)
        if lease.moves and not (lease.handle.place.moving or self._run.scheduler.is_to_go(lease.handle.id)):
            lease.go("stay")
        if lease.moves and lease.turns.may_leave(turn):
            return {"granted": False, "move": True}
        if self._run.stopping or not await self._may_begin(lease, turn, wait_s):
            return {"granted": False}
        self._iterations.ask(lease, turn)
        self._iterations.end_spent(lease)
        self._check_lives(lease)
        # its budget may be spent, and another phase of it under way
        return None if turn.phase in lease.turns.open else {"granted": False}

    async def release(
        self,
        lease_id: str,
        phase: HoldName,
        iteration: int,
        metrics: Mapping[str, float] | None = None,
        device_gb: float | None = None,
    ) -> dict[str, Any]:
        """A phase is over, and its nodes are free.

        Args:
            metrics: of the iteration, by name. device_gb: what the job keeps of a node's GPUs until its next phase, GB.

        Raises:
            NotFound: there is no such lease. Conflict: it does not hold that. One line.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            await self._run.written()
            if not lease.turns.may_release(phase, iteration):
                return {}
            if lease.ended:
                self.ledger.free(lease, lease.suspects, "its owner has released it")
                return {}
            reported = {name: value for name, value in (metrics or {}).items() if isfinite(value)}
            lease.metrics.setdefault(iteration, {}).update(reported)
            if device_gb is not None:
                self._iterations.keeps(lease, phase, device_gb)
            self._iterations.finish(lease, phase)
            if lease.stops_s is not None and not lease.holds:
                self.ledger.end(lease, "it had to stop", End("stopped"))
            self._iterations.end_spent(lease)
            await self.ledger.durable()
        return {}

    async def synced(self, lease_id: str, iteration: int, seconds: float) -> dict[str, Any]:
        """The new weights of an iteration are on the rollout nodes; with that it is over.

        Raises:
            NotFound, Conflict: as `release`.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            await self._run.written()
            if lease.turns.is_over(Turn("sync", iteration)) and iteration < lease.turns.done:
                return {}
            self._check_lives(lease)
            self._iterations.synced(lease, iteration, seconds)
            self._iterations.end_spent(lease)
            await self.ledger.durable()
        return {}

    async def progress(self, lease_id: str, done: int, total: int, tokens: int = 0) -> dict[str, Any]:
        """How far the phase in hand is: responses that are done, all of them, and tokens.

        Raises:
            NotFound, Conflict: as `release`.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            self._check_lives(lease)
            self._iterations.progress(lease, done, total, tokens)
        return {}

    async def heartbeat(self, lease_id: str, pids: Sequence[int] = ()) -> dict[str, Any]:
        """The owner lives.

        Args:
            pids: its processes, where they have changed.

        Returns:
            `stop`: it is to end its phase and itself; a lease that was lost is over.

        Raises:
            NotFound: as `release`.
        """
        lease = self.ledger.lease(lease_id)
        with self.ledger.sign(lease):
            fresh = [pid for pid in pids if pid not in {one.pid for one in lease.owner.processes}]
            if fresh and not lease.ended:
                processes = lease.owner.processes + own_processes(fresh, lease.owner.boot)
                lease.owner = replace(lease.owner, processes=processes)
                self.ledger.write_down(lease)
        return {"stop": bool(lease.ended) or lease.stops_s is not None}

    async def end(self, lease_id: str, done: bool = False) -> dict[str, Any]:
        """The owner uses nothing any more, and its lease is over.

        Args:
            done: so is the job; else its owner may attach again, and goes on after the last whole iteration.

        Raises:
            NotFound: there is no such lease.
        """
        lease = self.ledger.lease(lease_id)
        await self._run.written()
        if lease.ended:
            self.ledger.free(lease, lease.suspects, "its owner has ended")
        elif done:
            self._iterations.done(lease)
        else:
            self._iterations.leave(lease, "its owner has detached")
        await self.ledger.durable()
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
        self._iterations.halt_all()

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
