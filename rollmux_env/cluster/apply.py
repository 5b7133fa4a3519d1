"""`apply(state, event)`: the only writer of a state, with one function for each kind of event."""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections.abc import Callable, Sequence

from rollmux_env.cluster import events, link
from rollmux_env.cluster.charges import NO_WORK, NOTHING, Share
from rollmux_env.cluster.demand import Demand, demand_of, limits_of, write_known
from rollmux_env.cluster.events import Event
from rollmux_env.cluster.group import NodeCounts, nodes_of
from rollmux_env.cluster.months import Month
from rollmux_env.cluster.state import State
from rollmux_env.cluster.stays import ParkedStay
from rollmux_env.cluster.tables import Tables
from rollmux_env.cluster.totals import totals_of_all, work_of
from rollmux_env.kernel import membership, transitions
from rollmux_env.kernel.promises import promise, promised
from rollmux_env.kernel.tables import COLD, NOWHERE, ROLLOUT, TRAINING
from rollmux_env.keys.cluster import SIDES
from rollmux_env.keys.job import Job


def apply(state: State, event: Event) -> None:
    """Change a state by one event. Deterministic, and the only writer of a state.

    Events are facts. Whether a decision is allowed is checked by `rollmux_env.cluster.plan.carry_out`.
    """
    change(state, event)
    keep_promises(state)


def change(state: State, event: Event) -> None:
    """Apply an event without `keep_promises`, for a sequence of events between which no policy decides."""
    if state.tables.warm and event.at_s > state.now_s:
        _cool_down(state.tables)
    state.now_s = float(event.at_s)  # an integer clock would compile all kernels a second time
    _CHANGES[type(event)](state, event)
    if state.cluster.network is not None and not isinstance(event, events.Progressed | events.Ticked):
        state.link_is_full = link.share(state, _settle, _replan_member)


def keep_promises(state: State) -> None:
    """Recompute how much time all jobs have left by their SLOs. It follows from the rest of the state, and visits every job."""
    if state.switches:
        promise(state.view, len(state.tables.models), state.observed, state.cluster.migration_s)
        for job_id, parked in state.stays.parked.items():
            _promise_parked(state, state.row(job_id), parked.placed_s + state.cluster.resume_pause_s)


def _promise_parked(state: State, row: int, stayed_s: float) -> None:
    """Write the limit of a parked job, which has spent some of its time and done some of its iterations."""
    job = state.tables.job_records[row]
    credit_s = 0.0 if job["admitted_warm"] else float(state.tables.job_records["cold_s"][job["first_shape"]])
    limits = promised(job, credit_s, stayed_s, float(job["duration_s"]), float(job["done"]))
    for one in {row, *state.tables.shape_rows(row)}:
        state.tables.job_records[["enters_limit_s", "enters_per_cold"]][one] = limits


def forecast(state: State) -> State:
    """Return an independent state in which jobs progress at one iteration per period from now on, even if `state` is observed."""
    twin = state.copy()
    if state.observed:
        twin.observed = False
        tables = twin.tables
        for group in tables.order.tolist():
            tables.group_records["settled_s"][group] = state.now_s
            membership.refresh(tables.job_records, tables.group_records, group)
            tables.departs_s[group] = tables.group_records["departs_s"][group]
    return twin


# Waiting jobs.


def _arrived(state: State, event: events.Arrived) -> None:
    job, tables = event.job, state.tables
    demands = _demands(state, job)
    nodes, steps = max(demand.rollout_nodes for demand in demands), max(len(demand.by_nodes) for demand in demands)
    before = tables.job_rows.get(job.id)
    state.stays.begin_again(job.id, job.class_name)
    earlier = NO_WORK if before is None else work_of(state, job.id)
    row = tables.add(job, nodes, steps)
    state.charges.add(row, job, before, earlier)
    state.arrived += 1
    _describe(state, row, job, demands)
    insert = insort_left if isinstance(event, events.Requeued) else insort_right
    insert(state.waiting, job.id, key=lambda job_id: -state.job(job_id).priority)


def _withdrawn(state: State, event: events.Withdrawn) -> None:
    state.waiting.remove(event.job_id)
    _forget_estimate(state.tables, state.row(event.job_id))
    state.stays.parked.pop(event.job_id, None)


def _forget_estimate(tables: Tables, row: int) -> None:
    for one in {row, *tables.shape_rows(row)}:
        tables.estimated.pop(one, None)


def _warm(state: State, event: events.Warm) -> None:
    tables, row = state.tables, state.row(event.job_id)
    _cool_down(tables)
    tables.warm = [row, int(tables.job_records["first_shape"][row])]  # only shape 0 can enter warm
    tables.job_records["warm_group"][tables.warm] = NOWHERE if event.group is None else event.group


def _cool_down(tables: Tables) -> None:
    """End the instant in which a job could enter a group without a cold start."""
    tables.job_records["warm_group"][tables.warm] = COLD
    tables.warm = []


def _demands(state: State, job: Job) -> list[Demand]:
    """Return the demand of a job in each of its shapes."""
    return [demand_of(job, state.cluster, shape) for shape in range(1 + len(job.shapes))]


def _describe(state: State, row: int, job: Job, demands: Sequence[Demand]) -> None:
    """Write the figures of a job into its row and the rows of its shapes."""
    tables = state.tables
    tables.widest = max(tables.widest, *(demand.rollout_nodes for demand in demands))
    for one in {row, *tables.shape_rows(row)}:
        tables.models[one] = job
        if job.estimate is not None:
            tables.estimated[one] = job.model_copy(update={"iterations": job.estimate.iterations})
        write_known(tables.job_records, one, job, demands[tables.job_records["of_shape"][one]], state.pools, state.switches)


# Placements.


def _admitted(state: State, event: events.Admitted) -> None:
    row, jobs = state.row(event.job_id), state.tables.job_records
    state.waiting.remove(event.job_id)
    transitions.begin_stay(jobs, row, state.now_s)
    if (parked := state.stays.parked.pop(event.job_id, None)) is not None:
        _resume(state, event.job_id, parked)
        _enter(state, row, event.placement)
    else:
        state.charges.admit(row, state.now_s)
        _enter(state, row, event.placement)
        jobs["admitted_warm"][row] = jobs["entered_warm"][row]
    state.stays.placed_at_s[event.job_id] = state.now_s
    _cool_down(state.tables)


def _resume(state: State, job_id: str, parked: ParkedStay) -> None:
    """Begin the pause of a parked job that gets a place again. Its time without a place counts for nothing."""
    row, jobs, pause_s = state.row(job_id), state.tables.job_records, state.cluster.resume_pause_s
    jobs["admitted_s"][row] = state.now_s - parked.placed_s
    state.charges.admit(row, state.now_s)
    nothing = NodeCounts(int(jobs["rollout_pool"][row]), int(jobs["training_pool"][row]), 0, 0)
    state.pauses.begin(job_id, state.now_s + pause_s, nothing)
    transitions.begin_pause(jobs, row, state.now_s, pause_s)


def _parked(state: State, event: events.Parked) -> None:
    row, jobs = state.row(event.job_id), state.tables.job_records
    _settle(state, int(jobs["group"][row]))
    _give_back(state, _leave(state, row))
    _reshape(state, row, 0)
    state.charges.depart(row)
    del state.stays.placed_at_s[event.job_id]
    state.stays.parked[event.job_id] = ParkedStay(state.now_s, state.now_s - float(jobs["admitted_s"][row]), event.for_job)
    state.waiting.insert(_turn(state, row), event.job_id)


def _turn(state: State, row: int) -> int:
    """Return the position in the queue of a job by its priority and its first arrival."""
    models, rows = state.tables.models, state.tables.job_rows
    own, priority = (models[row].arrival_s, row), models[row].priority
    for position, job_id in enumerate(state.waiting):
        other = rows[job_id]
        job = models[other]
        if job.priority < priority or (job.priority == priority and (job.arrival_s, other) > own):
            return position
    return len(state.waiting)


def _begun(state: State, event: events.Begun) -> None:
    row, jobs = state.row(event.job_id), state.tables.job_records
    jobs["admitted_s"][row] = state.now_s
    jobs["admitted_warm"][row] = jobs["entered_warm"][row] = 1


def _moved(state: State, event: events.Moved) -> None:
    row, jobs, pause_s = state.row(event.job_id), state.tables.job_records, state.cluster.migration_s
    _settle(state, int(jobs["group"][row]))
    left = _leave(state, row, event.placement)
    state.pauses.begin(event.job_id, state.now_s + pause_s, left)
    state.charges.pause(row, state.now_s, left.share(state.prices))
    transitions.begin_pause(jobs, row, state.now_s, pause_s)
    _enter(state, row, event.placement)
    state.stays.placed_at_s[event.job_id] = state.now_s


def _resumed(state: State, event: events.Resumed) -> None:
    state.charges.pause(state.row(event.job_id), state.now_s, NOTHING)
    _give_back(state, state.pauses.end(event.job_id))


def _departed(state: State, event: events.Departed) -> None:
    row, jobs = state.row(event.job_id), state.tables.job_records
    _settle(state, int(jobs["group"][row]))
    if not state.observed and not isinstance(event, events.OverBudget):
        transitions.end_stay(jobs, row)
    _give_back(state, _leave(state, row))
    state.charges.depart(row)
    _forget_estimate(state.tables, row)
    iterations = float(jobs["done"][row]) + state.charges.earlier_work(row).iterations
    length_h = iterations * float(jobs["solo_s"][row]) / 3600
    state.stays.end(event.job_id, state.tables.models[row].class_name, length_h)
    state.departed += 1


def _enter(state: State, row: int, placement: events.Placement) -> None:
    """Make a job the last member of its placement's group, which may be new."""
    tables, jobs = state.tables, state.tables.job_records
    kept_nodes, new_nodes = placement.rollout_nodes, placement.new_rollout_nodes
    to = NOWHERE if placement.group is None else placement.group
    added = placement.group is not None and new_nodes > 0
    jobs["entered_warm"][row] = jobs["warm_group"][row] == to and not added and placement.shape == 0
    _reshape(state, row, placement.shape)
    jobs["entered_done"][row] = jobs["done"][row]
    if placement.group is not None:
        group = tables.group_rows[placement.group]
    else:
        group, number = tables.open_group()
        first, training_nodes = jobs[row], placement.training_nodes
        transitions.start_group(tables.group_records, state.nodes, group, number, first, training_nodes, state.now_s)
    if placement.colocated:
        _attach_colocated(state, row, group)
    else:
        tables.make_room(group, new_nodes)
        if placement.group is not None:
            _settle(state, group)
        if kept_nodes:
            jobs["pins"][row, : len(kept_nodes)] = kept_nodes
        transitions.enter(jobs, tables.group_records, state.nodes, row, group, len(kept_nodes), new_nodes)
    _charge(state, group)


def _reshape(state: State, row: int, shape: int) -> None:
    """Switch a job to the columns of a shape. Busy time so far stays with the pools on which it was spent."""
    jobs = state.tables.job_records
    if not jobs["more_shapes"][row]:
        return
    job = jobs[row]
    before = {side: int(job[f"{side}_pool"]) for side in SIDES}
    membership.set_shape(jobs, row, shape)
    for side, pool in before.items():
        if pool != job[f"{side}_pool"]:
            state.busy_before_s[pool] += job[f"{side}_busy_s"]
            state.busy_before_s[job[f"{side}_pool"]] -= job[f"{side}_busy_s"]


def _attach_colocated(state: State, row: int, group: int) -> None:
    """Let a job run both phases on the training nodes of a group without other members."""
    tables, job = state.tables, state.tables.models[row]
    own = job.colocated
    times_s = (own.rollout_s, own.training_s) if own else (job.rollout.worst_case_s, job.training.worst_case_s)
    membership.attach_colocated(tables.job_records, tables.group_records, row, group, *times_s)


def _leave(state: State, row: int, to: events.Placement | None = None) -> NodeCounts:
    """Remove a job from its settled group, and return the nodes that become unused.

    Args:
        state: State to change.
        row: Row of the job.
        to: Placement to which the job moves, or None if it departs. Nodes that it keeps there do not become unused.
    """
    tables, jobs, groups = state.tables, state.tables.job_records, state.tables.group_records
    group = int(jobs["group"][row])
    stays = to is not None and to.group == int(groups["id"][group])
    staying = to.rollout_nodes if to is not None and stays else ()
    jobs["pins"][row, : len(staying)] = staying
    dropped, training_nodes = transitions.leave(jobs, groups, row, len(staying), stays)
    state.charges.hold(row, state.now_s, NOTHING)
    if groups["n_members"][group] > 0:
        _charge(state, group)
    elif not stays:
        tables.close_group(group)
    rollout_pool, training_pool = (int(groups[f"{side}_pool"][group]) for side in SIDES)
    return NodeCounts(rollout_pool, training_pool, dropped, training_nodes)


def _give_back(state: State, nodes: NodeCounts) -> None:
    state.nodes[nodes.rollout_pool, ROLLOUT] -= nodes.rollout_nodes
    state.nodes[nodes.training_pool, TRAINING] -= nodes.training_nodes


# Changes of groups.


def _settle(state: State, group: int) -> None:
    """Bring the progress of a group's members up to now, before the group changes."""
    if state.observed:
        state.tables.group_records["settled_s"][group] = state.now_s
    else:
        membership.settle(state.tables.job_records, state.tables.group_records, group, state.now_s)


def _charge(state: State, group: int) -> None:
    """Charge a changed group to its members from now on."""
    tables = state.tables
    tables.departs_s[group] = tables.group_records["departs_s"][group]
    members = tables.members(group)
    share = nodes_of(tables, group).share(state.prices, len(members))
    for row in members:
        state.charges.hold(row, state.now_s, share)


def _replan_member(state: State, row: int, group: int) -> None:
    """Update a settled group whose member has other times or memory than when it was placed."""
    tables = state.tables
    if tables.group_records["exclusive"][group]:
        _attach_colocated(state, row, group)
    else:
        membership.replan(tables.job_records, tables.group_records, row)
    tables.departs_s[group] = tables.group_records["departs_s"][group]


# Changes of knowledge.


def _reprofiled(state: State, event: events.Reprofiled) -> None:
    row, job = state.row(event.job.id), event.job
    group = int(state.tables.job_records["group"][row])
    if group != NOWHERE:
        _settle(state, group)
    _describe(state, row, job, _demands(state, job))
    if group != NOWHERE:
        _replan_member(state, row, group)


def _progressed(state: State, event: events.Progressed) -> None:
    for job_id, *done in event.jobs:
        row = state.row(job_id)
        for column, value in zip(("done", "rollout_busy_s", "training_busy_s"), done, strict=True):
            state.tables.job_records[column][row] = value


def _ticked(state: State, event: events.Ticked) -> None:
    """Change nothing: `change` has set the clock."""


def _resized(state: State, event: events.Resized) -> None:
    sized = {
        name: pool.model_copy(update={"max_nodes": getattr(event, f"{name}_nodes")}) for name, pool in state.cluster.pools.items()
    }
    state.cluster = state.cluster.with_pools(sized)
    state.limits = limits_of(state.cluster)


def _lent(state: State, event: events.Lent) -> None:
    counts = {name: getattr(event, f"{name}_nodes") for name in state.cluster.pools}
    usd = sum(count * state.cluster.pools[name].usd_per_node_hour for name, count in counts.items())
    state.lent_nodes = counts
    state.charges.lend(state.now_s, event.users, Share(sum(counts.values()), usd))


def _quota_set(state: State, event: events.QuotaSet) -> None:
    state.cluster = state.cluster.with_quota(event.user, event.quota)


def _month_begun(state: State, event: events.MonthBegun) -> None:
    state.months = (*state.months, Month(event.month, totals_of_all(state)))
    state.charges.begin_month(state.now_s)


def _carried(state: State, event: events.Carried) -> None:
    for usage in event.usage:
        state.charges.carry(usage.user, state.now_s, usage.node_s, usage.month_s)
    for length in event.lengths_h:
        state.stays.add_length(length.job_id, length.class_name, length.length_h)


_CHANGES: dict[type[Event], Callable[..., None]] = {
    events.Arrived: _arrived,
    events.Requeued: _arrived,
    events.Warm: _warm,
    events.Admitted: _admitted,
    events.Begun: _begun,
    events.Moved: _moved,
    events.Resumed: _resumed,
    events.Departed: _departed,
    events.OverBudget: _departed,
    events.Parked: _parked,
    events.Withdrawn: _withdrawn,
    events.Reprofiled: _reprofiled,
    events.Progressed: _progressed,
    events.Ticked: _ticked,
    events.Resized: _resized,
    events.Lent: _lent,
    events.QuotaSet: _quota_set,
    events.MonthBegun: _month_begun,
    events.Carried: _carried,
}
