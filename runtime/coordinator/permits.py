"""The permits of a job: requested, granted, and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rollmux_env.scheduler.commands import Grant
from rollmux_env.scheduler.view import HoldName
from runtime.machine import Pool


class RequestedPermit(NamedTuple):
    """A requested permit.

    Attributes:
        at_s: Time of the request, in seconds of the run.
        iteration: Number of the iteration of the phase; rollouts may be ahead of trainings.
    """

    at_s: float
    iteration: int


@dataclass
class GrantedPermit:
    """A granted permit.

    Attributes:
        pool: Phase, by the pool of its nodes; `init` or `sync` if it holds all nodes of the job.
        asked_s: Time of the request, in seconds of the run.
        start_s: Time of the grant.
        switched: Whether another job had the nodes before.
        paired: Whether another permit was granted at the same time.
        iteration: Number of the iteration of the phase; rollouts may be ahead of trainings.
        ready_s: Time at which the job could begin: `start_s`, or later if other jobs had to make room first.
    """

    pool: HoldName
    asked_s: float
    start_s: float
    switched: bool
    paired: bool
    iteration: int = 0
    ready_s: float = 0.0


def _no_seconds() -> dict[str, float]:
    return {"rollout": 0.0, "training": 0.0}


@dataclass
class Permits:
    """The permits of a job. Only this module changes the fields.

    Attributes:
        holds: Granted permits by phase: one, or one of each side if rollouts are ahead.
        requests: Requested permits by phase.
        futures: Futures for which the owner waits, by phase. A result that names pools is no permit: the job first offloads its
            state from their nodes.
        are_rollouts_paused: Whether its rollouts wait until it has left its place.
        busy_since_s: Time since which it has had no reason to wait, or None while it waits.
        began_s: Times at which the rollouts of iterations in progress were ready, by number of the iteration.
        iteration_from_s: Time at which the previous iteration ended, or the job got its place later.
        interrupted: Whether the iteration in progress has waited for room on a disk, or began before the run was resumed.
        busy_s: Node-seconds of its phases, by pool.
    """

    holds: dict[HoldName, GrantedPermit] = field(default_factory=dict)
    requests: dict[HoldName, RequestedPermit] = field(default_factory=dict)
    futures: dict[HoldName, asyncio.Future[tuple[Pool, ...]]] = field(default_factory=dict)
    are_rollouts_paused: bool = False
    busy_since_s: float | None = None
    began_s: dict[int, float] = field(default_factory=dict)
    iteration_from_s: float = 0.0
    interrupted: bool = False
    busy_s: dict[str, float] = field(default_factory=_no_seconds)

    @property
    def phase(self) -> HoldName | None:
        """The phase that the job runs; of two, the one that began last."""
        return next(reversed(self.holds), None)

    @property
    def only_waits(self) -> bool:
        """Whether the job waits for a permit, and holds none."""
        return not self.holds and any(not waits.done() for waits in self.futures.values())

    def request(self, phase: HoldName, number: int, now_s: float) -> None:
        """Record a request for a phase of an iteration."""
        self.requests[phase] = RequestedPermit(now_s, number)

    def record_ready_rollout(self, number: int, now_s: float) -> None:
        """Record that the rollout of an iteration is ready."""
        self.began_s[number] = now_s

    def resume_iterations(self, began_s: Mapping[int, float]) -> None:
        """Continue iterations that began before the run was resumed. The time until then is missing in their length.

        Args:
            began_s: Times at which their rollouts were ready, by number of the iteration.
        """
        self.began_s, self.interrupted = dict(began_s), bool(began_s)

    def grant(self, grant: Grant, now_s: float, number: int) -> None:
        """Record a permit that the scheduler grants.

        Args:
            grant: Command of the scheduler.
            now_s: Present time, in seconds of the run.
            number: Number of the iteration, unless the job has requested another one.
        """
        at_s, number = self.requests.pop(grant.phase, RequestedPermit(now_s, number))
        self.add_grant(GrantedPermit(grant.phase, at_s, now_s, grant.switched, grant.paired, number))

    def add_grant(self, hold: GrantedPermit) -> None:
        """Record a permit, for example from a journal."""
        self.holds[hold.pool] = hold

    def admit(self, phase: HoldName, now_s: float) -> None:
        """Record that there is room for a granted phase, which begins."""
        self.busy_since_s = self.holds[phase].ready_s = now_s

    def begin_next_part(self, phase: HoldName, now_s: float) -> None:
        """Record that a part of a phase is over, and the next one begins with the same permit."""
        self.holds[phase].start_s = self.holds[phase].asked_s = now_s

    def end_phase(self, phase: HoldName, pool: Pool, node_s: float) -> None:
        """Record that a phase is over.

        Args:
            phase: The phase.
            pool: Pool of its nodes.
            node_s: Node-seconds that count.
        """
        self.busy_s[pool] += node_s
        del self.holds[phase]

    def clear(self) -> None:
        """Clear all permits and requests."""
        self.holds.clear()
        self.requests.clear()

    def restart_clocks(self, now_s: float) -> None:
        """Restart the clock of all permits, because none could be given back until now."""
        for hold in self.holds.values():
            hold.ready_s = now_s

    def interrupt(self, now_s: float) -> None:
        """Restart all clocks, because the job had to wait for the journal and did not hang."""
        self.interrupted = True
        self.busy_since_s = None if self.busy_since_s is None else now_s
        self.restart_clocks(now_s)

    def record_disk_wait(self) -> None:
        """Record that the job waits for room for its checkpoint."""
        self.interrupted = self.interrupted or bool(self.began_s)

    def set_busy_since(self, now_s: float | None) -> None:
        """Set the time since which the job has had no reason to wait, or None if it waits."""
        self.busy_since_s = now_s

    def set_iteration_from(self, now_s: float) -> None:
        """Set the time from which the next iteration counts: a place, a load, or the end of the previous one."""
        self.iteration_from_s = now_s

    def end_iteration(self, number: int, now_s: float, is_asynchronous: bool) -> tuple[float, bool]:
        """Record the end of an iteration.

        Args:
            number: Number of the iteration.
            now_s: Present time, in seconds of the run.
            is_asynchronous: Whether the job is asynchronous.

        Returns:
            The time at which it began, and whether it had to wait for a disk.
        """
        began_s = self.began_s.pop(number, 0.0 if is_asynchronous else now_s)
        if is_asynchronous:
            began_s, self.iteration_from_s = max(began_s, self.iteration_from_s), now_s
        interrupted, self.interrupted = self.interrupted, False
        return began_s, interrupted

    def reset_busy(self, busy_s: dict[str, float] | None = None) -> None:
        """Restart the count of the job's node-seconds.

        Args:
            busy_s: Node-seconds by pool that count already; none by default.
        """
        self.busy_s = busy_s or _no_seconds()

    def forget_ready_rollouts(self) -> None:
        """Forget rollouts that were ready but belong to no iteration."""
        self.began_s.clear()

    def pause_rollouts(self, error: Exception) -> None:
        """Let no further rollout begin; one that waits for its permit gets the error."""
        self.are_rollouts_paused = True
        waits = self.futures.get("rollout")
        if waits is not None and not waits.done():
            waits.set_exception(error)

    def resume_rollouts(self) -> None:
        """Let rollouts begin again."""
        self.are_rollouts_paused = False

    def wait_for(self, phase: HoldName) -> None:
        """Begin the owner's wait for a permit."""
        self.futures[phase] = asyncio.get_running_loop().create_future()

    def wait_no_more(self, phase: HoldName) -> None:
        """End the owner's wait for a permit."""
        self.futures.pop(phase, None)

    def ask_to_leave(self, pools: tuple[Pool, ...]) -> None:
        """Interrupt the job's wait for a permit, so that its state leaves some nodes; the wait then begins again."""
        phase = next((phase for phase, waits in self.futures.items() if not waits.done()), None)
        if pools and phase is not None:
            waits = self.futures[phase]
            self.wait_for(phase)
            waits.set_result(pools)
