"""Periodic checks of leases: lost ones, suspect nodes that are out of use, and placements that no owner has claimed."""

from __future__ import annotations

import asyncio

from runtime.coordinator.ends import park
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import worst_case_s
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import CommandJob
from runtime.jobside.messages import JobEnd
from runtime.owners.http.ledger import AttachedPlacement, Lease, Ledger
from runtime.owners.http.owner_processes import is_known

_LOOKS_S = 1.0
_LATE_S = 1.0  # a check later than this means that this process was suspended and heard no heartbeats


async def patrol(ledger: Ledger) -> None:
    """Check all leases every second until the run ends."""
    run = ledger.run
    last_s = run.log.now()
    while True:
        await asyncio.sleep(_LOOKS_S)
        await run.written()
        now_s = run.log.now()
        late_s, last_s = now_s - last_s - _LOOKS_S, now_s
        if late_s > _LATE_S:
            extend_leases(ledger, late_s)
        check_leases(ledger)


def extend_leases(ledger: Ledger, late_s: float) -> None:
    """Extend leases and holds by a time in which the coordinator was suspended and answered no request.

    Args:
        ledger: Leases of the run.
        late_s: Length of that time, in seconds. Owners may have been heard in it.
    """
    now_s = ledger.run.log.now()
    for lease in ledger.leases.values():
        lease.hear(min(now_s, lease.last_heartbeat_s + late_s))
        lease.handle.permits.restart_clocks(now_s)  # no request to release a phase was answered


def check_leases(ledger: Ledger) -> None:
    """Give up leases that are lost, free nodes that their owners do not use any more, and end unclaimed placements."""
    run = ledger.run
    if run.stopping:
        return
    now_s = run.log.now()
    for lease in [*ledger.leases.values()]:
        if lease.is_over:
            _free_unused(ledger, lease, now_s)
        elif why := _why_lost(run, lease, now_s):
            ledger.lose(lease, why)
    for handle in [*run.handles.values()]:
        placement = ledger.placement_of(handle)
        if placement is not None and placement.active_lease is None and handle.life.is_alive:
            _check_unclaimed(ledger, handle, placement, now_s)


def _check_unclaimed(ledger: Ledger, handle: JobHandle, placement: AttachedPlacement, now_s: float) -> None:
    """Take a placement without an owner from a job that is parked, or to which no owner has attached for too long."""
    run = ledger.run
    if isinstance(handle.spec, CommandJob):
        _check_returned(ledger, handle, placement, now_s)
    elif handle.life.is_yielding and not placement.over.done():  # no owner does an iteration
        run.apply(park(run, handle))
    elif now_s - placement.unclaimed_since_s > run.plan.leases.claim_s:  # its owner asks for a placement when it comes
        handle.place.set_awaits_owner(True)
        placement.end(JobEnd("died", "step", "nobody has attached to it"))


def _check_returned(ledger: Ledger, handle: JobHandle, placement: AttachedPlacement, now_s: float) -> None:
    """End a command that has given its lease back and hangs. A notice follows from the nodes, which are suspect until then."""
    run = ledger.run
    limit_s = run.plan.timeouts.least_s
    if placement.lease is None or placement.over.done() or now_s - placement.unclaimed_since_s <= limit_s:
        return
    why = f"its command has given its lease back, and has neither ended nor attached again for {limit_s:g} s"
    run.log.say(f"{handle.id}: {why}")
    ledger.suspect(placement.lease)
    placement.end(JobEnd("died", "step", why))


def _free_unused(ledger: Ledger, lease: Lease, now_s: float) -> None:
    """Free the nodes of a lost lease if its grace is over or no process of its owner lives."""
    rules = ledger.run.plan.leases
    if not lease.suspect_nodes:
        return
    if rules.grace_s is not None and now_s - lease.last_heartbeat_s > max(rules.ttl_s + rules.grace_s, rules.fenced_s):
        ledger.free(lease, lease.suspect_nodes, f"{rules.grace_s:g} s of grace have passed")
    elif is_known(lease.owner) and not ledger.using(lease):
        ledger.free(lease, lease.suspect_nodes, "its owner's processes have ended")


def _why_lost(run: RunState, lease: Lease, now_s: float) -> str:
    """Return why an active lease is lost, or an empty string if it is not."""
    rules = run.plan.leases
    if not lease.requests and now_s - lease.last_heartbeat_s > rules.ttl_s:
        return f"its lease is lost: no sign of life for {rules.ttl_s:g} s"
    if lease.stop_requested_s is not None and now_s - lease.stop_requested_s > rules.ttl_s:
        return f"it was asked to stop, and has not done so for {rules.ttl_s:g} s"
    if rules.max_hold_worst_cases is not None and (too_long := _too_long(run, lease, rules.max_hold_worst_cases, now_s)):
        return f"its lease is lost: {too_long}"
    return ""


def _too_long(run: RunState, lease: Lease, most: float, now_s: float) -> str:
    """Return a message about a phase of a lease that has exceeded its limit, or an empty string.

    Args:
        run: The run.
        lease: The lease.
        most: Limit, as a multiple of the phase's worst case or of the time that it is given without one.
        now_s: Current time, in seconds of the run's clock.
    """
    handle = lease.handle
    for phase in lease.turns.granted & handle.permits.holds.keys():
        hold, (worst_s, is_planned) = handle.permits.holds[phase], worst_case_s(run, handle, phase)
        held_s = now_s - max(hold.start_s, hold.ready_s)
        if held_s > most * worst_s:
            limit = f"its worst case of {worst_s:.4g} s" if is_planned else f"the {worst_s:.4g} s that it is given"
            return f"its {phase} has taken {held_s:.0f} s, more than {most:g} times {limit}"
    return ""
