"""The future of a state as far as it is known: the fluid replay from now on, without changing the state."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from math import inf

from rollmux_env.cluster.apply import forecast
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.core import Entry, Scheduler
from rollmux_env.scheduler.ticks import INSTANT_S

INSTANTS = 500  # default number of instants that are simulated


def simulated(state: State, policy: Policy) -> Scheduler:
    """Return a scheduler of a copy of a state, in which jobs progress as planned and lent nodes are in service again.

    Args:
        state: State of the cluster, left unchanged.
        policy: Placement policy, which sees events that never happen.
    """
    scheduler = Scheduler(forecast(state), policy)
    scheduler.end_lending(state.now_s)
    return scheduler


def ahead(
    scheduler: Scheduler, instants: int = INSTANTS, stuck: Collection[str] = (), coming: Iterable[Job] = ()
) -> Iterator[list[Entry]]:
    """Simulate a scheduler instant by instant, and yield the journal entries of each.

    Jobs take their worst case, and depart when their iterations, their stay or their budget are over. The simulation ends where
    nothing further happens, after `instants` instants, or before the departure of a job in `stuck`.

    Args:
        scheduler: Scheduler of a copy of the state (`simulated`).
        instants: Largest number of instants.
        stuck: Jobs whose departure is unknown.
        coming: Jobs that arrive, in order of their `arrival_s`.
    """
    state, planner, arrivals = scheduler.state, scheduler.planner, deque(coming)
    if planner.must_ask_policy:
        yield scheduler.step(state.now_s).entries
    planner.find_next_s(state.now_s)
    for _ in range(instants):
        next_s = arrivals[0].arrival_s if arrivals else inf
        now_s = max(min(next_s, state.next_change_s(), planner.next_s), state.now_s)
        if now_s == inf or any(job_id in stuck for job_id in _leaving(state, now_s + INSTANT_S)):
            return
        scheduler.jobs.end_stays(now_s)
        for job_id in state.pauses.ending(now_s + INSTANT_S):
            scheduler.jobs.resumed(job_id)
        while arrivals and arrivals[0].arrival_s <= now_s + INSTANT_S:
            scheduler.jobs.arrived(arrivals.popleft())
        yield scheduler.step(now_s).entries


def _leaving(state: State, until_s: float) -> Iterator[str]:
    """Yield the ids of the running jobs that depart by `until_s`."""
    yield from state.tables.departing(until_s)
    yield from state.charges.spent(until_s)
