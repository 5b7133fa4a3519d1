"""The set partitioning program for HiGHS: columns that cover every job exactly once, at the lowest cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import highspy
import numpy as np

from policies.solver import make_solver
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.portable import dot

ALL_AT_ONCE = 3000  # number of columns that the solver gets without a selection
TOLERANCE = 1e-9  # relative tolerance of costs
_MISMATCH_PENALTY = 100.0  # penalty for a training node too many or too few, as a multiple of the most expensive column
_OPTIMAL = highspy.HighsModelStatus.kOptimal
_FINAL_STATUSES = (_OPTIMAL, highspy.HighsModelStatus.kInfeasible)


@dataclass(frozen=True)
class Program:
    """Jobs and nodes of every column, for N columns of up to M jobs and P pools.

    Attributes:
        positions: Jobs of each column as numbers below `jobs`, padded with `jobs`, shape (N, M).
        jobs: Number of jobs.
        nodes: Rollout and training nodes of each column, shape (N, 2).
        pools: Numbers of the pools of these nodes, shape (N, 2).
        pools_max: Largest number of nodes of each pool over all chosen columns, infinite without a limit, shape (P,).
        usd: Price of a node of each pool, shape (P,), if nodes make up the whole cost of every column, else None.
    """

    positions: Ints
    jobs: int
    nodes: Ints
    pools: Ints
    pools_max: Floats
    usd: Floats | None = None

    @property
    def limited(self) -> bool:
        """Whether a pool has a limit, which couples the groups."""
        return bool(np.isfinite(self.counts_max).any())

    @cached_property
    def _is_plain(self) -> bool:
        """Whether all rollout nodes are of one pool, and all training nodes of another one (or of the same one without a limit)."""
        if not len(self.pools) or (self.pools != self.pools[0]).any():
            return False
        rollout, training = self.pools[0]
        return bool(rollout != training or not np.isfinite(self.pools_max[rollout]) or not self.nodes[:, 0].any())

    @property
    def training_row(self) -> int:
        """Row of the training nodes in the solver."""
        return self.jobs + self.counts_max.size - 1

    @cached_property
    def counts(self) -> Ints:
        """Resources that each column uses, shape (N, R).

        They are rollout and training nodes, or the nodes of each limited pool and the training nodes. The search branches on the
        last column.
        """
        if self._is_plain:
            return self.nodes
        limited = np.flatnonzero(np.isfinite(self.pools_max))
        of_pools = [(self.nodes * (self.pools == pool)).sum(axis=1) for pool in limited]
        return np.stack([*of_pools, self.nodes[:, 1]], axis=1)

    @cached_property
    def counts_max(self) -> Floats:
        """Limit of each resource over all chosen columns, infinite without a limit, shape (R,)."""
        if self._is_plain:
            return np.asarray(self.pools_max[self.pools[0]])
        return np.append(self.pools_max[np.isfinite(self.pools_max)], np.inf)

    @property
    def prices(self) -> tuple[float, float] | None:
        """Price of a rollout node and of a training node, or None if they differ between columns or are not the whole cost."""
        return (
            (float(self.usd[self.pools[0, 0]]), float(self.usd[self.pools[0, 1]]))
            if self.usd is not None and self._is_plain
            else None
        )


class Relaxation:
    """The linear program over all columns. Columns enter the solver when their reduced cost is negative.

    The attributes describe the last `solve`.

    Attributes:
        value: Cost of the solution, corrected for rounding so that no partition costs less.
        reduced: Reduced cost of each column, shape (N,). A partition that uses the column costs at least value + reduced.
        support: Columns of the solution.
        chosen: The same columns if the solution is whole, else None.
        training_nodes: Training nodes of the solution, possibly fractional.
    """

    def __init__(self, program: Program, cost: Floats) -> None:
        self._program = program
        self._cost = cost
        size = (program.positions < program.jobs).sum(axis=1)
        self._used = np.arange(size.size)
        if size.size > ALL_AT_ONCE and not program.limited:
            self._used = np.union1d(np.flatnonzero(size == 1), np.argpartition(cost / size, ALL_AT_ONCE)[:ALL_AT_ONCE])
        self._highs = _model(program, cost, self._used)
        # While only some columns are in the solver, it may miss the number of training nodes at a price above any column's. Such a
        # relaxed program costs no more than the real one, so its value is still a bound.
        self._first = self._used.size
        self._elastic = self._used.size < size.size
        if self._elastic:
            row = np.array([program.training_row], np.int32)
            for sign in (-1.0, 1.0):
                self._highs.addCol(_MISMATCH_PENALTY * float(np.abs(cost).max()), 0.0, highspy.kHighsInf, 1, row, np.array([sign]))

    def solve(self, training_nodes: int | None = None) -> bool:
        """Solve the program, with a given total of training nodes or any. Return whether there is a solution."""
        program, cost, highs = self._program, self._cost, self._highs
        least, most = (0.0, float(program.counts_max[-1])) if training_nodes is None else (training_nodes, training_nodes)
        highs.changeRowBounds(program.training_row, least, min(most, highspy.kHighsInf))
        while True:
            highs.run()
            if highs.getModelStatus() != _OPTIMAL:
                return False
            solution = highs.getSolution()
            duals = np.array(solution.row_dual)
            price = np.append(duals[: program.jobs], 0.0)
            reduced = cost - price[program.positions].sum(axis=1) - (program.counts * duals[program.jobs :]).sum(axis=1)
            missing = np.ones(cost.size, dtype=bool)
            missing[self._used] = False
            entering = np.flatnonzero(missing & (reduced < -TOLERANCE * max(1.0, float(np.abs(price).max()))))
            if entering.size == 0:
                break
            if entering.size > ALL_AT_ONCE:
                entering = entering[np.argpartition(reduced[entering], ALL_AT_ONCE)[:ALL_AT_ONCE]]
            self._enter(entering)
        x = np.array(solution.col_value)
        missed = 0.0
        if self._elastic:
            first = self._first
            missed = float(x[first : first + 2].sum())
            x = np.delete(x, [first, first + 1])
        self.reduced = reduced
        # A partition has at most as many columns as jobs, so this is a bound for any tolerance of the solver.
        self.value = float(highs.getInfo().objective_function_value) + program.jobs * min(0.0, float(reduced.min()))
        self.support = np.sort(self._used[x > 1e-6])
        self.chosen = self.support if missed < 1e-6 and (np.abs(x - np.round(x)) < 1e-6).all() else None
        self.training_nodes = dot(x, program.nodes[self._used, 1])
        return True

    def _enter(self, columns: Ints) -> None:
        _add(self._highs, self._program, self._cost, columns)
        self._used = np.concatenate([self._used, columns])


def whole_solution(
    program: Program, cost: Floats, columns: Ints, training_nodes: int, rollout_nodes: int | None, node_limit: int | None
) -> tuple[Ints | None, float | None]:
    """Solve the integer program over some of the columns with a given total of training nodes.

    Args:
        program: Jobs and nodes of all columns.
        cost: Cost of each column, shape (N,).
        columns: Columns that may be chosen.
        training_nodes: Total of training nodes of the chosen columns.
        rollout_nodes: None to minimise the cost. A number to accept any partition with at most this many rollout nodes.
        node_limit: Largest number of branch-and-bound nodes, or None.

    Returns:
        The chosen columns, or None if none were found; and a lower bound of the cost if the node limit was reached, else None.
    """
    highs = _model(program, cost if rollout_nodes is None else np.zeros(cost.size), columns)
    highs.changeRowBounds(program.training_row, training_nodes, training_nodes)
    if rollout_nodes is not None:
        highs.changeRowBounds(program.jobs, 0.0, rollout_nodes)
    highs.changeColsIntegrality(columns.size, np.arange(columns.size, dtype=np.int32), np.ones(columns.size, dtype=np.uint8))
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", TOLERANCE)
    if node_limit is not None:
        highs.setOptionValue("mip_max_nodes", node_limit)
    highs.run()
    info = highs.getInfo()
    chosen = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        chosen = np.sort(columns[np.array(highs.getSolution().col_value) > 0.5])
    if highs.getModelStatus() in _FINAL_STATUSES:
        return chosen, None
    return chosen, float(info.mip_dual_bound) if rollout_nodes is None else -np.inf


def _model(program: Program, cost: Floats, columns: Ints) -> highspy.Highs:
    """Create a solver with a row for each job, a row for each resource, and these columns."""
    highs = make_solver()
    empty = np.zeros(0, np.int32)
    counted = program.counts_max.size
    least = np.concatenate([np.ones(program.jobs), np.zeros(counted)])
    most = np.concatenate([np.ones(program.jobs), np.minimum(program.counts_max, highspy.kHighsInf)])
    highs.addRows(program.jobs + counted, least, most, 0, empty, empty, np.zeros(0))
    _add(highs, program, cost, columns)
    return highs


def _add(highs: highspy.Highs, program: Program, cost: Floats, columns: Ints) -> None:
    n, counted = columns.size, len(program.counts.T)
    # The padding is number `jobs`, so rows of resources are counted one too high here.
    counts = np.broadcast_to(program.jobs + 1 + np.arange(counted), (n, counted))
    numbers = np.concatenate([program.positions[columns], counts], axis=1)
    values = np.concatenate([np.ones((n, len(numbers.T) - counted)), program.counts[columns]], axis=1)
    nonzero = numbers != program.jobs
    rows = (numbers - (numbers > program.jobs))[nonzero].astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(nonzero.sum(axis=1))[:-1]]).astype(np.int32)
    highs.addCols(n, cost[columns], np.zeros(n), np.full(n, highspy.kHighsInf), rows.size, starts, rows, values[nonzero])
