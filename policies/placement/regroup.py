"""The policy `regroup`: the paper's baseline under drift (section 6.6), where it regroups optimally once an hour."""

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

_LEAST_ITERATIONS = 10  # of a batch that phase durations are read off
_CHANGE = 0.02  # of an observed duration that is worth planning anew
_BROKEN_USD = 1e3  # for leaving a group whose observed durations break an SLO as it is
_OUT_OF_REACH_USD = 1e5  # of a job alone that may not move: the solver starts from single jobs
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
    """Admit by Algorithm 1; every hour choose the best grouping that legal moves can reach, and move there.

    The hourly problem is `optimal`'s, a set partition into feasible groups solved exactly, of least dollars until the next
    regrouping, those of the moves included (see `policies.placement.regroup.moves`): moves are made only where they pay for
    themselves before they may be undone. Jobs that may not move, for want of slack or in the pause of a move, stay where they are.
    A group that turns out not to fit on the nodes that its host has is taken out, and the rest solved again.

    Where progress is observed (event replays, runs), phases are planned at their mean over a job's last iterations, at least ten,
    and an SLO at that multiple of the solo time that this gives; jobs of which nothing was observed yet are taken to be as the mean
    of the others. Else, and for admission, all is worst case.

    Args:
        every_s: time between regroupings, seconds.
        prune: of Algorithm 1.
        observe: plan on what was observed; without it on worst cases always.

    Attributes:
        keeps_slo: True as long as it has planned on worst cases alone.
        wakes_every_s: as `every_s`.
    """

    def __init__(self, every_s: float = 3600.0, prune: bool = True, observe: bool = True) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not 1 <= every_s < np.inf:
            raise InputError(f"every_s: must be a number of seconds, at least 1, not {every_s!r}")
        self.wakes_every_s = every_s
        self.prune = prune
        self.keeps_slo = True
        self._observer = Observer(_LEAST_ITERATIONS) if observe else None
        self._fractions: dict[int, Fractions] = {}
        self._pool: ColumnPool | None = None
        self._planned: dict[int, tuple[float, ...]] = {}  # by which figures of each job the columns were made

    def place(self, state: State, job: Job) -> Placement | None:
        """That of Algorithm 1."""
        return cheapest(state, job.id, self.prune)

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival as Algorithm 1, and a tick with the moves that are worth it."""
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
        """The moves to a partition; None where some of its groups cannot be had: those are no longer allowed then."""
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
        """The state with phases as they were observed; the state itself where they are the worst cases."""
        if self._observer is None:
            return state
        for row, _, new in self._observer.look(state):
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
        """The pool of columns, with those of newcomers and of jobs that are planned otherwise than before made anew."""
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
    """Whether a running job has the slack for a move, and is in the pause of none."""
    return not state.is_paused(job_id) and may_move(state, job_id)


_BESIDES_USD = 0.01  # of a move, so that none is made for nothing


def move_usd(state: State, rows: Sequence[int]) -> Floats:
    """(A,) dollars of moving each job: the price of the nodes that it asks for, during two pauses.

    One for the nodes that it leaves, which are held until the pause ends; one because it stays longer by the pause.
    """
    jobs, usd = state.tables.jobs, state.limits.pools["usd"]
    usd_per_hour = (
        jobs.rollout_nodes[rows] * usd[jobs.rollout_pool[rows]] + jobs.training_nodes[rows] * usd[jobs.training_pool[rows]]
    )
    return np.asarray(2 * usd_per_hour * state.cluster.migration_s / 3600 + _BESIDES_USD)


class Hosts:
    """For every feasible group of the active jobs (a column): which present groups can become it.

    A present group can host a column if some of its members stay, the training pool has the column's size, and the members of both
    that may not move are the same. Any column whose members may all move can also be a new group. Beside the pool's columns there
    is one for each present group as it is, so a partition that moves nobody always exists.

    Attributes:
        groups: rows of the present groups in the state's group table.
        members: (N, M) rows of the columns' members, padded with -1; positions: (N, M) as positions in the pool's active jobs.
        nodes: (N, 2) rollout and training nodes. pools: (N, 2) of which pools, as numbers.
        as_it_is: (G,) the columns of the present groups.
        allowed: (N, G) which group can host which column.
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
        """(N,) dollars of the moves that make each column, by its best host or as a new group; infinite where it cannot be had."""
        stay_usd = np.where(self.allowed, self._stay_usd, -np.inf).max(axis=1, initial=-np.inf)
        return np.asarray(np.where(self._free | np.isfinite(stay_usd), self._all_usd - np.maximum(stay_usd, 0.0), np.inf))

    def assign(self, columns: Ints) -> tuple[list[int | None], float]:
        """Give chosen columns to hosts so that the moves are the cheapest; each group hosts at most one.

        Returns:
            Of each column the position of its host in `groups`, or None for a new group; and the dollars of all moves.
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
    """A copy of the state in which some running jobs wait for a place."""
    left = state.copy()
    for job_id in job_ids:
        apply(left, Departed(left.now_s, job_id))
        left.waiting.append(job_id)
    return left


def join(state: State, group: int, job_ids: Sequence[str], rollout_nodes: int) -> tuple[Move, ...] | None:
    """Let jobs that wait join a present group.

    Every order of joining is tried, each job with the fewest new nodes and then the shortest period, until the group has no more
    than so many rollout nodes. What a placement names are nodes of members that stay and nodes that joining jobs brought; so it
    does not matter when, in one plan, those that leave the group go.

    Returns:
        The moves in order; None where no order keeps all SLOs on so few nodes.
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
    """Let jobs make a new group.

    Args:
        group: the number that it will get.
        jobs: their ids and `of_shape`, in round-robin order.
        pins: of each, numbers of its rollout nodes in some numbering of the group's own.
    """
    to = placements(group, [(of_shape, own) for (_, of_shape), own in zip(jobs, pins, strict=True)], training_nodes, {})
    return tuple(Move(job_id, placement) for (job_id, _), placement in zip(jobs, to, strict=True))
