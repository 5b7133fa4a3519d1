"""Naive sharing: jobs share nodes as a policy places them, but no dispatcher orders their phases.

A phase begins, on all its nodes, as soon as its job is ready for it. Phases on the same node share it evenly, so that a phase is as
slow as on its most crowded node. This is the best that sharing without an order can do: it does not count the memory of two
concurrent phases, interference in caches, or the time to exchange weights. Alone, a phase takes its worst case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollmux_env.cluster.events import Admitted, JobProgress
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.keys.unsupported import refuse_network
from rollmux_env.replay.checks import check_state
from rollmux_env.replay.run import Arrivals, Run, placements, waits_for_ever
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.seats import seating_of
from rollmux_env.scheduler.ticks import INSTANT_S

Node = tuple[int, str, int]  # group, pool, number
_TOLERANCE_S = 1e-9  # remaining seconds below which a phase is over


@dataclass
class _Cycle:
    """A job that runs through its phases.

    Attributes:
        job_id: Identifier of the job.
        iterations: Number of iterations of its stay, or None.
        leaves_s: Time at which its stay ends, in seconds.
        phases: Seconds alone and nodes of each phase.
        left_s: Remaining seconds of the running phase at full speed.
        place: Index of the running phase.
        done: Number of finished iterations.
        busy_s: Node-seconds that it has used of each pool.
    """

    job_id: str
    iterations: int | None
    leaves_s: float
    phases: tuple[tuple[float, tuple[Node, ...]], ...]
    left_s: float
    place: int = 0
    done: int = 0
    busy_s: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "training": 0.0})

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.phases[self.place][1]


def replay_unordered(scenario: Scenario, policy: Policy, check: bool = False) -> Run:
    """Replay a scenario without an order of phases.

    Args:
        scenario: Scenario to replay.
        policy: Placement policy, which moves no job.
        check: Whether to assert the invariants of `rollmux_env.replay.checks` whenever placements may have changed.

    Raises:
        InputError: If a job is stale, since it is not defined how it would share a node with itself, or syncs share a link.
        PlanError: If the policy broke an invariant, or left jobs waiting and no event remains.
    """
    refuse_network(scenario.cluster, "--policy naive")
    for job in scenario.jobs:
        if job.staleness:
            raise InputError(f"job {job.id}: staleness: does not go with --policy naive, where phases have no order")
    run = Run(scenario, State(scenario.cluster, observed=True))
    state, scheduler, arrivals = run.state, Scheduler(run.state, policy), Arrivals(scenario)
    run.decision_s = scheduler.server.decision_s
    cycles: list[_Cycle] = []
    logged = 0
    while state.departed < len(scenario.jobs):
        speeds = _speeds(cycles)
        ends_s = [state.now_s + cycle.left_s / speed for cycle, speed in zip(cycles, speeds, strict=True)]
        now_s = max(state.now_s, min([arrivals.next_s, *ends_s]))
        if now_s == float("inf"):
            raise PlanError(waits_for_ever(state))
        _advance(cycles, speeds, now_s - state.now_s)
        state.now_s = now_s
        leaving = [cycle for cycle in cycles if cycle.left_s <= _TOLERANCE_S and _next_phase(cycle, state, scheduler, now_s)]
        if leaving or arrivals.next_s <= now_s + INSTANT_S:
            cycles = [cycle for cycle in cycles if cycle not in leaving]
            for _ in placements(run, scheduler, now_s, arrivals):
                pass
            cycles += [_begin(state, event.job_id) for event in run.log[logged:] if isinstance(event, Admitted)]
            logged = len(run.log)
            if check:
                check_state(state, arrivals.taken, policy.keeps_slo)
    return run


def _speeds(cycles: Iterable[_Cycle]) -> list[float]:
    """Return the speed of each job's phase: one over the number of phases on its most crowded node."""
    crowd = Counter(node for cycle in cycles for node in cycle.nodes)
    return [1 / max((crowd[node] for node in cycle.nodes), default=1) for cycle in cycles]


def _advance(cycles: list[_Cycle], speeds: list[float], seconds: float) -> None:
    for cycle, speed in zip(cycles, speeds, strict=True):
        cycle.left_s -= seconds * speed
        for _, pool, _ in cycle.nodes:
            cycle.busy_s[pool] += seconds * speed


def _begin(state: State, job_id: str) -> _Cycle:
    """Return a job at the start of its first rollout."""
    seating, job = seating_of(state, None, job_id), state.job(job_id)
    training = tuple((seating.group, "training", number) for number in seating.training)
    rollout = training if seating.colocated else tuple((seating.group, "rollout", number) for number in seating.rollout)
    leaves_s = float(state.tables.jobs.leaves_s[state.row(job_id)])
    rollout_s, training_s, sync_s = state.planned_s(job_id)
    phases = ((rollout_s, rollout), (training_s, training), *([(sync_s, ())] if sync_s > 0.0 else []))
    return _Cycle(job_id, job.iterations, leaves_s, phases, rollout_s)


def _next_phase(cycle: _Cycle, state: State, scheduler: Scheduler, now_s: float) -> bool:
    """Begin the next phase of a job, and return whether the job departs instead."""
    cycle.place = (cycle.place + 1) % len(cycle.phases)
    cycle.left_s = cycle.phases[cycle.place][0]
    if cycle.place:
        return False
    cycle.done += 1
    scheduler.jobs.iterated(JobProgress(cycle.job_id, cycle.done, cycle.busy_s["rollout"], cycle.busy_s["training"]))
    done = cycle.done == cycle.iterations or now_s >= cycle.leaves_s - INSTANT_S
    leaves = done or state.charges.is_spent(state.row(cycle.job_id), now_s + INSTANT_S)
    if leaves:
        scheduler.jobs.left(cycle.job_id, over_budget=not done)
    return leaves
