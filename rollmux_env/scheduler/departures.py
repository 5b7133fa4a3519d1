"""Who leaves when, as the fluid replay has it: jobs progress at one iteration a period until something changes."""

from __future__ import annotations

from rollmux_env.cluster.state import State
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.planner import INSTANT_S


def next_change_s(state: State) -> float:
    """When the next running job leaves, or goes on after a move; infinite where none does."""
    return min(state.next_departure_s(), state.charges.next_end_s(), state.next_resume_s())


def tell_departures(state: State, scheduler: Scheduler, now_s: float) -> None:
    """Let jobs leave that have done their stay by now, or spent their budget."""
    done = state.departing(now_s + INSTANT_S)
    for job_id in done:
        scheduler.left(job_id)
    for job_id in state.over_budget(now_s + INSTANT_S):
        if job_id not in done:
            scheduler.left(job_id, over_budget=True)
