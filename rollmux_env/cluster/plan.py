"""Plans: decisions of a policy, checked against numbered invariants before anything happens.

P1  every job is named at most once. A job that is moved or parked runs and is in no pause. A job that is placed waits, and it is
    its turn in the queue
P2  the nodes exist, are as many as the job asks for in its shape, and belong to its pools; the group has at least the job's
    training nodes; a move leaves the job's group or changes its shape
P3  no group has more than `max_group_size` members
P4  no node holds more than its memory
P5  no pool has more than `max_nodes`
P6  every member of a changed group keeps its SLO (policies with `keeps_slo`)
P7  a moved job would meet its SLO on average if it left when the pause ends
P8  a moved job is `movable`
P9  a parked job is `parkable`, has had its place for `min_run_s`, and would meet its SLO on average after one more pause
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Event, Moved, Parked, Placement
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.kernel.membership import may_pause
from rollmux_env.kernel.tables import TOLERANCE, Ints
from rollmux_env.keys.job import Job

_EARLY_S = 1e-6  # tolerance on `min_run_s`, seconds: times this close are one instant


@dataclass(frozen=True)
class Place:
    """Action that admits a waiting job.

    Attributes:
        job_id: Id of the waiting job.
        placement: Nodes that the job gets.
    """

    job_id: str
    placement: Placement


@dataclass(frozen=True)
class Move:
    """Action that gives a running job another placement, with a pause of `migration_s`.

    Attributes:
        job_id: Id of the running job.
        placement: Nodes on which the job continues.
    """

    job_id: str
    placement: Placement


@dataclass(frozen=True)
class Wait:
    """Action that leaves a waiting job in the queue.

    Attributes:
        job_id: Id of the waiting job.
    """

    job_id: str


@dataclass(frozen=True)
class Park:
    """Action that takes the nodes of a running job, which waits and continues later.

    Attributes:
        job_id: Id of the running job.
        for_job: Id of the waiting job that gets a place instead, or an empty text.
    """

    job_id: str
    for_job: str = ""


Action = Place | Move | Park | Wait
Plan = tuple[Action, ...]


class Policy(Protocol):
    """A placement policy. The same object serves `plan`, `bench` and a real run.

    A policy may also have these attributes:

    - `wakes_every_s`: Interval of `Ticked` events in seconds, counted from the first arrival. They come while jobs run.
    - `plans_switches`: Whether the periods and limits of its states include warm and cold starts (`State.switches`).
    - `queue_rules`: Rules by which waiting jobs are served, a `rollmux_env.scheduler.order.QueueRules`.
    - `only_places`: Whether a plan for a waiting job places this job alone, as `ArrivalPolicy` explains.
    - `timeless`: Whether a plan for a waiting job depends on no time and on no progress, as `ArrivalPolicy` explains.
    - `rearrange(state)`: Method that returns a plan which only moves jobs. It is called whenever the queue has been served.
    """

    @property
    def keeps_slo(self) -> bool:
        """Whether the plans must keep every SLO (P6)."""
        ...

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an event that has just been applied.

        Args:
            state: State after the event, for reading only.
            event: `Arrived` for a job that waits for a placement (repeated at `state.now_s` when the queue is served), `Departed`,
                or `Ticked`. After the last two a plan may only move and park jobs.

        Returns:
            The actions to carry out now. Either all of them happen or none.
        """
        ...


def plans_switches(policy: object) -> bool:
    """Return whether the periods and limits of a policy's states include warm and cold starts."""
    return bool(getattr(policy, "plans_switches", False))


def is_timeless(policy: object) -> bool:
    """Return whether a policy's plan for a waiting job depends on no time and on no progress."""
    return bool(getattr(policy, "timeless", False))


def may_move(state: State, job_id: str) -> bool:
    """Check P7 and P8: return whether a running job is `movable`, and would meet its SLO on average if it left when the pause ends.

    It does not check whether a pause is in progress, which P1 forbids.
    """
    row, jobs = state.row(job_id), state.view.jobs
    if not jobs["movable"][row]:
        return False
    stayed_s = state.now_s - float(jobs["admitted_s"][row])
    return bool(may_pause(stayed_s, state.cluster.migration_s, float(jobs["limit_s"][row]), state.iterations_done(job_id)))


def has_run_enough(state: State, job_id: str) -> bool:
    """Return whether a running job has had its place for `min_run_s`."""
    return state.now_s - state.stays.placed_at_s[job_id] >= state.cluster.min_run_s - _EARLY_S


def may_park(state: State, job_id: str) -> bool:
    """Check P9: return whether a running job can be parked now. A job in a pause cannot."""
    if not has_run_enough(state, job_id) or state.is_paused(job_id) or not state.job(job_id).may_be_parked:
        return False
    row, jobs = state.row(job_id), state.tables.job_records
    stayed_s = state.now_s - float(jobs["admitted_s"][row])
    return bool(may_pause(stayed_s, state.cluster.resume_pause_s, float(jobs["limit_s"][row]), state.iterations_done(job_id)))


def may_each_move(state: State, rows: Ints) -> NDArray[np.bool_]:
    """Return whether each running job may move now, shape (n,): it satisfies `may_move` and is in no pause.

    Args:
        state: State of the cluster.
        rows: Rows of the jobs in the job table, shape (n,).
    """
    job_ids = map(state.tables.job_id, rows.tolist())
    return np.array([not state.is_paused(job_id) and may_move(state, job_id) for job_id in job_ids], dtype=bool)


def carry_out(state: State, plan: Plan, keeps_slo: bool, passed: int = 0, queue: Sequence[str] | None = None) -> list[Event]:
    """Validate a plan and apply it to the state.

    Args:
        state: State to change.
        plan: Plan to carry out.
        keeps_slo: Whether the plan must keep P6.
        passed: Largest number of jobs at the head of the queue that wait although a later job is placed.
        queue: Ids of the waiting jobs in the order in which they are served, or None for `State.waiting`.

    Returns:
        The events of the moves, parks and admissions, in the order of the plan. `Wait` causes no event.

    Raises:
        PlanError: The plan breaks an invariant, whose number starts the message. The state must not be used afterwards.
    """
    if not isinstance(plan, tuple) or not all(isinstance(action, Action) for action in plan):
        raise PlanError("P1: the plan is not a tuple of Place, Move, Park and Wait")
    if not plan:
        return []
    _check_named(state, plan, passed, state.waiting if queue is None else queue)
    events: list[Admitted | Moved | Parked] = []
    for action in plan:
        if isinstance(action, Wait):
            continue
        if isinstance(action, Park):
            events.append(Parked(state.now_s, action.job_id, action.for_job))
            apply(state, events[-1])
            continue
        check_nodes(state, action.job_id, action.placement)
        kind = Admitted if isinstance(action, Place) else Moved
        event = kind(state.now_s, action.job_id, action.placement)
        apply(state, event)
        events.append(event)
    if not events:
        return []
    # Sizes, memory and SLOs are checked after all actions, because they need not hold halfway through a swap.
    for applied in events:
        if not isinstance(applied, Parked):
            _check_group(state, applied.job_id, keeps_slo)
    _check_pools(state)
    return [*events]


def after(state: State, plan: Plan, keeps_slo: bool = False) -> State:
    """Return the state after a plan, to compare plans before one is chosen. The state itself stays the same.

    Args:
        state: State of the cluster.
        plan: Plan to try. Its jobs need not be the first of the queue.
        keeps_slo: Whether a plan that would break an SLO is refused, too.

    Raises:
        PlanError: The plan breaks an invariant, whose number starts the message.
    """
    twin = state.copy()
    carry_out(twin, plan, keeps_slo, queue=[action.job_id for action in plan if isinstance(action, Place)])
    return twin


def _check_named(state: State, plan: Plan, passed: int, queue: Sequence[str]) -> None:
    """Check P1, P7, P8 and P9 of the jobs that a plan names. `passed` jobs at the head of the queue may be passed over."""
    named: set[str] = set()
    for action in plan:
        if action.job_id in named:
            raise PlanError(f"P1: the plan names job {action.job_id} twice")
        named.add(action.job_id)
        if isinstance(action, Move):
            _check_movable(state, action.job_id)
        elif isinstance(action, Park):
            _check_parkable(state, action.job_id)
        elif action.job_id not in state.waiting:
            raise PlanError(f"P1: job {action.job_id} is not waiting")
    placed = [action.job_id for action in plan if isinstance(action, Place)]
    first = queue.index(placed[0]) if placed and passed else 0
    if first > passed or placed != [*queue[first : first + len(placed)]]:
        raise PlanError(f"P1: the plan passes over job {queue[min(first, passed)]}, the first of the queue")


def _check_movable(state: State, job_id: str) -> None:
    if not state.is_running(job_id) or state.is_paused(job_id):
        raise PlanError(f"P1: job {job_id} is not running, or in a pause")
    if not state.job(job_id).movable:
        raise PlanError(f"P8: job {job_id} cannot be moved")
    if not may_move(state, job_id):
        raise PlanError(f"P7: job {job_id} has no time left for the pause of a move")


def _check_parkable(state: State, job_id: str) -> None:
    if not state.is_running(job_id) or state.is_paused(job_id):
        raise PlanError(f"P1: job {job_id} is not running, or in a pause")
    if not may_park(state, job_id):
        raise PlanError(f"P9: job {job_id} may not be parked now")


def check_nodes(state: State, job_id: str, placement: Placement) -> None:
    """Check P2: that the nodes of a placement exist and are those that the job asks for.

    Raises:
        PlanError: P2 does not hold.
    """
    job = state.job(job_id)
    if not 0 <= placement.shape <= (0 if placement.colocated else len(job.shapes)):
        raise PlanError(f"P2: job {job_id} has no shape {placement.shape}")
    if placement.colocated:
        _check_colocated(job, placement)
        return
    view = state.view
    jobs, groups = view.jobs, view.groups
    own = state.row(job_id)
    shape = state.tables.shape_rows(own)[placement.shape]
    pinned, wanted, asked = placement.rollout_nodes, int(jobs["rollout_nodes"][shape]), int(jobs["training_nodes"][shape])
    if len(pinned) + placement.new_rollout_nodes != wanted or placement.new_rollout_nodes < 0:
        raise PlanError(f"P2: job {job_id} asks for {wanted} rollout nodes")
    training_nodes, numbers = placement.training_nodes, set[int]()
    if placement.group is not None:
        row = _find_joined_row(state, job_id, placement)
        training_nodes = int(groups["training_nodes"][row])
        numbers = {*groups["node_number"][row, : groups["n_nodes"][row]].tolist()}
    if list(pinned) != sorted(set(pinned)) or not set(pinned) <= numbers:
        raise PlanError(f"P2: job {job_id} is pinned to rollout nodes that its group does not have")
    if training_nodes < asked:
        raise PlanError(f"P2: job {job_id} asks for {asked} training nodes, its group has {training_nodes}")


def _find_joined_row(state: State, job_id: str, placement: Placement) -> int:
    """Return the row of the group that a placement joins.

    Raises:
        PlanError: The job cannot join this group.
    """
    jobs, groups, own = state.view.jobs, state.view.groups, state.row(job_id)
    shape = state.tables.shape_rows(own)[placement.shape]
    row = None if placement.group is None else state.tables.group_rows.get(placement.group)
    if row is None or groups["exclusive"][row]:
        raise PlanError(f"P2: job {job_id} cannot join group {placement.group}: there is none")
    if jobs["group"][own] == row and state.shape(job_id) == placement.shape:
        raise PlanError(f"P2: job {job_id} is in group {placement.group} already")
    if any(jobs[pool][shape] != groups[pool][row] for pool in ("rollout_pool", "training_pool")):
        raise PlanError(f"P2: job {job_id} cannot join group {placement.group}: it is on other pools")
    return row


def _check_colocated(job: Job, placement: Placement) -> None:
    """Check P2 for a job that runs both phases on training nodes."""
    wanted = job.colocated.nodes if job.colocated else job.training.nodes
    rollout_nodes = placement.rollout_nodes or placement.new_rollout_nodes
    if placement.group is not None or placement.training_nodes != wanted or rollout_nodes:
        raise PlanError(f"P2: job {job.id} runs co-located on {wanted} training nodes of its own")


def _check_group(state: State, job_id: str, keeps_slo: bool) -> None:
    view, pools = state.view, state.limits.pools
    groups, row = view.groups, view.jobs["group"][state.row(job_id)]  # reading columns is three times as fast as record fields
    if groups["n_members"][row] > state.limits.group_size_max:
        raise PlanError(f"P3: the group of job {job_id} has more than {state.limits.group_size_max} members")
    rollout, training, nodes = groups["rollout_pool"][row], groups["training_pool"][row], groups["n_nodes"][row]
    fullest_gb = max(groups["node_gb"][row, :nodes].tolist(), default=0.0)
    if fullest_gb > pools["node_gb"][rollout] * (1 + TOLERANCE):
        raise PlanError(f"P4: a rollout node of job {job_id} would hold {fullest_gb:g} GB")
    if (held_gb := groups["training_gb"][row]) > pools["node_gb"][training] * (1 + TOLERANCE):
        raise PlanError(f"P4: the training nodes of job {job_id} would hold {held_gb:g} GB")
    kept_gb = max(groups["node_device_gb"][row, :nodes].tolist(), default=0.0)
    if kept_gb > pools["device_gb"][rollout] * (1 + TOLERANCE):
        raise PlanError(f"P4: jobs would keep {kept_gb:g} GB on each GPU of a rollout node of job {job_id}")
    if (kept_gb := groups["training_device_gb"][row]) > pools["device_gb"][training] * (1 + TOLERANCE):
        raise PlanError(f"P4: jobs would keep {kept_gb:g} GB on each GPU of the training nodes of job {job_id}")
    if keeps_slo and groups["period_s"][row] > groups["limit_s"][row] * (1 + TOLERANCE):
        raise PlanError(f"P6: a member of the group of job {job_id} would break its SLO")


def _check_pools(state: State) -> None:
    used, limits = [sum(sides) for sides in state.nodes.tolist()], state.limits.pools["nodes_max"].tolist()
    for number, (nodes, limit) in enumerate(zip(used, limits, strict=True)):
        if nodes > limit:
            raise PlanError(f"P5: the plan takes {nodes} {[*state.pools][number]} nodes, the pool has {limit:g}")
