"""The state of a cluster, and `apply`, the only writer of it."""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from rollmux_env.cluster import link
from rollmux_env.cluster.charges import NOTHING, Charges
from rollmux_env.cluster.demand import Demand, demand_of, limits_of, write_known
from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Begun,
    Departed,
    Event,
    Moved,
    OverBudget,
    Placement,
    Progressed,
    Reprofiled,
    Requeued,
    Resized,
    Resumed,
    Ticked,
    Warm,
    Withdrawn,
)
from rollmux_env.cluster.group import Group, Nodes, group_at, node_columns, nodes_of
from rollmux_env.cluster.pauses import Pauses
from rollmux_env.errors import InputError
from rollmux_env.kernel import membership, transitions
from rollmux_env.kernel.promises import promise
from rollmux_env.kernel.tables import (
    COLD,
    NOWHERE,
    ROLLOUT,
    TRAINING,
    Clock,
    Floats,
    Ints,
    Records,
    View,
    copied,
    copy_into,
    group_table,
    job_table,
)
from rollmux_env.keys.cluster import SIDES, Cluster
from rollmux_env.keys.job import Job
from rollmux_env.keys.shapes import Phases


class State:
    """Everything that a policy may look at: the jobs that have arrived, where they run, and the time.

    Args:
        cluster: pools, prices and limits.
        observed: a job's progress is what `Progressed` events say; without it, a job progresses at one iteration a period.
        switches: periods count warm starts, and limits what joining a group costs (`rollmux_env.kernel.promises`); without it,
            switches take no time.

    Attributes:
        observed: as above. Departure times are then predictions.
        switches: as above.
        now_s: the only clock, seconds.
        cluster: pools, prices and limits.
        jobs, groups: the tables of `rollmux_env.kernel.tables` as record arrays, `jobs.done[row]`; read them, `apply` writes them.
        order: rows of the present groups in order of creation.
        waiting: ids of the jobs that wait for a place, of the highest priority first, then in order of arrival.
        charges: what jobs hold and have been charged, by row.
        nodes: (P, 2) nodes of each pool provisioned now, for rollouts and for trainings, those held for a move included.
        departed: how many jobs have left.
        widest: most rollout nodes that a job has asked for, 1 or more.
        link_is_full: whether one more sync on the link of `cluster.network` could make a running job break its SLO.

    Raises:
        InputError: switches are to be planned, and so is a link; one line.
    """

    def __init__(self, cluster: Cluster, observed: bool = False, switches: bool = False) -> None:
        if switches and cluster.network is not None:
            raise InputError("cluster.network: does not go with switches=true, whose promises count no sync on a shared link")
        self.now_s = 0.0
        self.observed = observed
        self.switches = switches
        self.cluster = cluster
        self.limits = limits_of(cluster)
        self._keep(job_table(16, 1, 1), group_table(16, 1, 1))
        self.order = np.zeros(0, dtype=np.int64)
        self.waiting: list[str] = []
        self.charges = Charges()
        self.nodes: Ints = np.zeros((len(self.limits.pools), 2), dtype=np.int64)
        self._busy_before_s: Floats = np.zeros(len(self.limits.pools))  # see `_wear`
        self.departed = 0
        self.widest = 1
        self.link_is_full = False
        self.next_group_id = 0
        self._pool_numbers = {name: number for number, name in enumerate(cluster.pools)}
        self._models: list[Job] = []  # by row, those of shapes included
        self._rows: dict[str, int] = {}
        self._free_groups: list[int] = []
        self._group_rows: dict[int, int] = {}
        self._pauses = Pauses()
        self._warm: list[int] = []  # rows of the job that may enter a place warm at this instant

    @property
    def view(self) -> View:
        """The state as compiled code sees it."""
        clock = Clock(self.now_s, self.nodes, len(self.waiting))
        return View(self._jobs, self._groups, self.order, self.limits, clock)

    @property
    def pool_nodes(self) -> list[int]:
        """Nodes of each pool provisioned now, those held for a move included."""
        return [rollout + training for rollout, training in self.nodes.tolist()]

    @property
    def rollout_nodes(self) -> int:
        """Nodes of all pools provisioned for rollouts, those held for a move included."""
        return int(self.nodes[:, ROLLOUT].sum())

    @property
    def training_nodes(self) -> int:
        """Likewise for trainings."""
        return int(self.nodes[:, TRAINING].sum())

    def row(self, job_id: str) -> int:
        """Row of a job in the job table."""
        return self._rows[job_id]

    def job(self, job_id: str) -> Job:
        """A job that has arrived."""
        return self._models[self._rows[job_id]]

    def job_id(self, row: int) -> str:
        """Id of the job in a row of the job table."""
        return self._models[row].id

    @property
    def arrived(self) -> int:
        """How many jobs have arrived so far."""
        return len(self.charges)

    @property
    def rows(self) -> int:
        """How many rows of the job table are in use, those of shapes included; `job_id(0)` is the first job that arrived."""
        return len(self._models)

    def shape(self, job_id: str) -> int:
        """Number of the shape that a running job has; 0 of one that waits."""
        return int(self._jobs["of_shape"][self._rows[job_id]])

    def phases(self, job_id: str) -> Phases:
        """The phases of a job in its shape."""
        return self.phases_of(self._rows[job_id])

    def phases_of(self, row: int) -> Phases:
        """The phases of a job in the shape that a row of the job table has."""
        return self._models[row].phases(int(self._jobs["of_shape"][row]))

    def shape_rows(self, row: int) -> range:
        """Rows of the shapes of a job: its own where it has only one."""
        first = int(self._jobs["first_shape"][row])
        return range(first, first + 1 + int(self._jobs["more_shapes"][row]))

    def knows(self, job_id: str) -> bool:
        """Whether the job has arrived (it may have left since)."""
        return job_id in self._rows

    def is_running(self, job_id: str) -> bool:
        """Whether the job has a place; a paused one has."""
        return job_id in self._rows and bool(self._jobs["group"][self._rows[job_id]] != NOWHERE)

    def is_paused(self, job_id: str) -> bool:
        """Whether the job is in the pause of a move."""
        return job_id in self._pauses

    def group_row(self, group_id: int) -> int | None:
        """Row of a present group in the group table."""
        return self._group_rows.get(group_id)

    def group_number(self, job_id: str) -> int:
        """Id of the group of a running job."""
        return int(self._groups["id"][self._jobs["group"][self._rows[job_id]]])

    def group_numbers(self) -> list[int]:
        """Ids of the present groups in order of creation."""
        return [*self._group_rows]

    def group_of(self, job_id: str) -> Group:
        """The group of a running job."""
        return self._view(int(self._jobs["group"][self._rows[job_id]]))

    def group_list(self) -> list[Group]:
        """The present groups in order of creation."""
        return [self._view(int(row)) for row in self.order]

    def pins(self, job_id: str) -> tuple[int, ...]:
        """Numbers of the rollout nodes that a running job is pinned to, within its group."""
        row = self._rows[job_id]
        return tuple(self._jobs["pins"][row, : self._jobs["n_pins"][row]].tolist())

    def planned_s(self, job_id: str) -> tuple[float, float, float]:
        """Rollout, training and sync of a running job in its place, seconds."""
        row = self._rows[job_id]
        record, group = self._jobs[row], self._groups[self._jobs["group"][row]]
        rollout_s, training_s = float(record["placed_rollout_s"]), float(record["placed_training_s"])
        if self.cluster.one_device and not group["exclusive"]:  # to the kernel they are one phase
            phases = self.phases(job_id)
            rollout_s, training_s = phases.rollout.worst_case_s, phases.training.seconds_on(int(group["training_nodes"]))
        return rollout_s, training_s, float(record["placed_sync_s"])

    def waits_for_link(self, job_id: str) -> bool:
        """Whether a job that waits, or a running one, could break its SLO if all jobs synced at once, the first among them."""
        if self.cluster.network is None:
            return False
        row = self._rows[job_id]
        linked = link.Linked(self._jobs, self._groups, self._models, self.cluster.network)
        return link.crosses(linked, row) and (self.link_is_full or link.breaks_alone(self._jobs, row))

    def iterations_done(self, job_id: str) -> float:
        """Iterations of a job so far: with fractions, but where they are observed only those that it has finished."""
        row = self._rows[job_id]
        done = float(self._jobs["done"][row])
        group = self._jobs["group"][row]
        if group == NOWHERE or self.observed:
            return done
        ran = self.now_s - max(self._groups["since_s"][group], self._jobs["paused_until_s"][row])
        return done + max(0.0, float(ran)) / float(self._groups["period_s"][group])

    @property
    def usd_per_hour(self) -> float:
        """Price of all provisioned nodes, $/h."""
        return float((self.nodes.sum(axis=1) * self.limits.pools["usd"]).sum())

    def price_of(self, job_id: str, shape: int, rollout_nodes: int, training_nodes: int) -> float:
        """Price of so many nodes of a job's pools in a shape, $/h."""
        job = self._jobs[self.shape_rows(self._rows[job_id])[shape]]
        return Nodes(int(job["rollout_pool"]), int(job["training_pool"]), rollout_nodes, training_nodes).usd(self._prices)

    def has_room(self, places: Mapping[str, Placement]) -> bool:
        """Whether the nodes that jobs take at these places, by id, can all be provisioned."""
        more = np.zeros_like(self.nodes)
        for job_id, place in places.items():
            job = self._jobs[self.shape_rows(self._rows[job_id])[place.shape]]
            more[job["rollout_pool"], ROLLOUT] += place.new_rollout_nodes
            more[job["training_pool"], TRAINING] += place.training_nodes
        wanted = more.sum(axis=1)
        return bool(np.all((wanted == 0) | (self.nodes.sum(axis=1) + wanted <= self.limits.pools["nodes_max"])))

    def busy_s(self) -> list[float]:
        """Of each pool, node-seconds for which phases have run on its nodes."""
        jobs = self.jobs
        sides = ((jobs.rollout_pool, jobs.rollout_busy_s), (jobs.training_pool, jobs.training_busy_s))
        return [
            float(sum(np.where(pools == number, busy_s, 0.0).sum() for pools, busy_s in sides) + self._busy_before_s[number])
            for number in range(len(self.nodes))
        ]

    def next_departure_s(self) -> float:
        """When the next running job leaves if nothing changes before; infinite where none runs."""
        return float(self._departs_s[self.order].min()) if self.order.size else np.inf

    def next_change_s(self) -> float:
        """When the next running job leaves, or goes on after a move, if nothing changes before; infinite where none does."""
        return min(self.next_departure_s(), self.charges.next_end_s(), self.next_resume_s())

    def departing(self, until_s: float) -> list[str]:
        """Ids of the running jobs that leave by `until_s`, in order of arrival."""
        rows = [
            member
            for group in self.order[self._departs_s[self.order] <= until_s]
            for member in self._groups["members"][group, : self._groups["n_members"][group]].tolist()
            if membership.departure_s(self._jobs, self._groups, member) <= until_s
        ]
        return [self.job_id(row) for row in sorted(rows)]

    def held_nodes(self) -> Ints:
        """(P, 2) nodes of each pool, for rollouts and for trainings, that moved jobs have left and that are paid for until their
        pauses end."""
        return self._pauses.held_nodes(len(self.nodes))

    def next_resume_s(self) -> float:
        """When the next pause ends; infinite where no job is paused."""
        return self._pauses.next_end_s()

    def resuming(self, until_s: float) -> list[str]:
        """Ids of the paused jobs whose pause ends by `until_s`."""
        return self._pauses.ending(until_s)

    def charged_usd(self, job_id: str) -> float:
        """What a job has been charged so far, $."""
        return self.charges.usd(self._rows[job_id], self.now_s)

    def is_over_budget(self, job_id: str, until_s: float) -> bool:
        """Whether the budget of a running job is spent by then, if nothing changes before."""
        return self.charges.is_spent(self._rows[job_id], until_s)

    def over_budget(self, until_s: float) -> list[str]:
        """Ids of the running jobs whose budget is spent by then, in order of arrival."""
        return [self.job_id(row) for row in self.charges.spent(until_s)]

    def _view(self, row: int) -> Group:
        return group_at(self._groups, row, self.job_id, [*self.cluster.pools], self._prices)

    def copy(self) -> State:
        """A state of its own: what is applied to one of the two does not change the other."""
        twin = copy(self)
        twin._keep(copied(self._jobs), copied(self._groups))
        for name in ("waiting", "_models", "_rows", "_free_groups", "_group_rows", "_pauses", "_warm"):
            setattr(twin, name, getattr(self, name).copy())
        twin.nodes, twin._busy_before_s = self.nodes.copy(), self._busy_before_s.copy()
        twin.charges = self.charges.copy()
        return twin

    def forecast(self) -> State:
        """A state of its own in which jobs progress at one iteration a period from now on, whatever is observed of this one."""
        twin = self.copy()
        if self.observed:
            twin.observed = False
            for group in twin.order.tolist():
                twin._groups["since_s"][group] = self.now_s
                membership.refresh(twin._jobs, twin._groups, group)
                twin._departs_s[group] = twin._groups["departs_s"][group]
        return twin

    # What follows is for `apply` alone.

    def _keep(self, jobs: Records, groups: Records) -> None:
        self._jobs, self._groups = jobs, groups
        self.jobs, self.groups = jobs.view(np.recarray), groups.view(np.recarray)
        self._node_columns = node_columns(groups)
        self._departs_s = groups["departs_s"].copy()  # the column in one piece: it is read at every instant, of all groups

    def _settle(self, group: int) -> None:
        """Bring the members' progress up to now, before their group changes."""
        if self.observed:
            self._groups["since_s"][group] = self.now_s
        else:
            membership.settle(self._jobs, self._groups, group, self.now_s)

    def _add_job(self, job: Job, first: bool) -> None:
        row = len(self._models)
        shapes = 1 + len(job.shapes)
        demands = [demand_of(job, self.cluster, shape) for shape in range(shapes)]
        nodes, steps = max(demand.rollout_nodes for demand in demands), max(len(demand.by_nodes) for demand in demands)
        end = row + 1 + (shapes if job.shapes else 0)
        size, width, depth = len(self._jobs), self._jobs["pins"].shape[1], self._jobs["rescale_s"].shape[1]
        if end > size or nodes > width or steps > depth:
            larger = job_table(max(2 * size, end) if end > size else size, max(width, nodes), max(depth, steps))
            copy_into(larger, self._jobs)
            self._keep(larger, self._groups)
        self._models += [job] * (end - row)
        self.charges.add(row, job, self._rows.get(job.id))
        self._rows[job.id] = row
        self._jobs["more_shapes"][row], self._jobs["first_shape"][row:end] = len(job.shapes), row + bool(job.shapes)
        if job.shapes:
            self._jobs["more_shapes"][row + 1 : end], self._jobs["of_shape"][row + 1 : end] = -1, np.arange(shapes)
        self._describe(row, job, demands)
        self._jobs["arrival_s"][row:end] = job.arrival_s
        self._jobs["duration_s"][row:end] = np.inf if job.duration_s is None else job.duration_s
        self._jobs["iterations"][row:end] = np.inf if job.iterations is None else job.iterations
        insert = insort_left if first else insort_right
        insert(self.waiting, job.id, key=lambda job_id: -self.job(job_id).priority)

    def _describe(self, row: int, job: Job, demands: Sequence[Demand] = ()) -> None:
        """Write what is known of a job into its row, and into those of its shapes.

        Args:
            demands: what it asks for in each of its shapes, where that is at hand.
        """
        demands = demands or [demand_of(job, self.cluster, shape) for shape in range(1 + len(job.shapes))]
        self.widest = max(self.widest, *(demand.rollout_nodes for demand in demands))
        for one in {row, *self.shape_rows(row)}:
            self._models[one] = job
            write_known(self._jobs, one, job, demands[self._jobs["of_shape"][one]], self._pool_numbers, self.switches)

    def _wear(self, row: int, shape: int) -> None:
        """Give a job the numbers of a shape. What its phases have kept busy so far counts for the pools that they ran on."""
        if not self._jobs["more_shapes"][row]:
            return
        job = self._jobs[row]
        before = {side: int(job[f"{side}_pool"]) for side in SIDES}
        membership.wear(self._jobs, row, shape)
        for side, pool in before.items():
            if pool != job[f"{side}_pool"]:
                self._busy_before_s[pool] += job[f"{side}_busy_s"]
                self._busy_before_s[job[f"{side}_pool"]] -= job[f"{side}_busy_s"]

    def _warm_up(self, row: int, group: int) -> None:
        """A waiting job could enter a group without a cold start, in the shape that it is written in."""
        self._cool_down()
        self._warm = [row, int(self._jobs["first_shape"][row])]
        self._jobs["warm_group"][self._warm] = group

    def _cool_down(self) -> None:
        """That was so at an instant that is over."""
        self._jobs["warm_group"][self._warm] = COLD
        self._warm = []

    def _is_warm(self, row: int, placement: Placement) -> bool:
        """Whether a job enters a place warm."""
        group = NOWHERE if placement.group is None else placement.group
        added = placement.group is not None and placement.new_rollout_nodes > 0
        return bool(self._jobs["warm_group"][row] == group and not added and placement.shape == 0)

    def _enter(self, row: int, placement: Placement) -> None:
        self._jobs["entered_warm"][row] = self._is_warm(row, placement)
        self._wear(row, placement.shape)
        group = self._group_rows[placement.group] if placement.group is not None else self._open(row, placement.training_nodes)
        self._jobs["entered_done"][row] = self._jobs["done"][row]
        if placement.colocated:
            membership.attach_colocated(self._jobs, self._groups, row, group, *self._colocated_s(row))
            self._charge(group)
            return
        there, new_nodes = placement.rollout_nodes, placement.new_rollout_nodes
        members, nodes = self._groups["members"].shape[1], self._groups["node_number"].shape[1]
        member, need = int(self._groups["n_members"][group]) + 1, int(self._groups["n_nodes"][group]) + new_nodes
        if member > members or need > nodes:
            self._grow_groups(len(self._groups), member, need)
        if placement.group is not None:
            self._settle(group)
        if there:
            self._jobs["pins"][row, : len(there)] = there
        transitions.enter(self._jobs, self._groups, self.nodes, row, group, len(there), new_nodes)
        self._charge(group)

    def _replan(self, row: int, job: Job) -> None:
        """A job's times or memory are other ones."""
        group = int(self._jobs["group"][row])
        if group == NOWHERE:
            self._describe(row, job)
            return
        self._settle(group)
        self._describe(row, job)
        if self._groups["exclusive"][group]:
            membership.attach_colocated(self._jobs, self._groups, row, group, *self._colocated_s(row))
            self._departs_s[group] = self._groups["departs_s"][group]
        else:
            self._replan_member(row, group)

    def _replan_member(self, row: int, group: int) -> None:
        """A member of a settled group has other times or memory than it was placed with."""
        membership.replan(self._jobs, self._groups, row)
        self._departs_s[group] = self._groups["departs_s"][group]

    def _share_link(self) -> None:
        """Plan every sync as long as it takes on the link (`rollmux_env.cluster.link.share`)."""
        network = self.cluster.network
        assert network is not None
        present = self.order[self._groups["exclusive"][self.order] == 0].tolist()
        waiting = [self._rows[job_id] for job_id in self.waiting]
        linked = link.Linked(self._jobs, self._groups, self._models, network)
        self.link_is_full = link.share(linked, present, waiting, self._settle, self._replan_member)

    def _colocated_s(self, row: int) -> tuple[float, float]:
        """Seconds of a job's two phases where both run on training nodes."""
        job = self._models[row]
        own = job.colocated
        return (own.rollout_s, own.training_s) if own else (job.rollout.worst_case_s, job.training.worst_case_s)

    def _leave(self, row: int, to: Placement | None = None) -> Nodes:
        """Take a job out of its settled group; returns the nodes that no one needs any more.

        Args:
            to: where it goes; nodes that it will have there too are not left.
        """
        group = int(self._jobs["group"][row])
        stays = to is not None and to.group == int(self._groups["id"][group])
        staying = to.rollout_nodes if to is not None and stays else ()
        self._jobs["pins"][row, : len(staying)] = staying
        dropped, training_nodes = transitions.leave(self._jobs, self._groups, row, len(staying), stays)
        self.charges.hold(row, self.now_s, NOTHING)
        if self._groups["n_members"][group] > 0:
            self._charge(group)
        elif not stays:
            self.order = self.order[self.order != group]
            del self._group_rows[int(self._groups["id"][group])]
            self._free_groups.append(group)
        rollout_pool, training_pool = (int(self._groups[f"{side}_pool"][group]) for side in SIDES)
        return Nodes(rollout_pool, training_pool, dropped, training_nodes)

    def _charge(self, group: int) -> None:
        """Let the members of a group, which is another one than before, pay for it from now on."""
        self._departs_s[group] = self._groups["departs_s"][group]
        members = self._groups["members"][group, : self._groups["n_members"][group]].tolist()
        share = nodes_of(self._node_columns, group).share(self._prices, len(members))
        for row in members:
            self.charges.hold(row, self.now_s, share)

    @property
    def _prices(self) -> list[float]:
        """Of a node of each pool, $/h."""
        prices: list[float] = self.limits.pools["usd"].tolist()
        return prices

    def _give_back(self, nodes: Nodes) -> None:
        self.nodes[nodes.rollout_pool, ROLLOUT] -= nodes.rollout_nodes
        self.nodes[nodes.training_pool, TRAINING] -= nodes.training_nodes

    def _open(self, row: int, training_nodes: int) -> int:
        if not self._free_groups:
            size = len(self._groups)
            used = self.order.size
            if used == size:
                self._grow_groups(2 * size, 0, 0)
            self._free_groups.append(used)
        group = self._free_groups.pop()
        first = self._jobs[row]
        transitions.start_group(self._groups, self.nodes, group, self.next_group_id, first, training_nodes, self.now_s)
        self._group_rows[self.next_group_id] = group
        self.next_group_id += 1
        self.order = np.append(self.order, group)
        return group

    def _grow_groups(self, rows: int, members: int, nodes: int) -> None:
        now = self._groups
        larger = group_table(rows, max(members, now["members"].shape[1]), max(nodes, now["node_number"].shape[1]))
        copy_into(larger, now)
        self._keep(self._jobs, larger)


def apply(state: State, event: Event) -> None:
    """Change `state` by one event; deterministic, and the only writer of a state.

    Events are facts: whether a decision is allowed is `rollmux_env.cluster.plan.carry_out`'s to say.
    """
    if state._warm and event.at_s > state.now_s:
        state._cool_down()
    state.now_s = float(event.at_s)  # compiled code is made anew for a clock of whole numbers
    if isinstance(event, Admitted | Moved | Departed):
        _change_place(state, event)
    else:
        _change(state, event)
    if state.cluster.network is not None and not isinstance(event, Progressed | Ticked):
        state._share_link()
    if state.switches:
        promise(state.view, len(state._models), state.observed, state.cluster.migration_s)


def _change_place(state: State, event: Admitted | Moved | Departed) -> None:
    """A job gets a place, or another one, or has none any more."""
    row = state._rows[event.job_id]
    jobs, pause_s = state._jobs, state.cluster.migration_s
    if isinstance(event, Admitted):
        state.waiting.remove(event.job_id)
        transitions.begin_stay(jobs, row, state.now_s)
        state.charges.admit(row, state.now_s)
        state._enter(row, event.placement)
        jobs["admitted_warm"][row] = jobs["entered_warm"][row]
        state._cool_down()
        return
    state._settle(int(jobs["group"][row]))
    if isinstance(event, Moved):
        left = state._leave(row, event.placement)
        state._pauses.begin(event.job_id, state.now_s + pause_s, left)
        state.charges.pause(row, state.now_s, left.share(state._prices))
        transitions.begin_pause(jobs, row, state.now_s, pause_s)
        state._enter(row, event.placement)
        return
    if not state.observed and not isinstance(event, OverBudget):
        transitions.end_stay(jobs, row)
    state._give_back(state._leave(row))
    state.charges.depart(row)
    state.departed += 1


def _change(state: State, event: Event) -> None:
    """What else an event changes."""
    match event:
        case Arrived(job=job):
            state._add_job(job, isinstance(event, Requeued))
        case Warm(job_id=job_id, group=number):
            state._warm_up(state._rows[job_id], NOWHERE if number is None else number)
        case Begun(job_id=job_id):
            row = state._rows[job_id]
            state._jobs["admitted_s"][row] = state.now_s
            state._jobs["admitted_warm"][row] = state._jobs["entered_warm"][row] = 1
        case Resumed(job_id=job_id):
            state.charges.pause(state._rows[job_id], state.now_s, NOTHING)
            state._give_back(state._pauses.end(job_id))
        case Withdrawn(job_id=job_id):
            state.waiting.remove(job_id)
        case Reprofiled(job=job):
            state._replan(state._rows[job.id], job)
        case Progressed(jobs=jobs):
            for job_id, *done in jobs:
                row = state._rows[job_id]
                for column, value in zip(("done", "rollout_busy_s", "training_busy_s"), done, strict=True):
                    state._jobs[column][row] = value
        case Resized():
            pools = state.cluster.pools
            sized = {name: pool.model_copy(update={"max_nodes": getattr(event, f"{name}_nodes")}) for name, pool in pools.items()}
            state.cluster = state.cluster.with_pools(sized)
            state.limits = limits_of(state.cluster)
