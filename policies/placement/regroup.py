"""The policy `regroup`: the paper's baseline under drift (section 6.6), which regroups optimally once an hour."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from policies.api import ArrivalPolicy, Event, Move, Placement, Plan, State, Ticked, candidates, cheapest, may_move
from policies.placement.consolidate.active import placements
from policies.placement.optimal.columns import ColumnPool, widened
from policies.placement.optimal.partition import partition
from policies.placement.optimal.program import Program
from policies.placement.planned import Fractions, Observer, rescaled, running_rows
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Departed
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import TOLERANCE, Floats, Ints
from rollmux_env.keys.job import Job

_MIN_ITERATIONS = 10  # least number of iterations in a batch of observed phases
_CHANGE = 0.02  # relative change of an observed duration that is worth planning again
_BROKEN_USD = 1e3  # dollars for keeping a group whose observed durations break an SLO
_OUT_OF_REACH_USD = 1e5  # dollars for a group of one job that may not move, because the solver needs a column for each single job
_NODE_LIMIT = 1000
_MAX_COLUMNS = 300_000
_PLANNED = (
    "of_shape",
    "rollout_s",
    "training_s",
    "limit_s",
    "rollout_gb",
    "training_gb",
    "rollout_device_gb",
    "training_device_gb",
)
_ROUNDS = 20


class Regroup(ArrivalPolicy):
    """Placement policy that admits jobs by Algorithm 1, and every hour moves to the best grouping that legal moves can reach.

    The hourly problem is a set partition into feasible groups, as for `optimal`, and is solved exactly. It minimises the dollars
    until the next regrouping, including those of the moves (see `move_usd`). A move is thus made only if it pays off before it may
    be undone. Jobs that may not move, because they lack slack or are in the pause of a move, stay where they are. If a group turns
    out not to fit on the nodes of its host, it is excluded and the rest is solved again.

    If progress is observed (event replays, runs), a phase is planned at its mean over at least ten of the job's last iterations,
    and an SLO as a multiple of the T_solo that results. Jobs without observations get the mean of the other jobs. Otherwise, and
    for admission, all phases are worst cases.

    Args:
        every_s: Time between regroupings, seconds.
        prune: Whether Algorithm 1 skips saturated groups.
        observe: Whether to plan on observed durations instead of worst cases.

    Attributes:
        keeps_slo: Whether the policy has planned on worst cases only so far.
        wakes_every_s: Time between the ticks that the policy asks for, seconds.
    """

    def __init__(self, every_s: float = 3600.0, prune: bool = True, observe: bool = True) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not 1 <= every_s < np.inf:
            raise InputError(f"every_s: must be a number of seconds, at least 1, not {every_s!r}")
        self.wakes_every_s = every_s
        self.prune = prune
        self.keeps_slo = True
        self._observer = Observer(_MIN_ITERATIONS) if observe else None
        self._fractions: dict[int, Fractions] = {}
        self._pool: ColumnPool | None = None
        self._planned: dict[int, tuple[float, ...]] = {}  # figures of each job with which its columns were made

    def place(self, state: State, job: Job) -> Placement | None:
        """Choose the placement of Algorithm 1."""
        return cheapest(state, job.id, self.prune)

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival as Algorithm 1 does, and a tick with the moves that pay off."""
        return self._regroup(state) if isinstance(event, Ticked) else super().decide(state, event)

    def _regroup(self, state: State) -> Plan:
        rows = [row for row in running_rows(state) if not state.tables.groups.exclusive[state.tables.jobs.group[row]]]
        if not rows:
            return ()
        view = self._view(state, rows)
        pool = self._columns(view, rows)
        fixed = [row for row in rows if not can_move(state, state.tables.job_id(row))]
        hosts = Hosts(view, pool, fixed)
        limits = view.limits
        until_next_h = self.wakes_every_s / 3600
        prices = limits.pools["usd"][hosts.pools]
        usd = (hosts.nodes[:, 0] * prices[:, 0] + hosts.nodes[:, 1] * prices[:, 1]) * until_next_h
        broken = view.tables.groups.period_s > view.tables.groups.limit_s * (1 + TOLERANCE)
        usd[hosts.as_it_is] += _BROKEN_USD * broken[hosts.groups]
        alone = (hosts.positions < len(pool.active)).sum(axis=1) == 1
        for _ in range(_ROUNDS):
            cost = usd + np.minimum(hosts.moves_usd(), _OUT_OF_REACH_USD)
            usable = np.flatnonzero((cost < _OUT_OF_REACH_USD) | alone)
            program = Program(
                hosts.positions[usable],
                len(pool.active),
                hosts.nodes[usable],
                hosts.pools[usable],
                limits.pools["nodes_max"],
            )
            best = partition(program, cost[usable], _NODE_LIMIT, np.searchsorted(usable, hosts.as_it_is))
            if best is None:
                return ()
            chosen = usable[best.columns]
            homes, moves_usd = hosts.assign(chosen)
            if usd[chosen].sum() + moves_usd >= usd[hosts.as_it_is].sum() - 1e-6:
                return ()
            plan = self._moves(view, pool, hosts, chosen.tolist(), homes)
            if plan is not None:
                return plan if state.has_room({move.job_id: move.placement for move in plan}) else ()
        return ()

    def _moves(
        self, view: State, pool: ColumnPool, hosts: Hosts, chosen: list[int], homes: list[int | None]
    ) -> tuple[Move, ...] | None:
        """Return the moves to a partition, or None if a group does not fit on its host, which is then excluded."""
        movers: list[list[str]] = []
        for column, home in zip(chosen, homes, strict=True):
            members = [int(row) for row in hosts.members[column] if row >= 0]
            host = -1 if home is None else hosts.groups[home]
            movers.append([view.tables.job_id(row) for row in members if view.tables.jobs.group[row] != host])
        left = without(view, [job_id for job_ids in movers for job_id in job_ids])
        plan: list[Move] = []
        whole = True
        number = view.tables.next_group_id
        for column, home, job_ids in zip(chosen, homes, movers, strict=True):
            if home is None:
                order, pins = pool.realise(column)
                jobs = [(view.tables.job_id(row), int(view.tables.jobs.of_shape[row])) for row in order]
                plan += create_group(number, jobs, pins, int(hosts.nodes[column, 1]))
                number += 1
                continue
            moves = join(left, int(view.tables.groups.id[hosts.groups[home]]), job_ids, int(hosts.nodes[column, 0]))
            if moves is None:
                hosts.allowed[column, home] = False
                whole = False
            else:
                plan += moves
        return tuple(plan) if whole else None

    def _view(self, state: State, rows: list[int]) -> State:
        """Return the state with observed phase durations, or the state itself if they are about the worst cases."""
        if self._observer is None:
            return state
        for row, _, new in self._observer.observe(state):
            old = self._fractions.get(row, (1.0, 1.0))
            if max(abs(a / b - 1) for a, b in zip(new, old, strict=True)) > _CHANGE or row not in self._fractions:
                self._fractions[row] = new
        known = [self._fractions[row] for row in rows if row in self._fractions]
        others = np.mean(known, axis=0).round(2).tolist() if known else (1.0, 1.0)
        every = {row: (row, *state.tables.shape_rows(row)) for row in rows}
        fractions = {other: self._fractions.get(row, (others[0], others[1])) for row in rows for other in every[row]}
        if all(abs(part - 1) <= _CHANGE for pair in fractions.values() for part in pair):
            return state
        self.keeps_slo = False
        return rescaled(state, fractions, slo_too=True)

    def _columns(self, view: State, rows: list[int]) -> ColumnPool:
        """Return the pool of columns, with the columns of new jobs and of jobs with changed figures made again."""
        pool = self._pool
        if pool is None:
            pool = self._pool = ColumnPool(view, all_periods=False, max_columns=_MAX_COLUMNS)
        planned = {row: tuple(float(view.tables.jobs[name][row]) for name in _PLANNED) for row in rows}
        for row in [row for row in pool.active if planned.get(row) != self._planned[row]]:
            pool.drop(row)
        pool.state = view
        pool.hold(rows)
        self._planned = planned
        return pool


def can_move(state: State, job_id: str) -> bool:
    """Return whether a running job has the slack for a move and is not in the pause of another."""
    return not state.is_paused(job_id) and may_move(state, job_id)


_BESIDES_USD = 0.01  # extra price of a move, so that no move is made without a gain


def move_usd(state: State, rows: Sequence[int]) -> Floats:
    """Return the dollars of moving each of A jobs, shape (A,): the price of its requested nodes during two pauses.

    One pause is paid for the nodes that the job leaves, which are held until the pause ends. The other is paid because the job
    stays longer by the pause.
    """
    jobs, usd = state.tables.jobs, state.limits.pools["usd"]
    usd_per_hour = (
        jobs.rollout_nodes[rows] * usd[jobs.rollout_pool[rows]] + jobs.training_nodes[rows] * usd[jobs.training_pool[rows]]
    )
    return np.asarray(2 * usd_per_hour * state.cluster.migration_s / 3600 + _BESIDES_USD)


class Hosts:
    """The current groups that can become each feasible group (a column) of the active jobs.

    A current group can host a column if some of its members stay, the number of training nodes is the same, and both contain the
    same immovable jobs. A column whose members may all move can also be a new group. In addition to the pool's columns there is one
    for each current group, so a partition without moves always exists. There are N columns and G current groups.

    Attributes:
        groups: Rows of the current groups in the state's group table.
        members: Rows of the columns' members, padded with -1, shape (N, M).
        positions: The members as positions in the pool's active jobs, shape (N, M).
        nodes: Rollout and training nodes of each column, shape (N, 2).
        pools: Numbers of the pools of these nodes, shape (N, 2).
        as_it_is: Columns of the current groups, shape (G,).
        allowed: Whether each current group can host each column, shape (N, G).
    """

    def __init__(self, state: State, pool: ColumnPool, fixed: Collection[int]) -> None:
        groups, n = state.tables.groups, len(pool.active)
        self.groups = [int(group) for group in state.tables.order if not groups.exclusive[group]]
        size = len(self.groups)
        present = np.where(np.arange(len(groups.members[0])) < groups.n_members[self.groups, None], groups.members[self.groups], -1)
        self.members: Ints = np.concatenate(widened(pool.members, np.sort(present, axis=1)))
        own_nodes = np.stack([groups.n_nodes[self.groups], groups.training_nodes[self.groups]], axis=1)
        own_pools = np.stack([groups.rollout_pool[self.groups], groups.training_pool[self.groups]], axis=1)
        self.nodes: Ints = np.concatenate([pool.nodes, own_nodes])
        self.pools: Ints = np.concatenate([pool.pools, own_pools])
        count = len(self.members)
        self.as_it_is: Ints = np.arange(count - size, count)
        self.positions: Ints = pool.positions(self.members)
        home = np.full(n + 1, size)
        for k, own in enumerate(self.positions[self.as_it_is]):
            home[own[own < n]] = k
        usd = np.append(move_usd(state, pool.active), 0.0)
        bound = np.append(np.isin(pool.active, list(fixed)), False)
        self._stay_usd = np.zeros((count, size + 1))
        fixed_here = np.zeros((count, size + 1), dtype=np.int8)
        for column in self.positions.T:
            homes = home[column]
            self._stay_usd[np.arange(count), homes] += usd[column]
            fixed_here[np.arange(count), homes] += bound[column]
        self._all_usd: Floats = self._stay_usd.sum(axis=1)
        self._stay_usd, fixed_here = self._stay_usd[:, :size], fixed_here[:, :size]
        all_fixed = fixed_here.sum(axis=1)
        fixed_of = fixed_here[self.as_it_is, np.arange(size)]
        self.allowed: NDArray[np.bool_] = (
            (self._stay_usd > 0)
            & (self.nodes[:, 1:] == own_nodes[:, 1])
            & (self.pools[:, None] == own_pools).all(axis=2)
            & (fixed_here == fixed_of)
            & (all_fixed[:, None] == fixed_of)
        )
        self._free = all_fixed == 0

    def moves_usd(self) -> Floats:
        """Return the dollars of the moves to each column, on its best host or as a new group, infinite if neither is possible."""
        stay_usd = np.where(self.allowed, self._stay_usd, -np.inf).max(axis=1, initial=-np.inf)
        return np.asarray(np.where(self._free | np.isfinite(stay_usd), self._all_usd - np.maximum(stay_usd, 0.0), np.inf))

    def assign(self, columns: Ints) -> tuple[list[int | None], float]:
        """Assign chosen columns to hosts so that the moves are cheapest. Each group hosts at most one column.

        Returns:
            For each column the position of its host in `groups`, or None for a new group; and the dollars of all moves.
        """
        must = np.where(self._free[columns], 0.0, 2 * self._all_usd.max() * len(columns))[:, None]
        worth = np.where(self.allowed[columns], self._stay_usd[columns] + must, 0.0)
        hosts: list[int | None] = [None] * len(columns)
        stay_usd = 0.0
        for k, group in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
            if worth[k, group] > 0:
                hosts[k] = int(group)
                stay_usd += float(self._stay_usd[columns[k], group])
        return hosts, float(self._all_usd[columns].sum()) - stay_usd


def without(state: State, job_ids: Sequence[str]) -> State:
    """Return a copy of the state in which some running jobs wait for a placement instead."""
    left = state.copy()
    for job_id in job_ids:
        apply(left, Departed(left.now_s, job_id))
        left.waiting.append(job_id)
    return left


def join(state: State, group: int, job_ids: Sequence[str], rollout_nodes: int) -> tuple[Move, ...] | None:
    """Let waiting jobs join a current group.

    Every order of joining is tried. Each job takes the placement with the fewest new nodes, then with the shortest period. An order
    succeeds if the group ends with at most `rollout_nodes` rollout nodes. A placement refers only to nodes of members that stay and
    to nodes that joining jobs added, so it does not matter when, within one plan, other members leave.

    Returns:
        The moves in order, or None if no order keeps all SLOs on this number of nodes.
    """
    for order in permutations(job_ids):
        trial = state.copy()
        moves: list[Move] = []
        for job_id in order:
            table = candidates(trial, job_id)
            rows = np.flatnonzero(table.feasible & (table.group == group))
            if not rows.size:
                break
            best = rows[np.lexsort((table.period_s[rows], table.new_nodes[rows]))[0]]
            placement = table.placement(int(best))
            apply(trial, Admitted(trial.now_s, job_id, placement))
            moves.append(Move(job_id, placement))
        row = trial.tables.group_rows.get(group)
        if len(moves) == len(order) and row is not None and trial.tables.groups.n_nodes[row] <= rollout_nodes:
            return tuple(moves)
    return None


def create_group(
    group: int, jobs: Sequence[tuple[str, int]], pins: Sequence[tuple[int, ...]], training_nodes: int
) -> tuple[Move, ...]:
    """Return the moves with which jobs form a new group.

    Args:
        group: Number that the group will get.
        jobs: Id and shape number of each job, in round-robin order.
        pins: Numbers of each job's rollout nodes, in a numbering of the group's own.
        training_nodes: Number of training nodes of the group.
    """
    to = placements(group, [(of_shape, own) for (_, of_shape), own in zip(jobs, pins, strict=True)], training_nodes, {})
    return tuple(Move(job_id, placement) for (job_id, _), placement in zip(jobs, to, strict=True))
