"""The policy `regroup`: the paper's baseline under drift (section 6.6), where it regroups optimally once an hour."""

from __future__ import annotations

import numpy as np

from policies.placement.optimal.columns import ColumnPool
from policies.placement.optimal.partition import partition
from policies.placement.optimal.program import Program
from policies.placement.planned import Fractions, Observer, rescaled, running_rows
from policies.placement.regroup.hosts import Hosts
from policies.placement.regroup.moves import create_group, join, without
from rollmux_env.cluster.candidates import cheapest
from rollmux_env.cluster.events import Arrived, Event, Ticked
from rollmux_env.cluster.plan import Move, Place, Plan, Wait, may_move
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import TOLERANCE

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


class Regroup:
    """Admit by Algorithm 1; every hour choose the best grouping that legal moves can reach, and move there.

    The hourly problem is `optimal`'s, a set partition into feasible groups solved exactly, of least dollars until the next
    regrouping, those of the moves included (see `policies.placement.regroup.hosts`): moves are made only where they pay for
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

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival as Algorithm 1, and a tick with the moves that are worth it."""
        if isinstance(event, Arrived):
            placement = cheapest(state, event.job.id, self.prune)
            return (Wait(event.job.id) if placement is None else Place(event.job.id, placement),)
        return self._regroup(state) if isinstance(event, Ticked) else ()

    def _regroup(self, state: State) -> Plan:
        rows = [row for row in running_rows(state) if not state.groups.exclusive[state.jobs.group[row]]]
        if not rows:
            return ()
        view = self._view(state, rows)
        pool = self._columns(view, rows)
        fixed = [row for row in rows if not _may_move(state, state.job_id(row))]
        hosts = Hosts(view, pool, fixed)
        limits = view.limits
        until_next_h = self.wakes_every_s / 3600
        prices = limits.pools["usd"][hosts.pools]
        usd = (hosts.nodes[:, 0] * prices[:, 0] + hosts.nodes[:, 1] * prices[:, 1]) * until_next_h
        broken = view.groups.period_s > view.groups.limit_s * (1 + TOLERANCE)
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
            movers.append([view.job_id(row) for row in members if view.jobs.group[row] != host])
        left = without(view, [job_id for job_ids in movers for job_id in job_ids])
        plan: list[Move] = []
        whole = True
        number = view.next_group_id
        for column, home, job_ids in zip(chosen, homes, movers, strict=True):
            if home is None:
                order, pins = pool.realise(column)
                jobs = [(view.job_id(row), int(view.jobs.of_shape[row])) for row in order]
                plan += create_group(number, jobs, pins, int(hosts.nodes[column, 1]))
                number += 1
                continue
            moves = join(left, int(view.groups.id[hosts.groups[home]]), job_ids, int(hosts.nodes[column, 0]))
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
        fractions = {
            other: self._fractions.get(row, (others[0], others[1])) for row in rows for other in (row, *state.shape_rows(row))
        }
        if all(abs(part - 1) <= _CHANGE for pair in fractions.values() for part in pair):
            return state
        self.keeps_slo = False
        return rescaled(state, fractions, slo_too=True)

    def _columns(self, view: State, rows: list[int]) -> ColumnPool:
        """The pool of columns, with those of newcomers and of jobs that are planned otherwise than before made anew."""
        pool = self._pool
        if pool is None:
            pool = self._pool = ColumnPool(view, all_periods=False, max_columns=_MAX_COLUMNS)
        planned = {row: tuple(float(view.jobs[name][row]) for name in _PLANNED) for row in rows}
        for row in [row for row in pool.active if planned.get(row) != self._planned[row]]:
            pool.drop(row)
        pool.state = view
        for row in rows:
            if row not in pool.active:
                pool.add(row)
        self._planned = planned
        return pool


def _may_move(state: State, job_id: str) -> bool:
    return not state.is_paused(job_id) and may_move(state, job_id)
