"""Replay with lending: the idle training nodes of a group help to sample responses of its members.

Today's systems do this for one job (verl #7373, `enable_switch` of its `separate_async` trainer); here it is extended to groups. A
job's `colocated` block says how fast training nodes sample; without one they are as fast as its rollout nodes. Work is divided
without loss, tails cause no waiting, and members get help in the best order, so this is an upper bound of what lending can do.

The iteration of a member that is alone in its group is exact. If several members share nodes, their period is shortened by the
factor by which lending shortens the largest of their cycles and of their nodes' loads, which is a lower bound of the period. A
linear program finds it by choosing the help that each member's rollout gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from scipy.optimize import linprog

from rollmux_env.cluster.events import JobProgress
from rollmux_env.cluster.group import Group
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.keys.job import Job
from rollmux_env.keys.unsupported import refuse_network
from rollmux_env.replay.checks import check_state
from rollmux_env.replay.run import Arrivals, Run, initial_state, placements, waits_for_ever
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.ticks import INSTANT_S

_REMAINDER_TOLERANCE = 1e-9  # relative remainder below which all iterations are done


@dataclass(frozen=True)
class Borrower:
    """A member of a group whose rollouts can be helped by training nodes.

    Attributes:
        rollout_s: Rollout of an iteration in the member's placement, in seconds.
        training_s: Training of an iteration in the member's placement, in seconds.
        sync_s: Sync of an iteration, in seconds.
        there_s: The rollout on the group's training nodes alone, in seconds.
        come_s: Time until training nodes begin to sample, in seconds.
        back_s: Time until training nodes train again, in seconds.
        staleness: Staleness of the job.
        nodes: Rollout nodes of the member.
    """

    rollout_s: float
    training_s: float
    sync_s: float
    there_s: float
    come_s: float
    back_s: float
    staleness: int
    nodes: tuple[int, ...]


Shorten = Callable[[tuple[Borrower, ...]], float]  # function from the members of a group to the factor of its period


def loads_s(members: tuple[Borrower, ...]) -> float:
    """Return the busy seconds of the busiest node in a period."""
    rollouts_s = (sum(one.rollout_s for one in members if node in one.nodes) for node in _nodes(members))
    return max(sum(one.training_s for one in members), *rollouts_s)


def cycle_s(member: Borrower, phases_s: float) -> float:
    """Return the least period of a member whose two phases together take `phases_s` seconds."""
    return (phases_s + member.sync_s) / (1 + member.staleness)


def _nodes(members: tuple[Borrower, ...]) -> list[int]:
    return sorted({node for one in members for node in one.nodes})


def lent_share(members: tuple[Borrower, ...]) -> float:
    """Return the factor by which lending shortens a group's period: 1 if lending does not pay."""
    nodes = _nodes(members)
    alone_s = max(loads_s(members), *(cycle_s(one, one.rollout_s + one.training_s) for one in members))
    n = len(members)
    rows: list[list[float]] = []  # coefficients of the period, of each member's rollout, and of the help that it gets
    most: list[float] = []

    def at_most(limit: float, period: float, rollouts: Mapping[int, float], helped: Mapping[int, float]) -> None:
        rows.append([period, *(rollouts.get(k, 0.0) for k in range(n)), *(helped.get(k, 0.0) for k in range(n))])
        most.append(limit)

    for k, one in enumerate(members):
        at_most(-one.rollout_s, 0, {k: -1.0}, {k: -one.rollout_s / one.there_s})
        at_most(-one.come_s, 0, {k: -1.0}, {k: 1.0})
        at_most(-one.training_s - one.back_s - one.sync_s, -1.0 - one.staleness, {k: 1.0}, {})
    for node in nodes:
        at_most(0.0, -1.0, {k: 1.0 for k, one in enumerate(members) if node in one.nodes}, {})
    busy_s = sum(one.training_s + one.come_s + one.back_s for one in members)
    at_most(-busy_s, -1.0, {}, dict.fromkeys(range(n), 1.0))
    solved = linprog([1.0] + [0.0] * (2 * n), A_ub=np.array(rows), b_ub=np.array(most))
    return min(1.0, float(solved.fun) / alone_s) if solved.success else 1.0


@dataclass
class _Running:
    """A running job.

    Attributes:
        job: Job.
        done: Number of iterations, with fractions.
        period_s: Period of an iteration, in seconds.
    """

    job: Job
    done: float = 0.0
    period_s: float = inf


def replay_shortened(scenario: Scenario, policy: Policy, option: str, shorten: Shorten, check: bool = False) -> Run:
    """Replay a scenario in steady periods that are shorter than the placement policy knows.

    Args:
        scenario: Scenario to replay.
        policy: Placement policy.
        option: Name of the option that shortens periods, for error messages.
        shorten: Function that returns the factor of a group's period.
        check: Whether to assert the invariants of `rollmux_env.replay.checks` after every instant.

    Raises:
        InputError: If syncs share a link, or both phases run on the same nodes.
        PlanError: If the policy broke an invariant, or left jobs waiting and no event remains.
    """
    refuse_network(scenario.cluster, f"{option}=true")
    if scenario.cluster.one_device:
        raise InputError(f"cluster.one_device: does not go with {option}=true: rollouts run on the training nodes anyway")
    run = Run(scenario, initial_state(scenario.cluster, policy, observed=True))
    state, scheduler, arrivals = run.state, Scheduler(run.state, policy), Arrivals(scenario)
    run.decision_s = scheduler.server.decision_s
    running: dict[str, _Running] = {}
    shares: dict[tuple[Borrower, ...], float] = {}
    while state.departed < len(scenario.jobs):
        before_s = state.now_s
        others_s = min(arrivals.next_s, state.pauses.next_end_s(), state.charges.next_end_s(), scheduler.planner.ticks.next_s)
        now_s = max(before_s, min([others_s, *(_leaves_s(state, one) for one in running.values())]))
        if now_s == inf:
            raise PlanError(waits_for_ever(state))
        for one in running.values():
            if not state.is_paused(one.job.id):
                one.done += (now_s - before_s) / one.period_s
            scheduler.jobs.iterated(JobProgress(one.job.id, one.done, 0.0, 0.0))
        state.now_s = now_s
        for job_id in [job_id for job_id, one in running.items() if _is_over(state, one)]:
            del running[job_id]
            scheduler.jobs.left(job_id)
        for job_id in state.charges.spent(now_s + INSTANT_S):
            if running.pop(job_id, None) is not None:
                scheduler.jobs.left(job_id, over_budget=True)
        for _ in placements(run, scheduler, now_s, arrivals):
            pass  # without phases there are no commands to carry out
        _settle(state, running, shares, shorten)
        if check:
            check_state(state, arrivals.taken, policy.keeps_slo)
    return run


def _settle(state: State, running: dict[str, _Running], shares: dict[tuple[Borrower, ...], float], shorten: Shorten) -> None:
    """Set the periods of all groups. The factor is computed once for the same members."""
    for group in state.group_list():
        members = tuple(_borrowers(state, group))
        if members not in shares:
            shares[members] = shorten(members)
        for job_id in group.jobs:
            running.setdefault(job_id, _Running(state.job(job_id))).period_s = group.period_s * shares[members]


def _borrowers(state: State, group: Group) -> Iterable[Borrower]:
    for job_id in group.jobs:
        job, (rollout_s, training_s, sync_s) = state.job(job_id), state.planned_s(job_id)
        there_s = rollout_s
        if job.colocated is not None:
            there_s = job.colocated.rollout_s * job.colocated.nodes / group.training_nodes
        come_s, back_s = job.rollout.switch.warm_s, job.training.switch.warm_s
        yield Borrower(rollout_s, training_s, sync_s, there_s, come_s, back_s, job.staleness, state.pins(job_id))


def _leaves_s(state: State, one: _Running) -> float:
    """Return the time in seconds at which a job departs if nothing changes before."""
    row = state.tables.job_records[state.row(one.job.id)]
    if one.job.iterations is None:
        return float(row["leaves_s"])
    begins_s = max(state.now_s, float(row["paused_until_s"]))
    return begins_s + (one.job.iterations - one.done) * one.period_s


def _is_over(state: State, one: _Running) -> bool:
    if one.job.iterations is not None:
        return one.done >= one.job.iterations * (1 - _REMAINDER_TOLERANCE)
    return bool(state.tables.job_records[state.row(one.job.id)]["leaves_s"] <= state.now_s + INSTANT_S)
