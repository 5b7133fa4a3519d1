"""Where a job that runs would go if it came now: a policy is asked as at an arrival, and what it says is a move."""

from __future__ import annotations

from rollmux_env.cluster.events import Arrived, Departed, Placement, Withdrawn
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, carry_out
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import PlanError
from rollmux_env.scheduler.asking import ask


def better_place(state: State, job_id: str, policy: Policy) -> Plan:
    """The move of a running job to where the policy would place it now; nothing where that is as it is now or may not be.

    The state is changed for the question: there the job leaves, and arrives again with what is known of it by now, before those
    that wait.

    Args:
        state: as it is now, with the job's progress; it is left as it is.
        policy: one of its own, since it sees what never happens.
    """
    job, home = state.job(job_id), state.group_of(job_id)
    if state.is_paused(job_id) or not job.movable:
        return ()
    twin = state.copy()
    for waiting in state.waiting:
        apply(twin, Withdrawn(state.now_s, waiting))
    apply(twin, Departed(state.now_s, job_id))
    arrived = Arrived(state.now_s, job.model_copy(update={"arrival_s": state.now_s}))
    apply(twin, arrived)
    places = [action.placement for action in ask(policy, twin, arrived) if isinstance(action, Place) and action.job_id == job_id]
    if not places or (places[0].shape == state.shape(job_id) and not _elsewhere(places[0], home.id, len(home.jobs))):
        return ()
    plan = (Move(job_id, places[0]),)
    try:
        carry_out(state.copy(), plan, policy.keeps_slo)  # its old nodes are held until it has moved, and the move must be allowed
    except PlanError:
        return ()
    return plan


def _elsewhere(placement: Placement, home: int, members: int) -> bool:
    """Whether a placement is another one than the group that a job is in; alone it is alone everywhere."""
    return placement.group != home and not (placement.group is None and members == 1)
