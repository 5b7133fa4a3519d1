"""The state of a cluster, which a policy reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmux_env.cluster.charges import Charges
from rollmux_env.cluster.demand import limits_of
from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.group import Group, group_at
from rollmux_env.cluster.months import Month
from rollmux_env.cluster.pauses import Pauses
from rollmux_env.cluster.stays import Stays
from rollmux_env.cluster.tables import Tables, shallow_copy
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import NOWHERE, ROLLOUT, TRAINING, Clock, Floats, Ints, View
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.keys.shapes import Phases

HALF_LIFE_H = 24.0


class State:
    """Everything that a policy may look at: the jobs that have arrived, where they run, and the time.

    Policies only read it. `rollmux_env.cluster.apply.apply` changes it.

    Args:
        cluster: Pools, prices and limits.
        observed: Whether progress comes from `Progressed` events. Otherwise a job progresses at one iteration per period.
        switches: Whether periods include warm starts and limits include the cost of joining a group
            (`rollmux_env.kernel.promises`). Otherwise switches take no time.
        half_life_h: Time after which the usage of a user counts half, hours.

    Attributes:
        observed: Whether progress comes from `Progressed` events, so that departure times are predictions.
        switches: Whether periods and limits include switches.
        now_s: Current time in seconds, the only clock of a policy.
        cluster: Pools, prices and limits.
        limits: Limits and prices of `cluster` in the form that compiled code takes.
        pools: Numbers of the pools by name.
        prices: Price of a node of each pool, $/h.
        tables: Tables of the jobs and groups, with a row for each.
        waiting: Ids of the waiting jobs, by falling priority, then in order of arrival.
        charges: Nodes and dollars that each job is charged for, by row of the job table.
        pauses: Present pauses of jobs that were moved, or that run again after they were parked.
        stays: Times at which jobs got their places, the parked jobs, and the lengths of those that have departed.
        nodes: Nodes of each pool provisioned now, for rollouts and for trainings, including nodes held for a move, shape (P, 2).
        busy_before_s: Correction of the busy node-seconds in the job table, which attributes all those of a job to the pools of its
            current shape although it ran on other pools before, shape (P,).
        months: Calendar months that have begun, oldest first, without the one in which the first event happened.
        arrived: Number of jobs that have arrived.
        departed: Number of jobs that have departed.
        lent_nodes: Number of nodes by pool that are lent to jobs being profiled; `cluster` is without them.
        link_is_full: Whether one more sync on the link of `cluster.network` could make a running job break its SLO.

    Raises:
        InputError: Switches are requested for a cluster with a shared link.
    """

    def __init__(self, cluster: Cluster, observed: bool = False, switches: bool = False, half_life_h: float = HALF_LIFE_H) -> None:
        if switches and cluster.network is not None:
            raise InputError("cluster.network: does not go with switches=true, whose promises count no sync on a shared link")
        self.now_s = 0.0
        self.observed = observed
        self.switches = switches
        self.cluster = cluster
        self.limits = limits_of(cluster)
        self.pools = {name: number for number, name in enumerate(cluster.pools)}
        self.prices: list[float] = self.limits.pools["usd"].tolist()
        self.tables = Tables()
        self.waiting: list[str] = []
        self.charges = Charges(half_life_h * 3600)
        self.pauses = Pauses(len(self.prices))
        self.stays = Stays()
        self.nodes: Ints = np.zeros((len(self.prices), 2), dtype=np.int64)
        self.busy_before_s: Floats = np.zeros(len(self.prices))
        self.months: tuple[Month, ...] = ()
        self.arrived = self.departed = 0
        self.link_is_full = False
        self.lent_nodes: Mapping[str, int] = {}

    @property
    def view(self) -> View:
        """The state in the form that compiled code takes."""
        tables, clock = self.tables, Clock(self.now_s, self.nodes, len(self.waiting))
        return View(tables.job_records, tables.group_records, tables.order, self.limits, clock)

    @property
    def cluster_with_lent(self) -> Cluster:
        """The cluster with the lent nodes, which are out of service for the policy."""
        sized = {
            name: pool.model_copy(update={"max_nodes": pool.max_nodes + self.lent_nodes[name]})
            for name, pool in self.cluster.pools.items()
            if pool.max_nodes is not None and self.lent_nodes.get(name)
        }
        return self.cluster.with_pools(sized)

    @property
    def first_arrival_s(self) -> float:
        """Time of the very first arrival, in seconds, or infinity before it. That its job arrives again does not change it."""
        return float(self.tables.job_records["arrival_s"][0]) if self.arrived else np.inf

    @property
    def rollout_nodes(self) -> int:
        """Nodes of all pools provisioned for rollouts, including those held for a move."""
        return sum(self.nodes[:, ROLLOUT].tolist())

    @property
    def training_nodes(self) -> int:
        """Nodes of all pools provisioned for trainings, including those held for a move."""
        return sum(self.nodes[:, TRAINING].tolist())

    @property
    def usd_per_hour(self) -> float:
        """Price of all provisioned nodes, $/h."""
        return float((self.nodes.sum(axis=1) * self.limits.pools["usd"]).sum())

    def row(self, job_id: str) -> int:
        """Return the row of a job in the job table."""
        return self.tables.job_rows[job_id]

    def job(self, job_id: str) -> Job:
        """Return a job that has arrived."""
        return self.tables.models[self.row(job_id)]

    def shape(self, job_id: str) -> int:
        """Return the number of a running job's shape, or 0 for a waiting job."""
        return int(self.tables.job_records["of_shape"][self.row(job_id)])

    def phases(self, job_id: str) -> Phases:
        """Return the phases of a job in its shape."""
        return self.tables.phases(self.row(job_id))

    def knows(self, job_id: str) -> bool:
        """Return whether the job has arrived. It may have departed since."""
        return job_id in self.tables.job_rows

    def is_running(self, job_id: str) -> bool:
        """Return whether the job has a placement. A paused job has one."""
        return self.knows(job_id) and bool(self.tables.job_records["group"][self.row(job_id)] != NOWHERE)

    def is_paused(self, job_id: str) -> bool:
        """Return whether the job is in the pause after a move, or after it got a place again when it had been parked."""
        return job_id in self.pauses

    def group_of(self, job_id: str) -> Group:
        """Return the group of a running job."""
        row = int(self.tables.job_records["group"][self.row(job_id)])
        return group_at(self.tables, row, [*self.pools], self.prices)

    def group_list(self) -> list[Group]:
        """Return all groups in order of creation."""
        pools = [*self.pools]
        return [group_at(self.tables, row, pools, self.prices) for row in self.tables.order.tolist()]

    def pins(self, job_id: str) -> tuple[int, ...]:
        """Return the numbers, within its group, of the rollout nodes to which a running job is pinned."""
        row, jobs = self.row(job_id), self.tables.job_records
        return tuple(jobs["pins"][row, : jobs["n_pins"][row]].tolist())

    def planned_s(self, job_id: str) -> tuple[float, float, float]:
        """Return the planned rollout, training and sync of a running job in its placement, seconds."""
        record = self.tables.job_records[self.row(job_id)]
        group = self.tables.group_records[record["group"]]
        rollout_s, training_s = float(record["placed_rollout_s"]), float(record["placed_training_s"])
        if self.cluster.one_device and not group["exclusive"]:  # the kernel treats both phases as one
            phases = self.phases(job_id)
            rollout_s, training_s = phases.rollout.worst_case_s, phases.training.seconds_on(int(group["training_nodes"]))
        return rollout_s, training_s, float(record["placed_sync_s"])

    def iterations_done(self, job_id: str) -> float:
        """Return the iterations of a job so far, with fractions. If progress is observed, only finished iterations count."""
        row, jobs, groups = self.row(job_id), self.tables.job_records, self.tables.group_records
        done, group = float(jobs["done"][row]), jobs["group"][row]
        if group == NOWHERE or self.observed:
            return done
        ran = self.now_s - max(groups["settled_s"][group], jobs["paused_until_s"][row])
        return done + max(0.0, float(ran)) / float(groups["period_s"][group])

    def has_room(self, places: Mapping[str, Placement]) -> bool:
        """Return whether the additional nodes of several placements, by job id, can all be provisioned."""
        wanted, jobs = [0] * len(self.prices), self.tables.job_records
        for job_id, place in places.items():
            row = self.tables.shape_rows(self.row(job_id))[place.shape]
            wanted[jobs["rollout_pool"][row]] += place.new_rollout_nodes  # reading columns is faster than reading a record
            wanted[jobs["training_pool"][row]] += place.training_nodes
        most = self.limits.pools["nodes_max"].tolist()
        pools = zip(self.nodes.tolist(), wanted, most, strict=True)
        return all(not more or sum(used) + more <= limit for used, more, limit in pools)

    def next_change_s(self) -> float:
        """Return the time of the next departure or end of a pause if nothing changes before, or infinity."""
        return min(self.tables.next_departure_s(), self.charges.next_end_s(), self.pauses.next_end_s())

    def copy(self) -> State:
        """Return an independent copy. Events applied to one of the two do not change the other."""
        return self._with(self.tables.copy())

    def sharing(self) -> State:
        """Return a copy that shares the records of jobs and groups. For `rollmux_env.cluster.trial.without_job`, not for policies.

        An event that is applied to the copy also changes records of this state, and its caller must restore them.
        """
        return self._with(self.tables.sharing())

    def _with(self, tables: Tables) -> State:
        twin = shallow_copy(self)
        twin.tables = tables
        for name in ("waiting", "charges", "pauses", "stays", "nodes", "busy_before_s"):
            setattr(twin, name, getattr(self, name).copy())
        return twin
