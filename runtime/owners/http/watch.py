"""Leases without a sign of life, and nodes of lost ones: who still uses them, as far as that can be known."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from rollmux_env.validation_errors import one_line
from runtime.execution.lifecycle import JobLifecycle
from runtime.owners.http.lease import Lease
from runtime.owners.http.ledger import Ledger
from runtime.owners.http.owner import living
from runtime.refusals import Conflict, NotFound

_LOOKS_S = 1.0
_LATE_S = 1.0  # a look so late: this process was stopped or waited for its disk, and nobody could give a sign of life


class LeaseWatch:
    """Looks after leases.

    Args:
        ledger: of them. lifecycle: of the jobs.
    """

    def __init__(self, ledger: Ledger, lifecycle: JobLifecycle) -> None:
        self._ledger = ledger
        self._run = ledger.run
        self._lifecycle = lifecycle

    async def patrol(self) -> None:
        """Look every second, as long as the run lasts."""
        last_s = self._run.log.now()
        while True:
            await asyncio.sleep(_LOOKS_S)
            await self._run.written()
            now_s = self._run.log.now()
            late_s, last_s = now_s - last_s - _LOOKS_S, now_s
            if late_s > _LATE_S:
                for lease in self._ledger.leases.values():
                    lease.sign_s += late_s
            self.look()

    def look(self) -> None:
        """Give up leases that are lost, free what their owners do not use any more, and give unclaimed places to others."""
        run = self._run
        if run.stopping:
            return
        now_s, rules = run.log.now(), run.plan.leases
        for lease in [*self._ledger.leases.values()]:
            if not lease.ended:
                if not lease.requests and now_s - lease.sign_s > rules.ttl_s:
                    self._ledger.lose(lease, f"its lease is lost: no sign of life for {rules.ttl_s:g} s")
                elif lease.stops_s is not None and now_s - lease.stops_s > rules.ttl_s:
                    self._ledger.lose(lease, f"it was told to stop, and has not for {rules.ttl_s:g} s")
            elif lease.suspects:
                self._free(lease, now_s)
        for handle in [*run.handles.values()]:
            stay = self._ledger.stay(handle)
            if stay is None or handle.gone or handle.ending.why is not None or handle.spec.command is not None:
                continue
            if (stay.lease is None or stay.lease.ended) and now_s - stay.since_s > rules.claim_s:
                self._lifecycle.park(handle, stay)

    def speak_for(self, lease: Lease, pids: Collection[int]) -> None:
        """The owner of a lost lease attaches again, and by that says that it uses nothing.

        Args:
            pids: its processes now.

        Raises:
            Conflict: processes of its lost lease are seen to live, and are none of these.
        """
        alive = [pid for pid in living(lease.owner) if pid not in pids]
        if alive:
            names = ", ".join(sorted(lease.suspects))
            raise Conflict(f"job {lease.handle.id}: process {alive[0]} of its last lease lives, and may use {names}; end it first")
        self._ledger.free(lease, lease.suspects, "its owner has attached again")

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

    def _free(self, lease: Lease, now_s: float) -> None:
        """Free what a lost lease held, if it is known that nobody uses it."""
        rules = self._run.plan.leases
        if rules.grace_s is not None and now_s - lease.sign_s > rules.ttl_s + rules.grace_s:
            self._ledger.free(lease, lease.suspects, f"{rules.grace_s:g} s of grace are over")
        elif lease.owner.boot and any(one.started for one in lease.owner.processes) and not living(lease.owner):
            self._ledger.free(lease, lease.suspects, "its owner's processes have ended")
